"""`make demo` from nothing: the lake is made, the notebook runs, and a second time all is free."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def run(folder: Path, *command: str) -> str:
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def test_the_demo_runs_from_nothing_and_again_for_free(tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "conf", tmp_path / "conf")
    run(tmp_path, "-m", "jobs.make_demo_lake")
    shown = run(tmp_path, str(PROJECT / "notebooks" / "demo.py"))
    assert "Star Wars (1977)" in shown
    assert "refused: research on movielens" in shown
    assert shown.count("free: a repeat") == 2
    assert "50 and over | F" in shown
    again = run(tmp_path, str(PROJECT / "notebooks" / "demo.py"))
    assert "\ncharged " not in again
