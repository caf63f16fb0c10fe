"""The programs as people run them: exit codes, one clear line for bad input, results to read."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from jobs.lake import accounts
from jobs.lake.ledger import utc_now
from tests import lakes, programs
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake, watched
from tests.programs import Ended

QUESTION = """
# Die fünf meistgesehenen Titel ☃
dataset = "clips"
element = "title"
measure = "users"
k = 5
max_candidates = 12
window = { from = 2024-02-10, to = 2024-03-01 }
"""
USER = "u-7b1e-of-somebody"

Run = Callable[..., Ended]


@pytest.fixture
def small(tmp_path: Path) -> SmallLake:
    """A published lake that may still be read today: its rows stay for a century."""
    clips = lakes.changed(lakes.CLIPS, retention_days="36000")
    made = lakes.make(tmp_path / "lake", TEST_SECRET, clips)
    made.append([*lakes.many_rows(size=200), watched(USER, title="clip 1")])
    made.publish()
    ask_in_file(made, QUESTION)
    return made


def ask_in_file(small: SmallLake, text: str) -> Path:
    """Write a release file with a name that is not ASCII."""
    file = small.root / "conf" / "fünf Titel.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def run(small: SmallLake, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a program on that lake; it asks the question of the file, as marketing, if not told."""

    def run(*options: str, program: str = "release_counts", **settings: str | None) -> Ended:
        given = {
            "conf": small.lake.source,
            "analyst": "marketing",
            "file": str(small.root / "conf" / "fünf Titel.toml"),
        } | settings
        file = given.pop("file")
        pairs = [(f"--{key.replace('_', '-')}", value) for key, value in given.items() if value]
        arguments = [text for pair in pairs for text in pair]
        return programs.run_here(capsys, program, *filter(None, [file]), *arguments, *options)

    return run


def nothing_was_spent(small: SmallLake) -> bool:
    return small.entries("allocate") == []


# --- bad input ------------------------------------------------------------------------------------

WRONG_QUESTIONS = [  # what stands in the file, what stands there instead, what is said about it
    ("element =", "elemnt = ", "elemnt: unknown key"),
    ('element = "title"', 'element = "titel"', "element: 'titel' is not declared"),
    ('element = "title"', 'element = "country"', "element: 'country' is not declared for use as"),
    ('dataset = "clips"', 'dataset = "clip"', "datasets/clip.toml: no such file"),
    ('dataset = "clips"', 'dataset = "../clips"', "dataset: must be"),
    ("k = 5", 'k = "5"', "k: Input should be a valid integer"),
    ("k = 5", "k = 13", "k: 13 is above max_candidates = 12"),
    ("k = 5", "k = 0", "k: Input should be greater than or equal to 1"),
    ("k = 5", "k = nan", "k: Input should be"),
    ("k = 5", "", "k: missing; unknown_gumbel needs it"),
    ("k = 5", "k = 5\ntau = 3", "leave 'tau' out"),
    ('measure = "users"', 'measure = "people"', "measure: Input should be 'users' or 'rows'"),
    ('measure = "users"', 'measure = "rows"', "needs 'tau'"),
    ('measure = "users"', f'measure = "rows"\ntau = {10**30}', "tau"),
    ("max_candidates = 12", "max_candidates = 100000000", "max_candidates: at most"),
    ("2024-02-10", "2024-03-02", "window: 'from' must be before 'to'"),
    ("to = 2024-03-01", "to = 2024-03-02", "window: 2024-02-10 to 2024-03-02 leaves what"),
    ("k = 5\n", 'k = 5\ncohorts = ["title"]\n', "cohorts: 'title' is not declared for use as"),
    ("k = 5\n", 'k = 5\ncohorts = "channel"\n', "cohorts: Input should be"),
    ("k = 5\n", 'k = 5\ncohorts = { table = "lake/clips" }\n', "cohorts: Input should be"),
    ("k = 5\n", 'k = 5\nmechanism = "known_laplace"\n', "mechanism: known_laplace needs a"),
    ("k = 5\n", 'k = 5\nmechanism = "none"\n', "mechanism: Input should be"),
    ("k = 5\n", "k = 5\nk = 6\n", "cannot be read as TOML"),
    ("# Die", "Die", "cannot be read as TOML"),
]
WRONG_FILTERS = {
    '{ column = "city", in = ["Bonn"] }': "'city' is not declared for use as filter",
    '{ column = "nothing", in = ["x"] }': "'nothing' is not declared for use as filter",
    '{ column = "user_id", in = ["u1"] }': "'user_id' is not declared for use as filter",
    '{ column = "country", in = ["Atlantis"] }': "'Atlantis' is not in the domain of 'country'",
    '{ column = "score", in = ["5"] }': "'score' holds values of type bigint",
    '{ column = "score", in = [] }': "'in' is empty",
    '{ column = "device", at_least = 3 }': "'device' is text; use 'in'",
    f'{{ column = "station", at_least = {2**63} }}': "filters.all.0.at_least",
    f'{{ column = "station", in = [{2**70}] }}': "filters.all.0.in",
    '{ column = "score", sql = "1=1" }': "filters.all.0.sql: unknown key",
    '{ column = "score" }': "give either 'in'",
}


