"""The notebook about scheduling runs from top to bottom, prints its tables and draws its curves."""

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_the_notebook_shows_every_policy_in_tables_and_pictures(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(PROJECT / "notebooks" / "scheduling.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    (granted,) = [line for line in ended.stdout.splitlines() if line.startswith("dpf_by_time  ")][
        :1
    ]
    assert granted.split()[-1] == "100"  # the plateau of one block
    drawn = {picture.stem: picture.read_text() for picture in (tmp_path / "pictures").iterdir()}
    assert set(drawn) == {"single-block", "multi-block", "renyi-multi-block", "dpack-synthetic"}
    for family in (
        "first_come_first_served",
        "dpf_by_arrivals",
        "dpf_by_time",
        "round_robin_by_arrivals",
        "round_robin_by_time",
        "dpack",
    ):
        assert f"<!-- {family}" in drawn["single-block"]
