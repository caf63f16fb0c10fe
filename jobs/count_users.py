"""Count users privately, period by period, and open the privacy blocks of those who surely exist.

    python -m jobs.count_users --dataset films

Under user privacy even the number of users is private. A tree counter tells it after each period of
[users] for one price, which every block pays when it is created. Blocks are opened up to a lower
bound on the count and no further, so that a list of blocks tells no more than the bound. Run it on
the schedule of the snapshots; a period counts once, in the first snapshot after its end. Killed, it
is run again.
"""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dp_udfs import counters, rng
from dp_udfs.budget import RenyiCurve
from dp_udfs.errors import SettingsError
from jobs.lake import accounts, claims, joining, program, reports, snapshots, tables
from jobs.lake.balances import UserCount
from jobs.lake.decisions import BlockOpening, Counted
from jobs.lake.ledger import Ledger
from jobs.lake.questions import derive_key
from jobs.lake.session import get_session
from jobs.lake.settings import DatasetSettings, LakeSettings, load_dataset, load_lake
from jobs.lake.tables import Snapshot
from jobs.lake.user_settings import UserSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(options: argparse.Namespace) -> None:
    """Count what is due and print the bound."""
    lake = load_lake(options.conf)
    dataset = load_dataset(options.dataset, lake)
    counted = count_users(lake, dataset)
    known = claims.open_ledger(lake).user_count(accounts.account_of(lake, dataset))
    facts = {
        "dataset": dataset.name,
        "counted": len(counted),
        "periods": len(known.sums) if known else 0,
        "users_at_least": known.bound if known else 0,
    }
    reports.show(options, [_shown(each) for each in counted], facts)


def count_users(
    lake: LakeSettings, dataset: DatasetSettings, spark: "SparkSession | None" = None
) -> list[Counted]:
    """Count the periods that are over and not yet counted; each is one entry of the ledger.

    Parameters
    ----------
    spark : SparkSession, optional
        The caller's session; else the active one, else a local one.

    Raises
    ------
    SettingsError
        If the dataset file has no [users], or counting was begun on other terms.

    Notes
    -----
    Privacy: all counts together are count_epsilon-DP between tables that differ in one user. Noise
    is exact, and keyed by the table of numbers as it is read: each sum is drawn and published once.
    """
    users = dataset.users
    if users is None:
        raise SettingsError(
            f"dataset {dataset.name}: users: missing; add [users] as README.md shows it"
        )
    ledger, snapshot = claims.open_ledger(lake), snapshots.latest(lake, dataset)
    account = snapshot.tables["engagements"].table_id
    counted: list[Counted] = []
    while True:
        known = ledger.user_count(account) or UserCount(lake.region, account, _terms(users))
        period = len(known.sums) + 1
        if period > users.periods or users.window(period)[1] > snapshot.as_of:
            return counted
        with program.progress("start Spark"):
            spark = spark or get_session("discreet users")
        tables.verify(snapshot)
        found = _count(spark, lake, dataset, snapshot, known, period)
        if users.queue is not None:
            ledger.open_queue(account, users.queue.read())
        ledger.count_users(found, _openings(users, account, period, found.bound))
        counted.append(_recorded(ledger, found))


def _count(
    spark: "SparkSession",
    lake: LakeSettings,
    dataset: DatasetSettings,
    snapshot: Snapshot,
    known: UserCount,
    period: int,
) -> Counted:
    """Draw the sum of one period, and bound the number of users by all sums so far."""
    users = dataset.users
    assert users is not None
    with program.progress("number the users"):
        numbers = joining.join(spark, dataset, snapshot, period, users.window(period)[1])
        true_sum = joining.count(spark, numbers, users.terms.summed(period))
    source = rng.keyed(
        derive_key(lake.read_secret(), "users"),
        numbers.table_id,
        numbers.digest,
        users.model_dump_json(),
    )
    noisy = users.terms.noisy_sum(true_sum, period, source)
    sums = dict(enumerate((*known.sums, noisy), start=1))
    estimate = users.terms.estimate(sums, period)
    bound = users.terms.lower_bound(estimate, period, users.beta, known.bound)
    return Counted(known.dataset, _terms(users), period, noisy, bound, snapshot.snapshot_id)


def _recorded(ledger: Ledger, found: Counted) -> Counted:
    """Return the count that stands in the ledger: of two processes, only one may tell its sum."""
    known = ledger.user_count(found.dataset)
    assert known is not None
    return found._replace(sum=known.sums[found.period - 1], bound=known.bound)


def _openings(users: UserSettings, account: str, period: int, bound: int) -> Iterator[BlockOpening]:
    """List the blocks that may exist: buckets of users wholly below the bound."""
    capacity = RenyiCurve.capacity(users.capacity)
    days = [day.isoformat() for day in users.window(period)] if users.blocks == "user_time" else []
    for bucket in range(counters.nameable_buckets(bound, users.per_block)):
        first = bucket * users.per_block
        details: dict[str, Any] = {"users": [first, first + users.per_block]}
        details |= {"from": days[0], "to": days[1]} if days else {}
        when = f"{days[0]}+{users.days}:" if days else ""
        yield BlockOpening(
            block_id=f"{account}:{when}users {first}+{users.per_block}",
            dataset=account,
            capacity=capacity,
            alphas=users.alphas,
            mode="enforce",
            details=details,
        )


def _terms(users: UserSettings) -> dict[str, Any]:
    """Say on what terms users are counted: what never changes once it has begun."""
    said: dict[str, Any] = users.model_dump(mode="json")
    return said


def _shown(counted: Counted) -> dict[str, Any]:
    """Arrange one count for readers: all of it is private already."""
    return {
        "period": counted.period,
        "noisy_sum": counted.sum,
        "users_at_least": counted.bound,
        "snapshot": counted.snapshot,
    }


if __name__ == "__main__":
    parser = program.parser(__doc__)
    parser.add_argument("--dataset", required=True, help="dataset file's name, without .toml")
    program.run(main, parser)
