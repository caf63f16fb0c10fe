"""What all programs share: options, exit codes, one-line errors, logs, progress.

Exit codes: 0 done, 2 bad arguments or settings, 3 refused for budget, 1 anything else.
"""

import argparse
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from dp_udfs.errors import (
    BudgetExhaustedError,
    ClaimError,
    InvalidParameterError,
    PrivacyError,
    SettingsError,
    StorageError,
    UnboundedContributionError,
)
from jobs.lake.session import errors_without_values, shows_values

DONE, FAILED, BAD_INPUT, REFUSED = 0, 1, 2, 3
INTERRUPTED = 130  # what shells use for Ctrl-C

OURS = ("dp_udfs", "jobs", "__main__")  # the loggers of this project
OUR_FOLDERS = [Path(__file__).resolve().parents[2] / name for name in ("dp_udfs", "jobs")]

logger = logging.getLogger(__name__)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every program has.

    Parameters
    ----------
    description : str or None
        The program's docstring: its first line is the summary, the rest follows the options.
    """
    summary, _, details = (description or "").partition("\n")
    result = argparse.ArgumentParser(
        description=summary,
        epilog=details.strip("\n"),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "--conf",
        type=Path,
        default=Path(os.environ.get("DISCREET_CONF", "conf/local.toml")),
        help="where the lake is (default: $DISCREET_CONF, else conf/local.toml)",
    )
    result.add_argument(
        "--format",
        choices=["text", "json"],
        default=os.environ.get("DISCREET_FORMAT", "text"),
        help="how to print results (default: $DISCREET_FORMAT, else text)",
    )
    result.add_argument("--verbose", action="store_true", help="log more to stderr")
    return result


def run(
    main: Callable[[argparse.Namespace], int | None],
    options: argparse.ArgumentParser,
    arguments: list[str] | None = None,
) -> NoReturn:
    """Parse the command line, run the program and exit with its code.

    Parameters
    ----------
    main : callable
        Takes the parsed options and returns an exit code, None for 0.
    options : ArgumentParser
        From `parser`.
    arguments : list of str, optional
        In place of the command line.
    """
    _open_closed_streams()
    parsed = options.parse_args(arguments)
    mixed = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit sends stderr to stdout too
    quiet = mixed and getattr(parsed, "format", "text") == "json"
    configure_logging(verbose=getattr(parsed, "verbose", False), quiet=quiet)
    try:
        with _interruptible(), errors_without_values("the program"):
            code = main(parsed) or DONE
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except Exception as error:  # noqa: BLE001 - whatever it is, rows must not be shown
        code = complain(describe(error), exit_code(error))
        if shows_values():
            traceback.print_exc()
    sys.exit(code)


def exit_code(error: Exception) -> int:
    """Return the exit code that tells a scheduler what kind of failure this is."""
    if isinstance(error, BudgetExhaustedError):
        return REFUSED
    if isinstance(error, StorageError):  # perhaps in the middle, when budget was taken
        return FAILED
    if isinstance(
        error, SettingsError | InvalidParameterError | UnboundedContributionError | ClaimError
    ):
        return BAD_INPUT
    return FAILED


def describe(error: Exception) -> str:
    """Return one line about an error, without the text of one that was not foreseen."""
    if isinstance(error, PrivacyError):
        return " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if set(Path(frame.filename).parents) & set(OUR_FOLDERS)]
    where = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return (
        f"unexpected {type(error).__name__}{where}; "
        "an operator who may see rows finds the cause with DISCREET_OPERATOR_LOG=warn"
    )


def complain(message: str, code: int) -> int:
    """Write an error's one line to stderr; return its exit code."""
    _say(f"error: {message}\n")
    return code


def warn(message: str | None) -> None:
    """Write a warning's one line to stderr, if there is one; the work goes on."""
    if message:
        _say(f"warning: {message}\n")


@contextmanager
def _interruptible() -> Iterator[None]:
    """End at once on Ctrl-C, whatever Java is doing: programs can be killed at any point.

    Where interrupts are ignored (`nohup`) or somebody else handles them, that stays.
    """

    def end(*_: object) -> None:
        os.write(2, b"error: interrupted\n")
        os._exit(INTERRUPTED)

    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler
    ours = ours and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


def _say(text: str) -> None:
    """Write to stderr; where nobody can read it, what the program does has to hold all the same."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _open_closed_streams() -> None:
    """Open the standard streams that the caller has closed: the next file would take their place.

    What Java or a library says on them would be written into that file, the ledger perhaps.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: its own
            os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, mode))


def configure_logging(*, verbose: bool = False, quiet: bool = False) -> None:
    """Log this project's own lines to stderr, and of libraries (or if quiet) only warnings."""
    handler = logging.StreamHandler()
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # its errors quote what Java said
    for name in OURS:
        level = logging.WARNING if quiet else logging.INFO
        logging.getLogger(name).setLevel(logging.DEBUG if verbose else level)


@contextmanager
def progress(stage: str) -> Iterator[None]:
    """Say on a terminal what is going on, log how long it took, let no error show values."""
    start = time.monotonic()
    if sys.stderr.isatty():
        _say(f"{stage} ...\r")
    with errors_without_values(stage):
        yield
    logger.info("%s: %.1f s", stage, time.monotonic() - start)
