"""Ledgers of two regions on disk: copied, cut off, healed, killed half-way, restored."""

import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_udfs.budget import Loss
from dp_udfs.errors import (
    BudgetExhaustedError,
    ClaimError,
    InvalidParameterError,
    LedgerConflictError,
    SettingsError,
)
from jobs.lake import entry_log, evidence, journal, replication
from jobs.lake.entry_log import EntryLog
from jobs.lake.ledger import Ledger, Published
from jobs.lake.releases import Release
from jobs.lake.replication import replicate
from jobs.replicate_ledger import named, simulated

NOVEMBER, DECEMBER = date(2026, 11, 1), date(2026, 12, 1)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
FILMS = "0b6a"  # a table's id


def region(folder: Path, name: str) -> Ledger:
    return Ledger(folder / name, name, lambda: NOON)


def opened(ledger: Ledger, units: int, *, escrow: bool = False) -> Ledger:
    ledger.open_account("research", FILMS, NOVEMBER, units, 50, period_end=DECEMBER, escrow=escrow)
    return ledger


@pytest.fixture
def shared(tmp_path: Path) -> tuple[Ledger, Ledger]:
    """Two regions that opened the same account before they heard of each other."""
    west, east = (opened(region(tmp_path, name), 100) for name in ("west", "east"))
    replicate([west, east])
    return west, east


@pytest.fixture
def escrow(tmp_path: Path) -> tuple[Ledger, Ledger]:
    """Two regions with a share of 50 units each."""
    west, east = (opened(region(tmp_path, name), 50, escrow=True) for name in ("west", "east"))
    replicate([west, east])
    return west, east


def ask(ledger: Ledger, run_id: str = "r1", units: int = 10) -> None:
    ledger.allocate(run_id, analyst="research", dataset=FILMS, units=units, calls=1)


def left(ledger: Ledger) -> int:
    return ledger.get_budget("research", FILMS).units_left


def send(ledger: Ledger, to: str, units: int = 20, transfer_id: str = "t1") -> None:
    ledger.send_share(transfer_id, "research", FILMS, to=to, units=units, calls=1)


def ids(ledger: Ledger) -> set[str]:
    return set(ledger.entries()["entry_id"].to_pylist())


def sound(*ledgers: Ledger) -> bool:
    return all(evidence.audit(EntryLog(ledger.path)).findings == [] for ledger in ledgers)


# Copies


def test_each_region_sees_what_the_other_granted(shared: tuple[Ledger, Ledger]) -> None:
    west, east = shared
    ask(west)
    ask(east, "r2", units=30)
    assert (left(west), left(east)) == (90, 70)
    told = replicate([west, east])
    assert [(copied.ledger, copied.copied) for copied in told] == [("west", 1), ("east", 1)]
    assert (left(west), left(east)) == (60, 60)
    west.settle("r1", units=5, calls=1, publish=("label", "digest"))
    replicate([east, west])
    assert left(east) == left(Ledger(east.path, "east", lambda: NOON)) == 65
    assert east.released_labels() == [Published("label", "research", "r1", "digest")]
    assert [copied.copied for copied in replicate([west, east])] == [0, 0]
    assert ids(west) == ids(east)
    assert sound(west, east)


def test_a_run_id_that_two_regions_used_at_once_is_charged_twice(
    shared: tuple[Ledger, Ledger],
) -> None:
    west, east = shared
    ask(west)
    ask(east, units=30)
    replicate([west, east])
    assert left(west) == left(east) == 60
    west.settle("r1", units=1, calls=1)
    east.give_back("r1", "nothing was read")
    replicate([west, east])
    assert left(west) == left(east) == 99


def test_a_claim_is_closed_where_it_was_granted_and_nowhere_else(
    shared: tuple[Ledger, Ledger],
) -> None:
    west, east = shared
    ask(west)
    replicate([west, east])
    found = east.find("r1")
    assert found is not None
    assert found.region == "west"
    assert east.open_claims() == ()
    actions: list[Callable[[], object]] = [
        lambda: ask(east),
        lambda: east.settle("r1", units=1, calls=1),
        lambda: east.release("r1", label="label", digest="digest"),
        lambda: east.expire("r1", "why"),
    ]
    for action in actions:
        with pytest.raises(ClaimError, match="has its claim in region west"):
            action()
    west.give_back("r1", "nothing was read")
    replicate([west, east])
    ask(east)
    assert left(east) == 90


