"""The grants name the tables that there are, and let nobody write or read what they must not."""

import re
from collections import defaultdict
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from jobs.lake import releases
from jobs.lake.ledger import Ledger
from jobs.lake.settings import LakeTables, load_dataset, load_lake

CONF = Path(__file__).parents[3] / "conf"
GRANTS = (CONF / "databricks" / "grants.sql").read_text()
STATEMENTS = [
    " ".join(statement.split())
    for statement in re.sub(r"--.*", "", GRANTS).split(";")
    if statement.strip()
]
GRANT = re.compile(r"GRANT (.+) ON (TABLE|VIEW|SCHEMA|CATALOG|EXTERNAL LOCATION) (\S+) TO `(.+)`")
ANALYSTS = {"marketing", "research"}


def granted() -> dict[tuple[str, str], set[str]]:
    """What each name may do with each object."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for statement in STATEMENTS:
        if statement.startswith("GRANT"):
            match = GRANT.fullmatch(statement)
            assert match, statement
            rights, _, thing, who = match.groups()
            found[who, thing] |= set(rights.split(", "))
    return found


def test_exactly_the_tables_that_there_are_are_named() -> None:
    named = set(re.findall(r"ON TABLE discreet\.(books|rows)\.(\w+)", GRANTS))
    of_dataset = load_dataset("movielens", load_lake(CONF / "local.toml")).table
    places = of_dataset.model_dump(include={"engagements", "opt_outs", "quarantine"}).values()
    rows = {Path(place).name for place in (*places, of_dataset.purged) if place}
    assert named == {
        *(("books", name) for name in LakeTables.model_fields),
        *(("rows", name) for name in rows),
    }


def test_only_the_programs_write_and_nobody_writes_the_books_through_spark() -> None:
    for (who, thing), rights in granted().items():
        if {"MODIFY", "WRITE FILES", "ALL PRIVILEGES"} & rights:
            assert who == "discreet-jobs"
            assert not thing.startswith("discreet.books.")


def test_analysts_see_their_own_answers_and_nothing_else() -> None:
    for (who, thing), rights in granted().items():
        if who in ANALYSTS:
            assert rights <= {"SELECT", "USE SCHEMA", "USE CATALOG"}
            assert thing == "discreet" or thing.startswith("discreet.answers")


@pytest.mark.parametrize("view", ["published", "charges"])
def test_the_views_show_what_belongs_to_the_analyst(tmp_path: Path, view: str) -> None:
    ledger = Ledger(tmp_path / "ledger")
    for analyst in ("marketing", "research"):
        ledger.open_account(analyst, "films", date(2020, 1, 1), 100, 10)
        ledger.allocate(analyst, analyst=analyst, dataset="films", units=5, calls=1)
        ledger.settle(analyst, units=3, calls=1, publish=(f"of {analyst}", "digest"))
    rows = [
        {"label": f"of {analyst}", "row_kind": kind, "element": analyst}
        for analyst in ("marketing", "research", "nobody")
        for kind in ("element", "stop", "manifest")
    ]
    write_deltalake(tmp_path / "releases", pa.Table.from_pylist(rows, schema=releases.SCHEMA))
    (sql,) = [text for text in STATEMENTS if f"VIEW discreet.answers.{view} AS" in text]
    query = sql.partition(" AS ")[2].replace("discreet.books.", "")
    query = re.sub(r"is_account_group_member\((\S+)\)", r"\1 = 'marketing'", query)
    builder = QueryBuilder()
    for name in ("ledger", "releases"):
        builder = builder.register(name, DeltaTable(tmp_path / name))
    found = pa.table(builder.execute(query)).to_pylist()
    assert {row["analyst"] for row in found} == {"marketing"}
    assert len(found) == (1 if view == "published" else 4)
