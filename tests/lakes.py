"""A small lake for tests: rows in plain Python in, a published snapshot out, and no Spark.

The dataset `clips` has a column for every case: known and unknown domains, bounded or not, arrays,
numbers, NULL, and cohorts that exclude each other, or not, or in part.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import write_deltalake

from jobs.lake import questions, settings, snapshots, toml_files
from jobs.lake.ledger import Ledger, utc_now
from jobs.lake.question_settings import QuestionSettings
from jobs.lake.questions import Question
from jobs.lake.settings import DatasetSettings, LakeSettings
from jobs.lake.tables import Snapshot, TableState
from jobs.release_counts import Outcome, release_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Mapping[str, Any]

AS_OF = date(2024, 3, 1)
NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)

LAKE = """
region = "local"
root = ".."

[tables]
ledger = "lake/ledger"
releases = "lake/releases"
snapshots = "lake/snapshots"

[secret]
file = "conf/secret"
"""

CLIPS = """
name = "clips"
description = "Clips that people watched, for tests"

[table]
engagements = "lake/clips/engagements"
quarantine = "lake/clips/quarantine"
opt_outs = "lake/clips/opt_outs"
privacy_unit = "user"
user_id = "user_id"
user_id_type = "string"
event_date = "event_date"
retention_days = 30
purge_lag_days = 5
bounding_salt = "clips-1"

[budget]
mode = "enforce"
epsilon = 1.5
delta = 0.001
delta_prime = 1e-6
units = 3000
calls = 300
period = "month"
gaussian = true

[columns.title]      # found in the data, any number a person
type = "string"
use = ["element"]
domain = "unknown"
keep_nulls = true

[columns.city]       # found in the data, two a person
type = "string"
use = ["element"]
domain = "unknown"
l0 = 2

[columns.station]    # a number found in the data
type = "bigint"
use = ["element", "filter"]
domain = "unknown"
l0 = 3
keep_nulls = true

[columns.tag]        # several a row
type = "string"
use = ["element"]
many = true
domain = "unknown"
keep_nulls = true

[columns.device]     # from a public list, one a person
type = "string"
use = ["element", "filter"]
domain = ["phone", "radio", "tablet", "tv", "watch"]
l0 = 1

[columns.topic]      # from a public list, several a row
type = "string"
use = ["element"]
many = true
domain = ["art", "food", "music", "news", "sport", "weather"]

[columns.score]
type = "bigint"
use = ["element", "filter"]
domain = [1, 2, 3, 4, 5]

[columns.country]    # one a person; nobody lives in "NO"
type = "string"
use = ["cohort", "filter"]
domain = ["DE", "FR", "NO"]
max_per_user = 1

[columns.club]       # two a person
type = "string"
use = ["cohort"]
domain = ["blue", "green", "red", "yellow"]
max_per_user = 2

[columns.channel]    # any number a person
type = "string"
use = ["cohort"]
domain = ["app", "mail", "web"]

[analysts.marketing]
[analysts.research]
"""

ARROW_TYPES = {"string": pa.string(), "bigint": pa.int64()}


@dataclass
class SmallLake:
    """One lake with the dataset `clips`, and the rows that it holds."""

    lake: LakeSettings
    dataset: DatasetSettings
    rows: list[Row] = field(default_factory=list)
    opt_outs: set[Any] = field(default_factory=set)

    @property
    def root(self) -> Path:
        """Everything lies below it."""
        return Path(self.lake.root)

    def append(self, rows: Sequence[Row], files: int = 1) -> None:
        """Add rows to the engagement table, in so many files."""
        for start in range(files):
            part = list(rows[start::files])
            write_deltalake(
                self.dataset.table.engagements, engagement_table(self.dataset, part), mode="append"
            )
        self.rows = [*self.rows, *rows]

    def opt_out(self, *users: Any) -> None:
        """Let users withdraw their consent."""
        assert self.dataset.table.opt_outs is not None
        kind = ARROW_TYPES[self.dataset.table.user_id_type]
        rows = pa.table({"user_id": pa.array(users, kind)})
        write_deltalake(self.dataset.table.opt_outs, rows, mode="append")
        self.opt_outs |= set(users)

    def publish(self, as_of: date = AS_OF, at: datetime = NOON) -> Snapshot:
        """Publish what is there."""
        return snapshots.publish(self.lake, self.dataset, as_of, at)

    def question(self, snapshot_id: int | None = None, **keys: Any) -> Question:
        """Resolve a question on the newest snapshot, or the one given."""
        named = questions.secret_id(self.lake.read_secret())
        return questions.pin(self.lake, self.dataset, question(**keys), snapshot_id, named)

    def release(
        self,
        spark: "SparkSession | None",
        analyst: str = "marketing",
        *,
        at: datetime = NOON,
        run_id: str | None = None,
        snapshot_id: int | None = None,
        **keys: Any,
    ) -> Outcome:
        """Release the answer to a question."""
        return release_counts(
            self.lake,
            self.dataset,
            question(**keys),
            analyst,
            run_id=run_id,
            snapshot_id=snapshot_id,
            spark=spark,
            clock=lambda: at,
        )

    def ledger(self, at: datetime | None = None) -> Ledger:
        """Open the ledger."""
        return Ledger(self.lake.tables.ledger, self.lake.region, lambda: at or utc_now())

    def entries(self, kind: str) -> list[dict[str, Any]]:
        """List the ledger's entries of one kind."""
        if not Path(self.lake.tables.ledger).exists():
            return []
        return [entry for entry in self.ledger().entries().to_pylist() if entry["kind"] == kind]

    def files(self) -> Iterator[Path]:
        """List everything that was written, except for the tables of rows and the secret."""
        rows = Path(self.dataset.table.engagements).parent
        for path in self.root.rglob("*"):
            if path.is_file() and rows not in path.parents and path.name != "secret":
                yield path