def test_segments_carries_and_copies_change_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_log, "SEGMENT", 5)
    monkeypatch.setattr(entry_log, "COMPACT_EVERY", 4)
    monkeypatch.setattr(journal, "COPIES", 3)
    west, east = opened(region(tmp_path, "west"), 300), region(tmp_path, "east")
    for number in range(11):
        ask(west, f"w{number}")
        west.settle(f"w{number}", units=number, calls=1)
        if number % 4 == 0:
            replicate([west, east])
            ask(east, f"e{number}")
    replicate([west, east])
    kinds = east.entries()["kind"].to_pylist()
    assert kinds.count("carry") > 2
    fresh = [Ledger(each.path, each.region, lambda: NOON) for each in (west, east)]
    assert {left(each) for each in (west, east, *fresh)} == {300 - sum(range(11)) - 30}
    assert fresh[1].find("w0") == west.find("w0")
    assert fresh[0].find("e0") == east.find("e0")
    assert sound(west, east)


def test_a_third_ledger_gets_everything_from_either(
    shared: tuple[Ledger, Ledger], tmp_path: Path
) -> None:
    west, east = shared
    ask(west)
    ask(east, "r2")
    north = region(tmp_path, "north")
    replicate([north, west])
    replicate([east, north])
    replicate([west, north, east])
    assert ids(north) == ids(west) == ids(east)
    assert left(north) == left(west) == left(east) == 80


