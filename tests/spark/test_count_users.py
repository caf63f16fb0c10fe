"""Users are counted privately, numbered once, and their blocks exist up to a lower bound only."""

from datetime import date
from pathlib import Path

from pyspark.sql import SparkSession

from dp_udfs.budget import RenyiCurve
from jobs import count_users
from jobs.lake import joining, purging, tables
from jobs.lake.ledger import Block
from tests import lakes
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake

USERS = """
[users]
blocks = "user_time"
per_block = 2
begins = 2024-02-01
days = 10
periods = 4
count_epsilon = 90       # at 90 there is hardly any noise
beta = 0.001
cost = "exact"
epsilon = 100
delta = 1e-7
alphas = ["inf"]
"""


def watch(small: SmallLake, day: date, *users: str) -> None:
    small.append([lakes.watched(user, event_date=day) for user in users])


def blocks(small: SmallLake) -> list[Block]:
    return list(small.ledger().blocks())


def numbers(spark: SparkSession, small: SmallLake) -> dict[str | None, int]:
    rows = tables.read(spark, small.dataset.table.numbers).collect()
    return {row["user_id"]: row["number"] for row in rows if row["user_id"] is not None}


def test_each_user_counts_once_whoever_dies_or_leaves_and_blocks_end_at_the_bound(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = lakes.make(tmp_path, TEST_SECRET, lakes.CLIPS + USERS)
    watch(small, date(2024, 2, 3), "u1", "u2", "u3")
    watch(small, date(2024, 2, 13), "u1", "u5")  # in a period that is not over
    snapshot = small.publish(as_of=date(2024, 2, 12))
    joining.join(spark, small.dataset, snapshot, 1, date(2024, 2, 11))  # and then it died
    known = numbers(spark, small)
    (counted,) = count_users.count_users(small.lake, small.dataset, spark)
    assert counted.bound == 3
    assert numbers(spark, small) == known

    last = max(known, key=lambda user: known[user])
    small.opt_out(str(last))
    left = tables.state(str(small.dataset.table.opt_outs))
    purging.delete_people(spark, small.dataset.table.numbers, "user_id", left)
    assert last not in numbers(spark, small)
    watch(small, date(2024, 2, 3), "u4")  # late
    small.publish(as_of=date(2024, 2, 22))
    (counted,) = count_users.count_users(small.lake, small.dataset, spark)
    assert sorted(numbers(spark, small).values()) == [0, 1, 3, 4]  # nobody gets the number 2 again
    assert (counted.sum, counted.bound) == (4, 4)  # over both periods, without who left
    assert count_users.count_users(small.lake, small.dataset, spark) == []
    assert [each.block_id.partition(":")[2] for each in blocks(small)] == [
        "2024-02-01+10:users 0+2",  # of the third user nobody may speak
        "2024-02-11+10:users 0+2",
        "2024-02-11+10:users 2+2",
    ]
    assert {each.filter.capacity for each in blocks(small)} == {RenyiCurve.capacity(10)}  # paid
