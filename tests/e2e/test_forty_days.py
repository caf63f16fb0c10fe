"""Forty days of two analysts: late rows, a month's end, opt-outs and a purge, by a simulated clock.

Each night a snapshot is published; each morning questions are asked about the thirty days before.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from dp_udfs.budget import NOTHING, Loss
from dp_udfs.errors import BudgetExhaustedError, CallLimitError, ClaimError, SettingsError
from jobs.release_counts import Outcome
from tests import lakes
from tests.conftest import TEST_SECRET
from tests.lakes import Row, SmallLake
from tests.plain_release import PlainAnswer, plain_release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = date(2024, 1, 12)
DAYS = 40
OPT_OUT_ON, PURGE_ON = 20, 37  # numbers of days, from 1
FEBRUARY = date(2024, 2, 1)
ALLOWANCES = {"marketing": Loss(200, 300), "research": Loss(3000, 14)}

CLIPS: dict[str, Any] = {"k": 3, "max_candidates": 6, "cohorts": ["channel"]}  # not exclusive
DEVICES: dict[str, Any] = {"element": "device"}


@dataclass(frozen=True)
class Asked:
    """One question on one morning, what came of it, and what plain counting says."""

    day: int
    analyst: str
    snapshot_id: int
    keys: dict[str, Any]
    reserve: Loss
    wanted: PlainAnswer
    outcome: Outcome | None
    refusal: BudgetExhaustedError | None

    @property
    def period(self) -> date:
        return morning(self.day).date().replace(day=1)


@dataclass
class Days:
    """What happened."""

    small: SmallLake
    asked: list[Asked] = field(default_factory=list)
    states: dict[int, tuple[list[Row], set[str]]] = field(default_factory=dict)  # by snapshot

    @property
    def answered(self) -> list[tuple[Asked, Outcome]]:
        return [(asked, asked.outcome) for asked in self.asked if asked.outcome is not None]


def morning(day: int) -> datetime:
    """When questions are asked: on day 1 and so on, at six."""
    return datetime.combine(FIRST + timedelta(days=day - 1), time(6), UTC)


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Days:
    """Live through all of it."""
    clips = lakes.changed(lakes.CLIPS, epsilon="0.4", units="200", calls="300")
    clips = clips.replace("[analysts.research]", "[analysts.research]\nunits = 3000\ncalls = 14")
    small = lakes.make(tmp_path_factory.mktemp("days"), TEST_SECRET, clips)
    lived = Days(small)
    small.append(rows_of(0, 600, spread=35))
    for day in range(1, DAYS + 1):
        small.append(rows_of(day, 120))
        if day == OPT_OUT_ON:
            small.opt_out("u1", "u2")
        if day == PURGE_ON:
            purge(small, before=morning(day).date() - timedelta(days=30))
        small.publish(morning(day).date(), morning(day) - timedelta(hours=4))
        lived.states[day] = list(small.rows), set(small.opt_outs)
        for analyst, snapshot_id, keys in schedule(day):
            lived.asked.append(ask(lived, spark, day, analyst, snapshot_id, keys))
    return lived


def rows_of(day: int, size: int, spread: int = 4) -> list[Row]:
    """Rows that came in on a day: most from the day before, some late, one after the purge."""
    chance = random.Random(day)
    came = morning(day).date()
    rows: list[Row] = []
    for number in range(size):
        late = 40 if number == 0 else 1 + int(spread * chance.random() ** 4)
        rows.append(
            {
                "user_id": f"u{int(200 * chance.random() ** 1.3)}",
                "event_date": came - timedelta(days=late),
                "title": f"clip {int(8 * chance.random() ** 2)}",
                "device": chance.choice(["phone", "phone", "tv", "radio"]),
                "channel": chance.choice(["app", "app", "mail", "web"]),
            }
        )
    return rows


def schedule(day: int) -> list[tuple[str, int, dict[str, Any]]]:
    """Who asks what about which snapshot on a day; in February also what January refused."""
    asked = [("marketing", day, CLIPS)]
    if day % 3 == 0:
        asked.append(("research", day, CLIPS))
    if day % 5 == 0:
        asked.append(("research", day, DEVICES))
    if morning(day).date() == FEBRUARY:
        asked.append(("marketing", day - 1, CLIPS))
    return asked


def ask(
    lived: Days,
    spark: "SparkSession",
    day: int,
    analyst: str,
    snapshot_id: int,
    keys: dict[str, Any],
) -> Asked:
    """Ask once, and count by hand."""
    small = lived.small
    question = small.question(snapshot_id, **keys)
    rows, opt_outs = lived.states[snapshot_id]
    wanted = plain_release(lakes.question(**keys), question, rows, opt_outs, TEST_SECRET)
    outcome, refusal = None, None
    try:
        outcome = small.release(
            spark, analyst, at=morning(day), snapshot_id=snapshot_id, run_id=None, **keys
        )
    except BudgetExhaustedError as error:
        refusal = error
    return Asked(day, analyst, snapshot_id, keys, question.reserve, wanted, outcome, refusal)


def purge(small: SmallLake, before: date) -> None:
    """Delete rows past their retention, for good: older snapshots cannot be read any more."""
    table = DeltaTable(small.dataset.table.engagements)
    table.delete(f"event_date < '{before}'")
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    small.rows = [row for row in small.rows if row["event_date"] >= before]


def test_every_answer_is_that_of_plain_counting(days: Days) -> None:
    for asked, outcome in days.answered:
        names = ("cohort", "rank", "element", "noisy_count", "stopped")
        found = [tuple(row[name] for name in names) for row in outcome.rows.to_pylist()]
        assert found == asked.wanted.rows, f"{asked.analyst} on day {asked.day}"
        assert outcome.question.snapshot.as_of == morning(asked.snapshot_id).date()
    shown = [len(outcome.rows) for asked, outcome in days.answered if asked.keys is CLIPS]
    assert len(shown) > 20
    assert sum(shown) > 5 * len(shown)  # three cohorts end in a row each; the rest is clips


def test_charges_refusals_and_balances_are_those_of_the_rules(days: Days) -> None:
    used: Counter[tuple[str, date, str]] = Counter()
    for asked in days.asked:
        account = asked.analyst, asked.period
        allowance = ALLOWANCES[asked.analyst]
        left = Loss(
            allowance.units - used[*account, "units"], allowance.calls - used[*account, "calls"]
        )
        fits = left.covers(asked.reserve)
        assert (asked.outcome is not None) == fits, f"{asked.analyst} on day {asked.day}"
        if asked.outcome is None:
            assert str(asked.refusal).count(asked.period.isoformat()) == 1
            continue
        assert asked.outcome.charged == asked.wanted.loss
        used[*account, "units"] += asked.wanted.loss.units
        used[*account, "calls"] += asked.wanted.loss.calls
        budget = asked.outcome.budget
        assert budget.units - budget.units_left == used[*account, "units"]
        assert budget.calls - budget.calls_left == used[*account, "calls"]
        assert budget.period_start == asked.period

    booked: Counter[tuple[str, date, str]] = Counter()
    for entry in days.small.entries("settle"):
        for kind in ("units", "calls"):
            booked[entry["analyst"], entry["period_start"], kind] += entry[kind]
    assert booked == used
    assert len(days.small.entries("allocate")) == len(days.answered)
    assert len(days.small.entries("open_account")) == 4  # two analysts in two months


def test_both_months_end_in_refusals_and_begin_afresh(days: Days) -> None:
    for analyst in ALLOWANCES:
        for period in (FIRST.replace(day=1), FEBRUARY):
            ours = [a for a in days.asked if a.analyst == analyst and a.period == period]
            assert ours[0].outcome is not None
            refused = [asked.refusal for asked in ours if asked.refusal]
            assert refused
            assert ours[-1].refusal is not None
            for refusal in refused:
                assert isinstance(refusal, CallLimitError) == (analyst == "research")
    (retried,) = [asked for asked in days.asked if asked.day != asked.snapshot_id]
    first_try = next(asked for asked in days.asked if asked.day == retried.snapshot_id)
    assert first_try.refusal is not None
    assert retried.outcome is not None


def test_who_asks_what_another_has_asked_gets_the_same_rows(days: Days) -> None:
    by_label: dict[str, list[Outcome]] = {}
    for _, outcome in days.answered:
        by_label.setdefault(outcome.question.label, []).append(outcome)
    shared = [outcomes for outcomes in by_label.values() if len(outcomes) > 1]
    assert len(shared) > 2
    for one, other in shared:
        assert one.rows == other.rows
        assert one.charged == other.charged != NOTHING


def test_noise_never_repeats(days: Days) -> None:
    """Six draws of scale 5 agree by chance once in 10^8 pairs; some 300 pairs are compared."""
    noise: dict[str, dict[tuple[str, str], int]] = {}
    for asked, outcome in days.answered:
        if asked.keys is CLIPS:
            noise[outcome.question.label] = {
                (row["cohort"], row["element"]): row["noisy_count"]
                - asked.wanted.truth[row["cohort"]][row["element"]]
                for row in outcome.rows.to_pylist()
                if row["row_kind"] == "element"
            }
    compared = 0
    for one, other in combinations(noise.values(), 2):
        common = one.keys() & other.keys()
        if len(common) >= 6:
            compared += 1
            assert any(one[cell] != other[cell] for cell in common)
    assert compared > 30


def test_a_rerun_of_any_day_is_free_and_equal(days: Days) -> None:
    """Also of days whose rows are purged by now."""
    evening = morning(DAYS) + timedelta(hours=12)
    before = len(days.small.entries("settle"))
    for asked, outcome in days.answered:
        again = days.small.release(
            None, asked.analyst, at=evening, snapshot_id=asked.snapshot_id, **asked.keys
        )
        assert again.rows == outcome.rows
        assert again.charged == NOTHING
    assert len(days.small.entries("settle")) == before


def test_what_was_purged_can_be_asked_about_by_nobody(days: Days) -> None:
    evening = morning(DAYS) + timedelta(hours=12)
    unasked = next(day for day in range(1, DAYS) if day % 3)
    with pytest.raises(SettingsError, match="may not be read any more"):
        days.small.release(None, "research", at=evening, snapshot_id=unasked, **CLIPS)
    with pytest.raises(ClaimError, match="VACUUM"):
        days.small.release(
            None, "research", at=evening, snapshot_id=PURGE_ON - 1, window={"days": 10}, **DEVICES
        )
    assert len(days.small.entries("allocate")) == len(days.answered)