@settings(max_examples=8)
@given(order=st.lists(st.sampled_from([(0, 1), (1, 0), (0, 2), (2, 1), (1, 2)]), max_size=6))
def test_tables_agree_in_any_order_and_after_any_repetition(
    tmp_path_factory: pytest.TempPathFactory, order: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("regions")
    ledgers = [opened(region(folder, name), 100) for name in ("west", "east", "north")]
    for number, (to, source) in enumerate(order):
        ledgers[to].copy_from(replication.read(ledgers[source]))
        ask(ledgers[source], f"r{number}", units=5)
    for _ in range(2):
        replicate(ledgers)
    assert len({frozenset(ids(ledger)) for ledger in ledgers}) == 1
    assert {left(ledger) for ledger in ledgers} == {100 - 5 * len(order)}


def test_what_cannot_be_folded_is_not_let_in(shared: tuple[Ledger, Ledger]) -> None:
    west, east = shared
    ask(west)
    entries = replication.read(west)
    with pytest.raises(LedgerConflictError, match="does not follow"):
        east.copy_from(
            [*entries[:-1], entries[-1].__class__(**vars(entries[-1]) | {"entry_no": 9})]
        )
    assert left(east) == 100
    assert sound(east)


def test_an_answer_that_was_paid_for_elsewhere_is_free(shared: tuple[Ledger, Ledger]) -> None:
    west, east = shared
    ask(west)
    west.settle("r1", units=5, calls=1, publish=("l1", "d1"))
    replicate([west, east])
    ask(east, "r2")
    east.settle("r2", units=0, calls=0, publish=("l1", "d1"))
    replicate([west, east])
    answers = {"l1": Release("l1", pa.table({}), Loss(5, 1), "d1")}
    for ledger in shared:
        log = EntryLog(ledger.path)
        assert evidence.audit(log, region=ledger.region, answers=answers).findings == []


# Cut links


def test_a_cut_link_overspends_what_is_shared_and_never_what_is_in_escrow(tmp_path: Path) -> None:
    eventual, escrow = (
        replication.simulate(tmp_path / str(mode), escrow=mode) for mode in (False, True)
    )
    assert eventual["granted_west"] == eventual["granted_east"] == 90
    assert eventual["overspent"] == 80
    assert escrow["granted_west"] + escrow["granted_east"] == 100
    assert escrow["overspent"] == escrow["granted_after_healing"] == 0
    assert eventual["granted_after_healing"] == 0


def test_an_overspend_of_what_is_shared_is_named(shared: tuple[Ledger, Ledger]) -> None:
    for ledger in shared:
        ask(ledger, ledger.region, units=80)
    replicate(shared)
    for ledger in shared:
        (found,) = evidence.audit(EntryLog(ledger.path)).findings
        assert found.finding == "allocate takes more than was left to research"
        with pytest.raises(BudgetExhaustedError):
            ask(ledger, "one more", units=1)


# Shares


def test_a_share_is_spent_where_it_is(escrow: tuple[Ledger, Ledger]) -> None:
    west, east = escrow
    with pytest.raises(BudgetExhaustedError):
        ask(west, units=51)
    ask(west, units=50)
    replicate([west, east])
    assert (left(west), left(east)) == (0, 50)


def test_what_is_sent_leaves_at_once_and_arrives_once(escrow: tuple[Ledger, Ledger]) -> None:
    west, east = escrow
    for _ in range(2):
        send(west, "east")
        replicate([west, east])
        replicate([east, west])
    east.receive_shares()
    assert (left(west), left(east)) == (30, 70)
    ask(east, units=70)
    with pytest.raises(BudgetExhaustedError):
        ask(west, "r2", units=31)
    assert sound(west, east)


def test_more_than_what_is_left_is_not_sent(escrow: tuple[Ledger, Ledger]) -> None:
    west, _ = escrow
    ask(west, units=40)
    with pytest.raises(BudgetExhaustedError):
        send(west, "east", units=11)
    send(west, "east", units=10)
    with pytest.raises(ClaimError, match="was another one"):
        send(west, "east", units=9)
    for to, why in (("west", "no share to move"), ("", "to")):
        with pytest.raises((SettingsError, InvalidParameterError), match=why):
            send(west, to, units=0, transfer_id="t2")


def test_a_crash_between_debit_and_credit_loses_nothing(escrow: tuple[Ledger, Ledger]) -> None:
    west, east = escrow
    send(west, "east")
    assert (left(west), left(east)) == (30, 50)  # and here everything died
    west, east = (Ledger(each.path, each.region, lambda: NOON) for each in escrow)
    east.copy_from(replication.read(west))
    assert left(east) == 50  # and here again
    replicate([Ledger(each.path, each.region, lambda: NOON) for each in escrow])
    assert (left(west), left(east)) == (30, 70)
    ids_of_credits = [name for name in ids(east) if ":credit:" in name]
    assert len(ids_of_credits) == 1


def test_a_sender_that_was_restored_replicates_and_has_not_what_it_sent(
    escrow: tuple[Ledger, Ledger], tmp_path: Path
) -> None:
    west, east = escrow
    shutil.copytree(west.path, tmp_path / "backup")
    send(west, "east")
    replicate([west, east])
    restored = Ledger(tmp_path / "backup", "west", lambda: NOON)
    assert left(restored) == 50  # what it believes
    replicate([restored, east])
    assert (left(restored), left(east)) == (30, 70)
    ask(restored, "r9")
    replicate([restored, east])
    assert sound(restored, east)


def test_a_receiver_that_was_restored_receives_once(
    escrow: tuple[Ledger, Ledger], tmp_path: Path
) -> None:
    west, east = escrow
    shutil.copytree(east.path, tmp_path / "backup")
    send(west, "east")
    replicate([west, east])
    replicate([west, east])
    ask(east, units=60)
    replicate([west, east])
    restored = Ledger(tmp_path / "backup", "east", lambda: NOON)
    replicate([restored, west])
    assert (left(west), left(restored)) == (30, 10)
    assert ids(restored) == ids(west)


def test_a_region_that_spends_before_it_replicates_is_found_out(
    escrow: tuple[Ledger, Ledger], tmp_path: Path
) -> None:
    west, east = escrow
    shutil.copytree(west.path, tmp_path / "backup")
    send(west, "east")
    replicate([west, east])
    restored = Ledger(tmp_path / "backup", "west", lambda: NOON)
    ask(restored, units=50)
    for pair in ([restored, east], [east, restored]):
        with pytest.raises(LedgerConflictError, match="wrote after a restore without replicating"):
            replicate(pair)


def test_one_account_has_one_mode(escrow: tuple[Ledger, Ledger], tmp_path: Path) -> None:
    north = region(tmp_path, "north")
    replicate([north, *escrow])
    with pytest.raises(SettingsError, match="in mode escrow in region east, west"):
        opened(north, 100)
    with pytest.raises(SettingsError, match="has no account"):
        ask(north)
    opened(north, 10, escrow=True)
    assert left(north) == 10


def test_a_share_can_be_changed_where_it_is(escrow: tuple[Ledger, Ledger]) -> None:
    west, east = escrow
    send(west, "east")
    replicate([west, east])
    west.update_budget("research", FILMS, units=40, reason="a study")
    replicate([west, east])
    assert (left(west), left(east)) == (40, 70)
    assert sound(west, east)


# The program


def test_a_simulation_tells_what_a_cut_link_costs() -> None:
    rows: list[dict[str, Any]] = simulated()
    assert [(row["mode"], row["overspent"]) for row in rows] == [("eventual", 80), ("escrow", 0)]


def test_ledgers_are_named_by_region(tmp_path: Path) -> None:
    west, east = named([f"west={tmp_path}/w=1", f"east={tmp_path}/e"])
    assert (west.region, west.path, east.region) == ("west", f"{tmp_path}/w=1", "east")
    for wrong in (["west=/x"], ["west", "east=/x"], ["west=/x", "west=/y"]):
        with pytest.raises(InvalidParameterError, match="REGION=TABLE"):
            named(wrong)