@pytest.mark.parametrize(("place", "wrong", "words"), WRONG_QUESTIONS)
def test_a_question_that_makes_no_sense_gets_one_line(
    small: SmallLake, run: Run, place: str, wrong: str, words: str
) -> None:
    assert place in QUESTION
    file = ask_in_file(small, QUESTION.replace(place, wrong, 1))
    ended = run()
    assert ended.code == 2
    assert words in ended.error
    assert file.name in ended.error or "clip.toml" in ended.error
    assert nothing_was_spent(small)


@pytest.mark.parametrize("condition", WRONG_FILTERS)
def test_a_filter_that_makes_no_sense_gets_one_line(
    small: SmallLake, run: Run, condition: str
) -> None:
    ask_in_file(small, f"{QUESTION}\n[filters]\nall = [{condition}]\n")
    ended = run()
    assert ended.code == 2
    assert WRONG_FILTERS[condition] in ended.error
    assert nothing_was_spent(small)


@pytest.mark.parametrize(
    ("table", "key", "value", "words"),
    [
        ("budget", "epsilon", "0", "budget.epsilon"),
        ("budget", "epsilon", "nan", "budget.epsilon"),
        ("budget", "epsilon", "inf", "budget.epsilon"),
        ("budget", "epsilon", "-1", "budget.epsilon"),
        ("budget", "epsilon", "true", "budget.epsilon"),
        ("budget", "epsilon", '"a lot"', "budget.epsilon"),
        ("budget", "delta", "0", "budget.delta"),
        ("budget", "delta", "1", "budget.delta"),
        ("budget", "units", "3000.5", "budget.units"),
        ("budget", "period", '"week"', "budget.period"),
        ("table", "privacy_unit", '"household"', "table.privacy_unit"),
        ("table", "privacy_unit", '"event"', "need privacy_unit = 'user'"),
        ("table", "time_zone", '"Middle/Earth"', "table.time_zone"),
        ("columns.title", "type", '"text"', "columns.title.type"),
        ("columns.country", "domain", '"unknown"', "columns.country"),
        ("columns.country", "domain", '["DE", "DE"]', "lists a value twice"),
        ("columns.score", "domain", '["1", "2"]', "columns.score"),
        ("columns.device", "l0", "0", "columns.device.l0"),
        ("table", "retention_days", "1000000000", "table.retention_days"),
        ("columns.topic", "use", '["element", "filter"]', "columns.topic"),
    ],
)
def test_a_dataset_file_that_makes_no_sense_gets_one_line(
    small: SmallLake, run: Run, table: str, key: str, value: str, words: str
) -> None:
    file = small.root / "conf" / "datasets" / "clips.toml"
    text = file.read_text(encoding="utf-8")
    text = text.replace("retention_days", 'time_zone = "UTC"\nretention_days', 1)
    file.write_text(lakes.changed(text, table, **{key: value}), encoding="utf-8")
    ended = run()
    assert ended.code == 2
    assert "clips.toml: " in ended.error
    assert words in ended.error
    assert nothing_was_spent(small)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"analyst": "sales"}, "analyst 'sales' is not declared"),
        ({"analyst": "Märketing ☃"}, "analyst 'Märketing ☃' is not declared"),
        ({"analyst": "marketing\n"}, "is not declared"),
        ({"snapshot": "9"}, "snapshot 9 of clips: not published"),
        ({"snapshot": "0"}, "snapshot 0 of clips: not published"),
        ({"file": "nowhere.toml"}, "nowhere.toml: no such file"),
        ({"conf": "nowhere.toml"}, "nowhere.toml: no such file"),
        ({"run_id": " blank "}, "run_id = ' blank '"),
        ({"run_id": "line\nbreak"}, "run_id"),
        ({"days": "0"}, "window.days"),
        ({"days": "999999999"}, "window.days"),
        ({"days": "36500"}, "leaves what snapshot 1 holds"),
        ({"k": "-1"}, "k: Input should be greater"),
        ({"cohorts": "country,country"}, "'cohorts' names a column twice"),
        ({"file": None}, "options: dataset: missing"),
        ({"file": None, "dataset": "clips"}, "options: element: missing"),
    ],
    ids=str,
)
def test_an_option_that_makes_no_sense_gets_one_line(
    small: SmallLake, run: Run, settings: dict[str, str | None], words: str
) -> None:
    ended = run(**settings)
    assert ended.code == 2
    assert words in ended.error
    assert nothing_was_spent(small)


