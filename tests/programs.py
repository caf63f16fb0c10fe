"""Run a program as people do: in a process of its own, or in this one where that is much faster."""

import logging
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import FAST_JAVA

PROJECT = Path(__file__).parents[1]


class Ended(NamedTuple):
    """How a program ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line about what was wrong; there must be exactly one."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.out == ""
        assert "Traceback" not in self.err
        return line


def run_here(capsys: pytest.CaptureFixture[str], program: str, *arguments: str) -> Ended:
    """Run `jobs/<program>.py` in this process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, *arguments])
        with pytest.raises(SystemExit) as exit_:
            runpy.run_path(str(PROJECT / "jobs" / f"{program}.py"), run_name="__main__")
    root.handlers[:], root.level = handlers, level
    said = capsys.readouterr()
    return Ended(int(exit_.value.code or 0), said.out, said.err)


def start(*command: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a command of the virtual environment in the project's folder."""
    script = Path(sys.executable).with_name(command[0])
    return subprocess.Popen(
        [str(script), *command[1:]],
        cwd=PROJECT,
        env={**os.environ, "SPARK_SUBMIT_OPTS": FAST_JAVA, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> Ended:
    """Wait for a process."""
    out, err = process.communicate(timeout=300)
    return Ended(process.returncode, out, err)
