"""The fold: what entries add up to, against a slow reference, with and without carries."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_udfs.budget import Loss, RenyiCurve
from dp_udfs.errors import LedgerConflictError
from jobs.lake import carries
from jobs.lake.balances import Balances
from jobs.lake.budgets import write_curves
from jobs.lake.entries import GENESIS, SCHEMA_VERSION, Entry, Fact, Kind

START = datetime(2026, 11, 1, 12, tzinfo=UTC)
ANALYSTS = ("marketing", "research")
PERIODS = (date(2026, 10, 1), date(2026, 11, 1))
DATASET = "films"
BLOCKS = ("day 1", "day 2")


class Chain:
    """Facts made into entries that follow each other."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, fact: Fact) -> Entry:
        number = len(self.entries) + 1
        entry = Entry(
            **vars(fact),
            region="local",
            entry_no=number,
            entry_id=f"local:{number}",
            recorded_at=START + timedelta(minutes=number),
            schema_version=SCHEMA_VERSION,
            previous_hash=self.entries[-1].hash if self.entries else GENESIS,
        )
        self.entries.append(entry)
        return entry


def opened() -> Chain:
    chain = Chain()
    for analyst in ANALYSTS:
        for start, end in zip(PERIODS, (*PERIODS[1:], date(2026, 12, 1)), strict=True):
            chain.add(
                Fact(
                    kind="open_account",
                    analyst=analyst,
                    dataset=DATASET,
                    period_start=start,
                    period_end=end,
                    units=100,
                    calls=10,
                )
            )
    return chain


def with_blocks() -> Chain:
    chain = opened()
    for block_id in BLOCKS:
        capacity = write_curves({block_id: RenyiCurve((50, 90))})
        details = '{"alphas":["2","4"],"mode":"enforce"}'
        chain.add(Fact(kind="open_block", dataset=DATASET, blocks=capacity, details=details))
    return chain