def make(root: Path, secret: bytes, clips: str = CLIPS, **changes: str) -> SmallLake:
    """Write the settings of a lake; `changes` replace whole lines of the dataset file by key."""
    conf = root / "conf"
    (conf / "datasets").mkdir(parents=True, exist_ok=True)
    (conf / "local.toml").write_text(LAKE, encoding="utf-8")
    (conf / "secret").write_text(secret.hex(), encoding="utf-8")
    (conf / "datasets" / "clips.toml").write_text(changed(clips, **changes), encoding="utf-8")
    lake = settings.load_lake(conf / "local.toml")
    made = SmallLake(lake, settings.load_dataset("clips", lake))
    made.append([])
    made.opt_out()
    return made


def changed(text: str, table: str = "", **changes: str) -> str:
    """Replace the first line of a settings file, or from a table on, that sets each key."""
    lines = text.splitlines()
    begin = next(
        n for n, line in enumerate(lines) if line.startswith(f"[{table}]" if table else "")
    )
    for key, value in changes.items():
        ours = range(begin, len(lines))
        place = next(n for n in ours if lines[n].startswith(f"{key} = "))
        lines[place] = f"{key} = {value}"
    return "\n".join(lines) + "\n"


def question(**keys: Any) -> QuestionSettings:
    """Ask for the users of each title in the last thirty days, but for what `keys` say."""
    content = {
        "dataset": "clips",
        "element": "title",
        "measure": "users",
        "window": {"days": 30},
    }
    kept = {key: value for key, value in (content | keys).items() if value is not None}
    return toml_files.build("test", QuestionSettings, kept)


def same_label(
    asked: Question, location: Path, table: pa.Table, partition_by: str | None = None
) -> Question:
    """Ask a question, under one label, of engagements that are stored as other bytes."""
    write_deltalake(location, table, partition_by=partition_by)
    state = TableState(str(location), "one-id", 0, "one-digest")
    tables = {**asked.snapshot.tables, "engagements": state}
    return replace(asked, snapshot=replace(asked.snapshot, tables=tables))


def counts(outcome: Outcome) -> dict[tuple[str, Any], int]:
    """The noisy count of each cohort and element (text, or None)."""
    rows = outcome.rows.to_pylist()
    return {
        (row["cohort"], row["element"]): row["noisy_count"]
        for row in rows
        if row["row_kind"] == "element"
    }


def engagement_table(dataset: DatasetSettings, rows: Sequence[Row]) -> pa.Table:
    """Rows as the table holds them; a column that a row leaves out is NULL there."""
    table = dataset.table
    kinds = {table.event_date: pa.date32(), table.user_id: ARROW_TYPES[table.user_id_type]}
    for name, column in dataset.columns.items():
        kind = ARROW_TYPES[column.type]
        kinds[name] = pa.list_(kind) if column.many else kind
    columns = {
        name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()
    }
    return pa.table(columns)


def watched(user: Any, days_ago: int = 1, **columns: Any) -> Row:
    """One engagement, some days before the snapshot's date."""
    return {"user_id": user, "event_date": AS_OF - timedelta(days=days_ago), **columns}


def many_rows(seed: int = 1, users: int = 60, size: int = 700) -> list[Row]:
    """Rows of all kinds, odd ones too; some are out of every window or cohort."""
    chance = random.Random(seed)
    titles = ["null", "None", "", "Ünïcode ☃", "a | b", *(f"clip {n}" for n in range(25)), None]
    home = {f"u{n}": chance.choice(["DE", "FR", "XX", None]) for n in range(users)}
    rows = []
    for _ in range(size):
        user = f"u{int(users * chance.random() ** 1.5)}" if chance.random() < 0.98 else None
        rows.append(
            watched(
                user,
                chance.randint(-1, 40),
                title=titles[int(len(titles) * chance.random() ** 2)],
                city=chance.choice(["Bonn", "Köln", "Lyon", "Metz", "null", None]),
                station=chance.choice([2**53, 2**53 + 1, -1, 0, 7, None]),
                tag=chance.choice([None, [], [None], ["x"], ["x", "x", "y"], ["y", None], ["z"]]),
                device=chance.choice(["phone", "phone", "tv", "radio", "fax", None]),
                topic=chance.choice([None, [], ["art"], ["art", "food"], ["news", "golf"]]),
                score=chance.choice([1, 2, 3, 4, 5, 5, 9, None]),
                country=home.get(str(user), "DE") if chance.random() < 0.9 else "FR",
                club=chance.choice(["blue", "green", "red", "black", None]),
                channel=chance.choice(["app", "app", "web", "tv", None]),
            )
        )
    return rows