@pytest.mark.parametrize(
    "options", [["--k", "five"], ["--from", "yesterday"], ["--epsilon", "3"], ["--mechanism", "x"]]
)
def test_an_option_that_cannot_be_read_ends_with_code_2(
    small: SmallLake, run: Run, options: list[str]
) -> None:
    ended = run(*options)
    assert ended.code == 2
    assert "error: " in ended.err
    assert options[0] in ended.err
    assert "_date" not in ended.err
    assert nothing_was_spent(small)


def test_a_file_that_is_not_unicode_gets_one_line(small: SmallLake, run: Run) -> None:
    ask_in_file(small, "").write_bytes(QUESTION.encode("latin-1", "replace"))
    ended = run()
    assert ended.code == 2
    assert "cannot be read as TOML" in ended.error


def test_a_missing_secret_gets_one_line(small: SmallLake, run: Run) -> None:
    (small.root / "conf" / "secret").unlink()
    ended = run()
    assert ended.code == 2
    assert "openssl rand -hex 32" in ended.error
    assert nothing_was_spent(small)


def test_a_dataset_without_a_snapshot_gets_the_command_that_makes_one(
    small: SmallLake, run: Run
) -> None:
    shutil.rmtree(small.lake.tables.snapshots)
    ended = run()
    assert ended.code == 2
    assert "--publish" in ended.error


def test_a_snapshot_that_is_gone_gets_one_line(small: SmallLake, run: Run) -> None:
    table = DeltaTable(small.dataset.table.engagements)
    table.delete("user_id = 'u1'")
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    ended = run()
    assert ended.code == 2
    assert "snapshot 1: engagements" in ended.error
    assert nothing_was_spent(small)


def test_a_window_past_the_retention_gets_one_line(small: SmallLake, run: Run) -> None:
    file = small.root / "conf" / "datasets" / "clips.toml"
    text = file.read_text(encoding="utf-8").replace("36000", "30")
    file.write_text(text, encoding="utf-8")
    ended = run()
    assert ended.code == 2
    assert "may not be read any more" in ended.error
    assert nothing_was_spent(small)


# --- refused, served, quoted: all without Spark ---------------------------------------------------


def test_a_refusal_ends_with_code_3_and_says_what_is_left_until_when(
    small: SmallLake, run: Run
) -> None:
    file = small.root / "conf" / "datasets" / "clips.toml"
    file.write_text(lakes.changed(file.read_text(), units="10"), encoding="utf-8")
    ended = run()
    assert ended.code == 3
    assert re.search(
        r"marketing on clips.* 11 units.* 10 units.*resets on \d{4}-\d\d-01", ended.error
    )
    assert nothing_was_spent(small)


@pytest.fixture
def answered(small: SmallLake, monkeypatch: pytest.MonkeyPatch) -> SmallLake:
    """The lake on which the question was answered, and where nothing can be computed any more."""
    question = small.question(**ANSWERED)
    account = question.account, "research", utc_now()
    accounts.open_account(small.ledger(), small.dataset, *account)  # or it would be gone
    from dp_udfs import pandas_udfs
    from jobs.lake import releases

    mechanism = question.mechanism
    nothing = pandas_udfs.ARROW_ANSWER_SCHEMA.empty_table()
    key = question.noise_key(TEST_SECRET)
    answer = pandas_udfs.complete(nothing, mechanism, key, question.cohorts)
    releases.write(small.lake.tables.releases, question, releases.from_answer(question, answer))
    monkeypatch.setattr("jobs.lake.session.get_session", _no_spark)
    return small


