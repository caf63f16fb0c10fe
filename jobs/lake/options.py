"""Options shared by the programs that take a question: a release file, or its keys, or both."""

import argparse
from datetime import date
from typing import Any, get_args

from jobs.lake.question_settings import MechanismName, QuestionSettings, load_question
from jobs.lake.toml_files import build


def add_question(parser: argparse.ArgumentParser, *, many: bool = False) -> None:
    """Add a release file and an option for each of its keys; options win over the file."""
    number = "*" if many else "?"
    parser.add_argument("question", nargs=number, help="release file (conf/releases/*.toml)")
    keys = parser.add_argument_group("keys of the release file")
    keys.add_argument("--dataset", help="dataset file's name, without .toml")
    keys.add_argument("--element", help="column whose values are counted")
    keys.add_argument("--measure", choices=["users", "rows"], help="what is counted")
    keys.add_argument("--tau", type=int, help="most rows of a user counted per element")
    keys.add_argument("--k", type=int, help="elements asked for in each cohort")
    keys.add_argument("--max-candidates", type=int, help="true top considered in each cohort")
    keys.add_argument("--cohorts", help="cohort columns, separated by commas")
    keys.add_argument(
        "--mechanism",
        choices=get_args(MechanismName),
        help="default: the one that the column's declaration calls for",
    )
    keys.add_argument("--days", type=int, help="window: the last days up to the snapshot's date")
    keys.add_argument("--from", dest="start", type=_date, help="window: first date")
    keys.add_argument("--to", dest="end", type=_date, help="window: date after the last")
    keys.add_argument("--no-counts", action="store_true", help="elements only, at half the price")


def add_analyst(parser: argparse.ArgumentParser) -> None:
    """Add who asks, and the snapshot to ask about."""
    parser.add_argument("--analyst", required=True, help="declared in the dataset file")
    parser.add_argument("--snapshot", type=int, help="published snapshot; the newest by default")


def add_account(parser: argparse.ArgumentParser) -> None:
    """Add whose account it is, and on which dataset."""
    parser.add_argument("--dataset", required=True, help="dataset file's name, without .toml")
    parser.add_argument("--analyst", required=True, help="declared in the dataset file")


def read_question(options: argparse.Namespace) -> QuestionSettings:
    """Read the question that the options describe."""
    content = _given(options)
    if options.question is None:
        return build("options", QuestionSettings, content | {"source": "options"})
    return load_question(options.question, content)


def read_questions(options: argparse.Namespace) -> list[QuestionSettings]:
    """Read the questions of several release files, or the one that the options describe."""
    content = _given(options)
    if not options.question:
        return [build("options", QuestionSettings, content | {"source": "options"})]
    return [load_question(path, content) for path in options.question]


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """Collect the keys of a release file that were given as options."""
    names = ("dataset", "element", "measure", "tau", "k", "max_candidates", "mechanism")
    content = {name: getattr(options, name) for name in names}
    if options.cohorts is not None:
        content["cohorts"] = [name.strip() for name in options.cohorts.split(",") if name.strip()]
    window = {"days": options.days, "from": options.start, "to": options.end}
    if any(value is not None for value in window.values()):
        content["window"] = {key: value for key, value in window.items() if value is not None}
    if options.no_counts:
        content["with_counts"] = False
    return {key: value for key, value in content.items() if value is not None}


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2024-01-31") from None
