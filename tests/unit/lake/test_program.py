"""Exit codes, one-line errors that show no value, options and logs."""

import argparse
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dp_udfs.errors import (
    BudgetExhaustedError,
    CallLimitError,
    ClaimError,
    InvalidParameterError,
    LedgerConflictError,
    SettingsError,
    StorageError,
    UnboundedContributionError,
)
from jobs import ingest_engagements, update_budget
from jobs.lake import program
from jobs.lake.session import EngineError

ROW = "a secret title"


def run(main: Callable[[argparse.Namespace], int | None], *arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        program.run(main, program.parser("A program.\n\nMore about it."), list(arguments))
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def raising(error: BaseException) -> Callable[[argparse.Namespace], int | None]:
    def main(_: argparse.Namespace) -> int | None:
        raise error

    return main


@pytest.fixture(autouse=True)
def logging_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    monkeypatch.delenv("DISCREET_OPERATOR_LOG", raising=False)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("x"), 2),
        (StorageError("x"), 1),
        (InvalidParameterError("x"), 2),
        (UnboundedContributionError("x"), 2),
        (ClaimError("x"), 2),
        (BudgetExhaustedError("x"), 3),
        (CallLimitError("x"), 3),
        (LedgerConflictError("x"), 1),
        (EngineError("x"), 1),
        (RuntimeError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_tells_what_kind_of_failure(error: BaseException, code: int) -> None:
    assert run(raising(error)) == code


def test_a_program_that_returns_nothing_is_done() -> None:
    assert run(lambda _: None) == 0
    assert run(lambda _: 1) == 1


def test_our_own_errors_are_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    run(raising(SettingsError("conf/local.toml: secret: missing;\n  make one")))
    shown = capsys.readouterr()
    assert shown.err == "error: conf/local.toml: secret: missing; make one\n"
    assert shown.out == ""


@pytest.mark.parametrize("error", [KeyError(ROW), ValueError(ROW), pa.ArrowInvalid(ROW)])
def test_unforeseen_errors_are_named_but_their_text_is_not_shown(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(raising(error)) == 1
    shown = capsys.readouterr().err
    assert ROW not in shown
    assert type(error).__name__ in shown
    assert "Traceback" not in shown


def test_an_unforeseen_error_of_ours_says_where_it_happened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def main(_: argparse.Namespace) -> None:
        program.exit_code(None.missing)  # type: ignore[attr-defined]  # the point

    run(main)
    assert "unexpected AttributeError at program.py:" in capsys.readouterr().err


def test_an_operator_who_may_see_rows_gets_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DISCREET_OPERATOR_LOG", "warn")
    run(raising(pa.ArrowInvalid(ROW)))
    assert ROW in capsys.readouterr().err


def test_bad_options_are_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda _: 0, "--confs", "x") == 2
    assert "unrecognized arguments" in capsys.readouterr().err
    assert run(lambda _: 0, "--format", "xml") == 2


def test_options_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCREET_CONF", "elsewhere.toml")
    parse = program.parser("A program.").parse_args
    assert parse([]).conf == Path("elsewhere.toml")
    assert parse(["--conf", "here.toml"]).conf == Path("here.toml")


def test_progress_logs_one_line_with_seconds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="jobs"), program.progress("count"):
        pass
    assert [record.getMessage() for record in caplog.records] == ["count: 0.0 s"]


def test_progress_hides_what_the_engines_say() -> None:
    with pytest.raises(EngineError) as caught, program.progress("count"):
        raise pa.ArrowInvalid(ROW)
    assert "count failed in pyarrow (ArrowInvalid)" in str(caught.value)
    assert ROW not in str(caught.value)


def test_a_closed_pipe_is_no_error() -> None:
    script = (
        "from jobs.lake import program, reports\n"
        "rows = [{'n': n} for n in range(100_000)]\n"
        "program.run(lambda o: reports.show(o, rows), program.parser('P'))\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    writer.stdout.close()
    assert writer.wait(60) == 0
    assert writer.stderr is not None
    assert writer.stderr.read() == b""
    writer.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
def test_a_stderr_that_nobody_reads_changes_no_exit_code() -> None:
    script = (
        "from dp_udfs.errors import BudgetExhaustedError\n"
        "from jobs.lake import program\n"
        "def main(_):\n"
        "    program.warn('little is left')\n"
        "    raise BudgetExhaustedError('nothing is left')\n"
        "program.run(main, program.parser('P'))\n"
    )
    with open("/dev/full", "w") as full:  # noqa: PTH123 (a device)
        ended = subprocess.run([sys.executable, "-c", script], stderr=full, check=False)
    assert ended.returncode == 3


def test_streams_that_were_closed_are_not_given_to_the_next_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)

    def main(_: argparse.Namespace) -> None:
        with program.progress("count"):
            program.warn("little is left")
        sys.stdout.write(sys.stdin.read())

    assert run(main) == 0
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        assert Path(f"/dev/fd/{stream.fileno()}").resolve() == Path("/dev/null")
        stream.close()


def test_ctrl_c_ends_a_program_at_once_with_one_line() -> None:
    script = (
        "import os, signal, time\n"
        "from jobs.lake import program\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
        "def main(_):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    finally:\n"
        "        time.sleep(60)\n"  # as one who waits for Java
        "program.run(main, program.parser('P'))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, timeout=50
    )
    assert (ended.returncode, ended.stderr) == (130, b"error: interrupted\n")


def test_help_shows_commands_as_they_are_typed() -> None:
    for module in (ingest_engagements, update_budget):
        shown = program.parser(module.__doc__).format_help()
        assert f"\n\n    python -m {module.__name__} " in shown
        assert " \\\n        --" in shown


def test_help_needs_no_heavy_library() -> None:
    script = (
        "import sys\n"
        "from jobs.lake import program, reports, session\n"
        "program.parser('P')\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'pandas', 'deltalake', 'pydantic'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