ANSWERED: dict[str, Any] = {
    "element": "device",
    "window": {"from": lakes.AS_OF - timedelta(days=20), "to": lakes.AS_OF},
}
IN_FILE = """
dataset = "clips"
element = "device"
measure = "users"
window = { from = 2024-02-10, to = 2024-03-01 }
"""


def _no_spark(*_: Any) -> None:
    raise AssertionError("Spark was started where it is not needed")


def test_a_stored_answer_is_printed_as_text_and_as_json(answered: SmallLake, run: Run) -> None:
    ask_in_file(answered, IN_FILE)
    ended = run()
    assert ended.code == 0
    assert re.search(r"rank +element +noisy count +low +high", ended.out)
    assert re.search(r" 1 +(phone|radio|tablet|tv|watch) +-?\d", ended.out)
    assert "charged units: 1" in ended.out

    told = json.loads(run(format="json").out)
    assert told["charged_units"] == 0
    assert told["units_left"] == 2999
    assert [row["rank"] for row in told["rows"] if row.get("rank")] == [1, 2, 3, 4, 5]
    theirs = json.loads(run(format="json", analyst="research", run_id="Ünïcode ☃").out)
    assert theirs["charged_units"] == 1
    assert theirs["rows"] == told["rows"]
    assert theirs["run_id"] == "Ünïcode ☃"
    assert theirs["resets_at"].endswith("-01")
    assert len(theirs["ledger_head"]) == 64


def test_a_quote_never_opens_the_table_and_tells_the_same_without_it(
    small: SmallLake, run: Run
) -> None:
    asked = run(program="quote", format="json", runs="30")
    shutil.rmtree(small.dataset.table.engagements)
    again = run(program="quote", format="json", runs="30")
    assert asked == again
    assert asked.code == 0
    told = json.loads(asked.out)
    assert told["rows"][0]["units"] == 30 * 11
    assert told["rows"][0]["calls"] == 30
    assert told["rows"][0]["threshold_offset"] > 1
    assert told["left"].startswith("3000 of 3000 units, 300 of 300 calls; resets on ")
    assert "DP for the whole allowance of a period" in told["guarantee"]
    assert nothing_was_spent(small)


def test_a_quote_is_the_same_whatever_the_rows_are(
    small: SmallLake, run: Run, tmp_path: Path
) -> None:
    other = lakes.make(
        tmp_path / "other", TEST_SECRET, lakes.changed(lakes.CLIPS, retention_days="36000")
    )
    other.publish()
    said = [run(program="quote", conf=conf).out for conf in (small.lake.source, other.lake.source)]
    assert said[0] == said[1]
    assert "threshold offset" in said[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"analyst": "sales"}, "analyst 'sales' is not declared"),
        ({"snapshot": "9"}, "snapshot 9 of clips: not published"),
        ({"runs": "0"}, "runs"),
        ({"runs": "-3"}, "runs"),
        ({"k": "13"}, "k: 13 is above max_candidates = 12"),
    ],
    ids=str,
)
def test_a_quote_of_nonsense_gets_one_line(
    run: Run, settings: dict[str, str | None], words: str
) -> None:
    ended = run(program="quote", **settings)
    assert ended.code == 2
    assert words in ended.error


@pytest.mark.parametrize("program", ["release_counts", "quote"])
def test_help_says_what_there_is(run: Run, program: str) -> None:
    ended = run("--help", program=program, file=None)
    assert ended.code == 0
    for option in ("--conf", "--format", "--analyst", "--snapshot", "--max-candidates"):
        assert option in ended.out


# --- in processes of their own --------------------------------------------------------------------


