"""The views say the same in Spark as in DataFusion, and as the ledger itself."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from jobs.lake import views
from jobs.lake.entry_log import EntryLog
from jobs.lake.ledger import Ledger
from jobs.lake.replication import replicate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
FILMS = "0b6a"  # a table's id


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    kept = Ledger(tmp_path / "ledger", clock=lambda: NOON)
    for analyst in ("marketing", "research"):
        kept.open_account(analyst, FILMS, date(2026, 11, 1), 100, 10, period_end=date(2026, 12, 1))
    kept.open_account("research", FILMS, date(2026, 11, 1), 30, 10, reason="a smaller study")
    for run_id in ("published", "settled", "expired", "given back", "open"):
        kept.allocate(run_id, analyst="research", dataset=FILMS, units=10, calls=1)
        if run_id == "published":
            kept.settle(run_id, units=7, calls=1, publish=("l1", "d1"))
        if run_id == "settled":
            kept.settle(run_id, units=2, calls=1)
        if run_id == "expired":
            kept.expire(run_id, "not heard of for a day")
        if run_id == "given back":
            kept.give_back(run_id, "the session did not start")
    return kept


@pytest.fixture
def shares(tmp_path: Path) -> Ledger:
    """Two regions with shares of their own, part of which was sent."""
    west, east = (Ledger(tmp_path / name, name, lambda: NOON) for name in ("west", "east"))
    for region in (west, east):
        region.open_account(
            "research", FILMS, date(2026, 11, 1), 50, 5, period_end=date(2026, 12, 1), escrow=True
        )
        region.allocate(f"in {region.region}", analyst="research", dataset=FILMS, units=9, calls=1)
    west.send_share("t1", "research", FILMS, to="east", units=20, calls=2)
    replicate([west, east])
    west.update_budget("research", FILMS, units=40, reason="a study")
    west.send_share("t2", "research", FILMS, to="east", units=1, calls=1)
    replicate([west, east])
    return west


@pytest.mark.parametrize("which", ["ledger", "shares"])
def test_both_engines_tell_the_same(
    request: pytest.FixtureRequest, spark: "SparkSession", which: str
) -> None:
    path = request.getfixturevalue(which).path

    def in_spark(sql: str) -> pa.Table:
        spark.read.format("delta").load(path).createOrReplaceTempView("ledger")
        return spark.sql(sql).toArrow()

    for view in (views.learned, views.left):
        told = view(EntryLog(path).query)
        assert view(in_spark).to_pylist() == told.to_pylist()
        assert told.num_rows


def test_each_share_has_its_own_row(shares: Ledger) -> None:
    rows = views.left(EntryLog(shares.path).query).to_pylist()
    assert [(row["share"], row["allowed_units"], row["units_left"]) for row in rows] == [
        ("east", 70, 61),  # and one unit that west has sent and not yet heard of again
        ("west", 39, 30),
    ]


def test_the_views_tell_who_learned_how_much_and_what_is_left(ledger: Ledger) -> None:
    query = EntryLog(ledger.path).query
    ends = {
        row["run_id"]: (row["ended_by"], row["charged_units"], row["charged_calls"], row["label"])
        for row in views.learned(query).to_pylist()
    }
    assert ends == {
        "published": ("settle", 7, 1, "l1"),
        "settled": ("settle", 2, 1, None),
        "expired": ("expire", 10, 1, None),
        "given back": ("give_back", 0, 0, None),
        "open": ("open", 10, 1, None),
    }
    for row in views.left(query).to_pylist():
        budget = ledger.get_budget(row["analyst"], row["dataset"])
        assert (row["allowed_units"], row["allowed_calls"]) == (budget.units, budget.calls)
        assert (row["units_left"], row["calls_left"]) == (budget.units_left, budget.calls_left)