def folded(entries: Iterable[Entry]) -> Balances:
    balances = Balances()
    for entry in entries:
        balances.apply(entry)
    return balances


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Runs that go through every kind of life, interleaved; some take from blocks, or only that."""
    chain = with_blocks()
    balances = folded(chain.entries)
    for _ in range(draw(st.integers(0, 40))):
        run_id = f"run-{draw(st.integers(0, 7))}"
        claim = balances.claims.get(("local", run_id))
        if claim is None or claim.state == "given_back":
            alone = draw(st.booleans())  # a job that has no account
            taken = st.dictionaries(
                st.sampled_from(BLOCKS), st.tuples(st.integers(0, 9), st.integers(0, 9))
            )
            curves = {block_id: RenyiCurve(nano) for block_id, nano in draw(taken).items()}
            fact = Fact(
                kind="allocate",
                analyst=None if alone else draw(st.sampled_from(ANALYSTS)),
                dataset=DATASET,
                period_start=None if alone else draw(st.sampled_from(PERIODS)),
                units=0 if alone else draw(st.integers(0, 9)),
                calls=0 if alone else draw(st.integers(0, 2)),
                blocks=write_curves(curves),
                claim_id=f"claim-{len(chain.entries)}",
                run_id=run_id,
                fingerprint="f",
                details='{"k": 10}',
            )
        elif not claim.is_open:
            continue
        else:
            kinds: list[Kind] = ["settle", "expire"]
            kinds += ["release", "give_back"] if claim.state == "allocated" else []
            kind = draw(st.sampled_from(kinds))
            said: dict[str, object] = {"label": "l", "digest": "d"} if kind == "release" else {}
            if kind == "settle":
                said["units"] = draw(st.integers(0, claim.units))
                said["calls"] = draw(st.integers(0, claim.calls))
            if kind != "release":
                said["blocks"] = write_curves(claim.blocks)
            fact = claim.fact(kind, **said)
        balances.apply(chain.add(fact))
    return chain.entries


def used_by_reference(entries: Iterable[Entry], analyst: str, period: date) -> Loss:
    """Add up each claim by its last word on the matter."""
    costs: dict[str, tuple[int, int]] = {}
    for entry in entries:
        if entry.claim_id is None or (entry.analyst, entry.period_start) != (analyst, period):
            continue
        if entry.kind in ("allocate", "settle"):
            costs[entry.claim_id] = entry.units, entry.calls
        elif entry.kind == "give_back":
            costs[entry.claim_id] = 0, 0
    return Loss(
        sum(units for units, _ in costs.values()), sum(calls for _, calls in costs.values())
    )


@given(histories())
def test_every_balance_is_the_sum_over_its_claims(entries: list[Entry]) -> None:
    balances = folded(entries)
    for analyst in ANALYSTS:
        for period, account in balances.accounts[analyst, DATASET].items():
            assert account.filter.used == used_by_reference(entries, analyst, period)


@given(histories())
def test_every_block_holds_the_sum_over_its_claims(entries: list[Entry]) -> None:
    balances = folded(entries)
    for block_id, block in balances.blocks.items():
        held = {True: RenyiCurve((0, 0)), False: RenyiCurve((0, 0))}
        for claim in balances.claims.values():
            if block_id in claim.blocks and claim.state != "given_back":
                held[claim.is_open] += claim.blocks[block_id]
        assert (block.filter.allocated, block.filter.consumed) == (held[True], held[False])
        assert block.filter.left + block.filter.used == block.filter.capacity


@given(histories(), st.data())
def test_a_carry_stands_for_all_before_it(entries: list[Entry], data: st.DataObject) -> None:
    cut = data.draw(st.integers(6, len(entries)))
    before = folded(entries[:cut])
    now = entries[cut - 1].recorded_at
    chain = Chain()
    chain.entries = entries[:cut]
    carry = chain.add(Fact(kind="carry", details=carries.write(before, now)))
    carried = carries.read(carry.details or "")
    carried.apply(carry)
    rest = Chain()
    rest.entries = chain.entries[:]
    for entry in entries[cut:]:
        known = carried.claims.get((entry.region, entry.run_id or ""))
        if entry.kind == "allocate" and entry.period_start == PERIODS[0]:
            continue  # that period is over, and the carry has left its account out
        if entry.kind != "allocate" and (known is None or not known.is_open):
            continue
        carried.apply(rest.add(replace_fact(entry, claim_id=entry.claim_id)))
    everything = folded(rest.entries)
    assert everything.heads == carried.heads
    for analyst in ANALYSTS:
        live = PERIODS[1]
        assert (
            carried.accounts[analyst, DATASET][live] == everything.accounts[analyst, DATASET][live]
        )
    assert open_claims(carried) == open_claims(everything)
    assert carried.blocks == everything.blocks


def open_claims(balances: Balances) -> dict[tuple[str, str], object]:
    return {key: claim for key, claim in balances.claims.items() if claim.is_open}


def a_claim() -> tuple[Chain, Balances]:
    chain = opened()
    allocate = Fact(
        kind="allocate",
        analyst="research",
        dataset=DATASET,
        period_start=PERIODS[1],
        units=21,
        calls=1,
        claim_id="c1",
        run_id="r1",
        fingerprint="f",
    )
    chain.add(allocate)
    return chain, folded(chain.entries)


def test_what_cannot_follow_is_refused() -> None:
    chain, balances = a_claim()
    claim = balances.claims["local", "r1"]
    allocate_again = replace_fact(chain.entries[-1], claim_id="c2")
    for fact in (
        allocate_again,
        claim.fact("settle", units=22, calls=1),
        replace_fact(claim.fact("settle"), claim_id="c2"),
        replace_fact(claim.fact("settle"), run_id="r2"),
        replace_fact(chain.entries[0], units=5),
        claim.fact("settle", blocks='{"day 1":[1,1]}'),
        replace_fact(chain.entries[-1], run_id="r2", blocks='{"day 3":[1,1]}'),
        replace_fact(chain.entries[-1], run_id="r2", period_start=None),
        Fact(kind="override", analyst="nobody", dataset=DATASET, period_start=PERIODS[1]),
    ):
        attempt = Chain()
        attempt.entries = chain.entries[:]
        with pytest.raises(LedgerConflictError):
            folded([*chain.entries, attempt.add(fact)])


@pytest.mark.parametrize("kind", ["give_back", "release"])
def test_what_is_published_is_neither_given_back_nor_published_again(kind: Kind) -> None:
    chain, balances = a_claim()
    claim = balances.claims["local", "r1"]
    chain.add(claim.fact("release", label="label", digest="digest"))
    chain.add(claim.fact(kind, units=21, calls=1, label="other", digest="other"))
    with pytest.raises(LedgerConflictError, match="cannot follow on a claim that is released"):
        folded(chain.entries)


@pytest.mark.parametrize("kind", ["settle", "expire", "release", "give_back"])
@pytest.mark.parametrize("last", ["settle", "expire"])
def test_nothing_follows_on_a_claim_that_is_closed(last: Kind, kind: Kind) -> None:
    chain, balances = a_claim()
    claim = balances.claims["local", "r1"]
    chain.add(claim.fact(last))
    chain.add(claim.fact(kind))
    with pytest.raises(LedgerConflictError, match="a claim that is not open"):
        folded(chain.entries)


@pytest.mark.parametrize("used", [(4, 6), (6, 4)])
def test_no_more_is_consumed_at_any_order_than_a_claim_holds(used: tuple[int, int]) -> None:
    chain = with_blocks()
    held = write_curves({BLOCKS[0]: RenyiCurve((5, 5))})
    chain.add(
        Fact(
            kind="allocate",
            dataset=DATASET,
            units=0,
            calls=0,
            blocks=held,
            claim_id="c1",
            run_id="r1",
            fingerprint="f",
        )
    )
    claim = folded(chain.entries).claims["local", "r1"]
    chain.add(claim.fact("consume", blocks=write_curves({BLOCKS[0]: RenyiCurve(used)})))
    with pytest.raises(LedgerConflictError, match="consumes more of block day 1"):
        folded(chain.entries)


def test_an_entry_dated_before_the_one_before_it_is_refused() -> None:
    entries = opened().entries
    entries[-1] = replace(entries[-1], recorded_at=START)
    with pytest.raises(LedgerConflictError, match="is dated before"):
        folded(entries)


def replace_fact(fact: Fact, **changes: Any) -> Fact:
    said = {name: getattr(fact, name) for name in Fact.__dataclass_fields__}
    return Fact(**said | changes)


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize(
    "change",
    [
        {"units": 1},
        {"analyst": "marketing2"},
        {"recorded_at": START - timedelta(days=1)},
        {"entry_no": 9},
        {"previous_hash": "f" * 64},
        {"details": "{}"},
    ],
)
def test_a_changed_entry_breaks_the_chain(place: int, change: dict[str, Any]) -> None:
    chain, balances = a_claim()
    chain.add(balances.claims["local", "r1"].fact("settle", units=3, calls=1))
    entries = chain.entries[:]
    entries[place] = replace(entries[place], **change)
    with pytest.raises(LedgerConflictError):
        folded(entries)


def test_a_missing_or_moved_entry_breaks_the_chain() -> None:
    entries = opened().entries
    for broken in (entries[1:], [*entries[:1], *entries[2:]], [entries[1], entries[0]]):
        with pytest.raises(LedgerConflictError, match="does not follow"):
            folded(broken)


def test_entries_of_a_newer_layout_are_not_guessed_at() -> None:
    entry = replace(opened().entries[0], schema_version=SCHEMA_VERSION + 1)
    with pytest.raises(LedgerConflictError, match="newer version"):
        folded([entry])


def test_a_hash_does_not_change_when_a_column_is_added_later() -> None:
    entry = replace(opened().entries[0], schema_version=1)
    assert entry.hash == "0420cc9839ffc11d6414ac4896d2defa4a589114d1fbf8f7fa4cd10ad42b9be3"


def test_periods_that_share_a_day_overlap_and_neighbours_do_not() -> None:
    account = folded(opened().entries).accounts["research", DATASET][PERIODS[0]]
    assert account.overlaps(date(2026, 10, 31), date(2026, 11, 30))
    assert account.overlaps(date(2026, 9, 1), date(2026, 10, 2))
    assert not account.overlaps(date(2026, 11, 1), None)
    assert not account.overlaps(date(2026, 9, 1), date(2026, 10, 1))
    assert not account.overlaps(date(2026, 9, 1), None)