def test_two_commands_for_one_question_at_once_are_charged_once_and_say_the_same(
    small: SmallLake, tmp_path: Path
) -> None:
    """One by python, one by spark-submit, the secret from the environment; nothing holds it."""
    settings = small.root / "conf" / "local.toml"
    settings.write_text(settings.read_text().replace('file = "conf/secret"', 'environment = "KEY"'))
    events = tmp_path / "events"
    events.mkdir()
    spark_submit = ["spark-submit", "--master", "local[1]"]
    for name, value in {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        spark_submit += ["--conf", f"{name}={value}"]
    arguments = ["jobs/release_counts.py", str(small.root / "conf" / "fünf Titel.toml")]
    arguments += ["--analyst", "marketing", "--conf", small.lake.source, "--format", "json"]
    environment = {"KEY": TEST_SECRET.hex()}
    started = [
        programs.start(*command, *arguments, environment=environment)
        for command in (["python"], spark_submit)
    ]
    ends = [programs.ended(process) for process in started]
    assert [ended.code for ended in ends] == [0, 0], ends
    told = [json.loads(ended.out) for ended in ends]
    assert told[0]["rows"] == told[1]["rows"]
    assert len(small.entries("allocate")) == len(small.entries("settle")) == 1
    assert told[0]["rows"]

    logs = [path.read_bytes() for path in events.rglob("*") if path.is_file()]
    assert any(b"MapInArrow" in log for log in logs)
    said = [*logs, *(ended.err.encode() for ended in ends)]
    key = small.question(k=5, max_candidates=12, window=ANSWERED["window"]).noise_key(TEST_SECRET)
    for hidden in (TEST_SECRET, key):
        for form in (hidden.hex().encode(), hidden, repr(hidden)[2:-1].encode()):
            assert all(form not in content for content in said)
    assert all(USER.encode() not in content for content in said)


BROKEN = """
import sys
from jobs.lake import program, questions, settings
from jobs.release_counts import compute
from tests import lakes

def main(_):
    lake = settings.load_lake(sys.argv[1])
    dataset = settings.load_dataset("clips", lake)
    question = questions.pin(lake, dataset, lakes.question(element="score", k=2), None)
    compute(question, bytes(range(32)))

program.run(main, program.parser(None), [])
"""


def test_a_row_that_spark_cannot_read_is_not_quoted_anywhere(small: SmallLake) -> None:
    """Past all checks: a column of numbers that holds text, which Spark's error would quote."""
    from deltalake import write_deltalake

    table = lakes.engagement_table(small.dataset, [watched(USER, score=3)])
    place = table.schema.get_field_index("score")
    broken = table.set_column(place, "score", [[f"text of {USER}"]])
    path = small.dataset.table.engagements
    write_deltalake(path, broken, mode="overwrite", schema_mode="overwrite")
    small.publish(lakes.AS_OF + timedelta(days=1))
    ended = programs.ended(programs.start("python", "-c", BROKEN, small.lake.source))
    assert ended.code == 1
    assert "read, bound, count and add noise failed in pyspark" in ended.error
    assert USER not in ended.err
    assert len(ended.err.splitlines()) < 6


def test_a_refusal_needs_no_java(small: SmallLake) -> None:
    ended = programs.ended(
        programs.start(
            "python",
            "-m",
            "jobs.release_counts",
            str(small.root / "conf" / "fünf Titel.toml"),
            "--analyst=sales",
            f"--conf={small.lake.source}",
            environment={"JAVA_HOME": "/nowhere", "SPARK_HOME": "/nowhere", "PATH": ""},
        )
    )
    assert ended.code == 2
    assert "not declared" in ended.error
    assert len(ended.err.splitlines()) == 1


def test_a_dry_run_says_the_price_and_spends_nothing(small: SmallLake, run: Run) -> None:
    ended = run("--dry-run", format="json")
    assert ended.code == 0
    assert "units and 1 call" in json.loads(ended.out)["reserve"]
    assert nothing_was_spent(small)
    assert run("--dry-run", analyst="marketing", k="0").code == 2
    assert run("--dry-run", analyst="nobody").code == 2


def test_a_dry_run_prices_in_the_units_of_the_account(small: SmallLake, run: Run) -> None:
    first = json.loads(run("--dry-run", format="json").out)["reserve"]
    account = small.question(k=5, max_candidates=12).account
    terms = replace(accounts.terms_of(small.dataset), epsilon="0.5")  # a third of the file's
    month = utc_now().date().replace(day=1)
    small.ledger().open_account("marketing", account, month, 900, 9, terms=terms)
    again = json.loads(run("--dry-run", format="json").out)["reserve"]
    assert (first, again) == ("11 units and 1 call", "99 units and 1 call")
