"""Accounts as releases use them: their own terms, two files over one table, changes, warnings."""

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from dp_udfs import composition, pandas_udfs
from dp_udfs.budget import Loss
from dp_udfs.errors import BudgetExhaustedError, InvalidParameterError, SettingsError
from jobs.lake import accounts, guarantees, releases
from jobs.lake.budgets import Terms
from jobs.lake.ledger import Budget
from jobs.lake.questions import Question
from jobs.lake.releases import Release
from tests import lakes
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake

APRIL = datetime(2024, 4, 1, tzinfo=UTC)
TOP: dict[str, Any] = {"k": 5, "max_candidates": 12}  # at most 11 units and 1 call
OTHER: dict[str, Any] = {"k": 5, "max_candidates": 11}
STANDARD: dict[str, Any] = {
    "epsilon": "0.15",
    "delta": "1e-10",
    "delta_prime": "1e-9",
    "units": 3000,
    "calls": 30,
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallLake:
    """A published lake without Spark: every answer is the one of an empty table."""
    monkeypatch.setattr("jobs.release_counts.compute", of_an_empty_table)
    made = lakes.make(tmp_path, TEST_SECRET)
    made.publish()
    return made


def of_an_empty_table(question: Question, secret: bytes, _: object) -> Release:
    nothing = pandas_udfs.ARROW_ANSWER_SCHEMA.empty_table()
    key = question.noise_key(secret)
    answer = pandas_udfs.complete(nothing, question.mechanism, key, question.cohorts)
    return releases.from_answer(question, answer)


def with_budget(small: SmallLake, name: str = "clips", **changes: Any) -> SmallLake:
    """The same table under a settings file with another budget, perhaps another name."""
    budget = small.dataset.budget.model_copy(update=changes)
    dataset = small.dataset.model_copy(update={"budget": budget, "name": name})
    other = replace(small, dataset=dataset)
    if name != "clips":
        other.publish()
    return other


def budget_of(small: SmallLake, at: datetime = lakes.NOON) -> Budget:
    return accounts.get_budget(small.ledger(at), small.dataset, account(small), "marketing", at)


def account(small: SmallLake) -> str:
    return accounts.account_of(small.lake, small.dataset)


def check(small: SmallLake, units: int, at: datetime = lakes.NOON) -> Any:
    who = small.ledger(at), small.dataset, account(small), "marketing"
    return accounts.check_budget(*who, Loss(units, 1), at)


def update(small: SmallLake, at: datetime = lakes.NOON, **change: Any) -> Budget:
    who = small.ledger(at), small.dataset, account(small), "marketing", at
    return accounts.update_budget(*who, **({"reason": "a study"} | change))


# An open account keeps what it was opened with


def test_a_changed_file_changes_no_open_account_and_the_answer_says_so(small: SmallLake) -> None:
    assert small.release(None, **TOP).notes == {}
    other = with_budget(small, units=10, calls=1)
    outcome = other.release(None, **OTHER)
    assert (outcome.budget.units, outcome.budget.calls_left) == (3000, 298)
    assert outcome.notes["differs"].startswith(
        "the dataset file says allowance 10 units and 1 call (was 3000 units and 300 calls);"
    )
    assert budget_of(other, APRIL).units == 10  # the next period begins by the file


def test_nobody_else_opens_a_second_account_under_another_file(small: SmallLake) -> None:
    small.release(None, **TOP)
    other = with_budget(small, "clips-2", units=5000, period=30)
    assert account(other) == account(small)
    assert budget_of(other).units == 3000
    other.release(None, **TOP)
    assert len(small.entries("open_account")) == 1


# A unit is a unit


@pytest.mark.parametrize(
    ("epsilon", "weight"), [("1.5", 1), ("3", 4), ("1.6", 2), ("0.1", 1), ("4.6", 10)]
)
def test_a_question_of_another_epsilon_is_charged_by_its_squared_ratio(
    small: SmallLake, epsilon: str, weight: int
) -> None:
    small.release(None, **(TOP | {"k": 1}))  # opens the account, at epsilon 1.5
    before = budget_of(small)
    other = with_budget(small, "clips-2", epsilon=epsilon)
    outcome = other.release(None, **TOP)
    (reserve,) = [e["units"] for e in small.entries("allocate") if e["run_id"] == outcome.run_id]
    assert reserve == 11 * weight
    answer = releases.find(other.lake.tables.releases, outcome.question.label)
    assert answer is not None
    assert outcome.charged == Loss(answer.loss.units * weight, 1)
    assert before.units_left - outcome.budget.units_left == outcome.charged.units
    assert ("epsilon" in outcome.notes.get("differs", "")) == (weight > 1 or epsilon == "0.1")


def test_a_question_of_a_larger_delta_is_charged_the_calls_that_cover_it(small: SmallLake) -> None:
    small.release(None, **(TOP | {"k": 1}))
    other = with_budget(small, "clips-2", delta="0.007")
    assert other.release(None, **TOP).charged.calls == 4  # 0.007 / (2 * 0.001), rounded up
    grouped = other.release(None, **TOP, cohorts=["channel"])
    assert grouped.charged.calls == 3 * 4  # any number of three cohorts a user


def test_a_repeat_on_other_terms_keeps_its_first_price(small: SmallLake) -> None:
    small.release(None, **(TOP | {"k": 1}))
    other = with_budget(small, "clips-2", epsilon="3")
    first = other.release(None, run_id="r1", **TOP)
    again = other.release(None, run_id="r1", **TOP)
    assert again.charged == first.charged
    later = with_budget(small, "clips-2", epsilon="3").release(None, run_id="r1", at=APRIL, **TOP)
    assert later.charged == first.charged


def test_a_gaussian_question_is_refused_where_the_guarantee_is_for_bounded_range(
    small: SmallLake,
) -> None:
    with_budget(small, gaussian=False).release(None, **TOP)
    gaussian: dict[str, Any] = {"element": "city", "mechanism": "fixed_gaussian"}
    with pytest.raises(SettingsError, match="opened with gaussian = false"):
        small.release(None, **gaussian)
    assert len(small.entries("allocate")) == 1


def test_a_weight_is_never_below_the_squared_ratio() -> None:
    terms = Terms(epsilon="0.15", delta="1e-10", delta_prime="1e-9", gaussian=False)
    assert [terms.weight(e) for e in ("0.15", "0.1500001", "0.3", "0.45", "1")] == [1, 2, 4, 9, 45]


# Asking, checking and changing


def test_a_period_begins_without_any_job_and_asking_writes_nothing(small: SmallLake) -> None:
    fresh = budget_of(small)
    assert (fresh.units_left, fresh.calls_left) == (3000, 300)
    assert check(small, 3000).fits
    refused = check(small, 3001).refusal
    assert "asked for 3001 units and 1 call, left 3000 units" in str(refused)
    assert not Path(small.lake.tables.ledger).exists()
    small.release(None, **TOP)
    assert budget_of(small).calls_left == 299
    assert budget_of(small, APRIL) == replace(
        fresh, period_start=date(2024, 4, 1), resets_at=date(2024, 5, 1)
    )


def test_a_check_takes_nothing_and_says_what_used_the_budget_up(small: SmallLake) -> None:
    run_id = small.release(None, **TOP).run_id
    entries = small.ledger().entries().num_rows
    assert check(small, 2900).fits
    assert f"used by {run_id} (" in str(check(small, 3000).refusal)
    assert small.ledger().entries().num_rows == entries


def test_an_allowance_changes_at_once_for_a_reason_and_until_the_period_ends(
    small: SmallLake,
) -> None:
    raised = update(small, units=4000)
    assert (raised.units, raised.calls) == (4000, 300)
    assert check(small, 4000).fits
    (entry,) = small.entries("override")
    assert (entry["units"], entry["calls"], entry["reason"]) == (4000, 300, "a study")
    assert update(small, units=4000) == raised
    assert len(small.entries("override")) == 1
    assert budget_of(small, APRIL).units == 3000
    with pytest.raises(InvalidParameterError, match="say why"):
        update(small, units=1, reason="")
    with pytest.raises(InvalidParameterError):
        update(small, units=-1)


def test_an_allowance_below_what_is_used_leaves_nothing(small: SmallLake) -> None:
    small.release(None, **TOP)
    lowered = update(small, units=0, calls=0)
    assert (lowered.units_left, lowered.calls_left) == (0, 0)
    assert lowered == accounts.changed(budget_of(small), 0, 0)
    with pytest.raises(BudgetExhaustedError):
        small.release(None, **OTHER)
    found = guarantees.guarantee(small.dataset, lowered)
    assert found is not None
    assert found.epsilon > 0  # what was used was used


def test_undeclared_analysts_are_refused_everywhere(small: SmallLake) -> None:
    who = small.ledger(), small.dataset, account(small), "stranger"
    with pytest.raises(SettingsError, match="not declared"):
        accounts.get_budget(*who, lakes.NOON)
    with pytest.raises(SettingsError, match="not declared"):
        accounts.check_budget(*who, Loss(1, 1), lakes.NOON)
    with pytest.raises(SettingsError, match="not declared"):
        accounts.update_budget(*who, lakes.NOON, units=5, reason="please")


def test_a_warning_comes_before_an_allowance_runs_out(small: SmallLake) -> None:
    warned = with_budget(small, units=11, warn_at=0.15)
    assert accounts.warning(warned.dataset, budget_of(warned)) is None
    outcome = warned.release(None, **TOP)
    assert outcome.notes == {"warning": "2 of 11 units are used or reserved (warn_at = 0.15)"}
    update(warned, units=20)
    assert accounts.warning(warned.dataset, budget_of(warned)) is None


# Mode track


def test_mode_track_records_everything_refuses_nothing_and_guarantees_nothing(
    small: SmallLake,
) -> None:
    tracked = with_budget(small, mode="track", units=10, calls=1)
    outcome = tracked.release(None, **TOP)
    assert outcome.notes["tracked"].startswith("would have been refused: asked for 11 units")
    assert outcome.notes["mode"] == "track: nothing is refused, and nothing guaranteed"
    (entry,) = small.entries("allocate")
    assert entry["reason"] == outcome.notes["tracked"]
    assert not small.entries("refuse")
    assert "would have been" in str(check(tracked, 10).note)
    assert guarantees.facts(tracked.dataset, outcome.budget) == {
        "guarantee": "none: mode track refuses nothing"
    }


def test_a_period_that_was_tracked_once_has_no_guarantee(small: SmallLake) -> None:
    tracked = with_budget(small, mode="track")
    tracked.release(None, **TOP)
    enforced = update(tracked, mode="enforce", units=5)
    assert (enforced.mode, enforced.tracked) == ("enforce", True)
    assert guarantees.guarantee(tracked.dataset, enforced) is None
    with pytest.raises(BudgetExhaustedError):
        tracked.release(None, **OTHER)
    assert small.ledger(lakes.NOON).find_budget("marketing", account(small)) == enforced


# Guarantees


def test_the_guarantee_is_stated_by_every_bound_that_is_valid(small: SmallLake) -> None:
    standard = with_budget(small, **STANDARD, gaussian=False)
    found = guarantees.guarantee(standard.dataset, budget_of(standard))
    assert found is not None
    assert (found.epsilon, found.delta) == pytest.approx((34.8812, 7e-9), rel=1e-4)
    assert found.tighter == {
        "zCDP": pytest.approx(33.782, rel=1e-4),
        "the exact Rényi curve": pytest.approx(33.749, rel=1e-4),
    }
    assert found.periods == 3  # 30 days of retention and 5 of purge lag under calendar months
    assert found.epsilon_over_periods == pytest.approx(71.1, rel=1e-3)
    said = found.facts()
    assert said["guarantee"].startswith("(34.88, 7.0e-09)-DP for the whole allowance")
    assert said["tighter"].startswith("epsilon 33.78 by zCDP, epsilon 33.75 by the exact Rényi")
    assert "no epsilon is stated for what has been used so far" in said["so_far"]


def test_the_optimum_is_stated_where_it_holds(small: SmallLake) -> None:
    few = with_budget(small, **(STANDARD | {"units": 50}), gaussian=False)
    found = composition.adaptive_epsilon(50, "0.15", "1e-9")
    assert guarantees.optimum(few.dataset, budget_of(few)).startswith(f"epsilon {found:.2f}, ")
    for other in ({"gaussian": True}, {"gaussian": False, "mode": "track"}):
        unlike = with_budget(small, **STANDARD, **other)
        assert guarantees.optimum(unlike.dataset, budget_of(unlike)).startswith("none")


def test_gaussian_accounts_are_stated_by_zcdp_alone(small: SmallLake) -> None:
    standard = with_budget(small, **STANDARD, gaussian=True)
    found = guarantees.guarantee(standard.dataset, budget_of(standard))
    assert found is not None
    assert found.epsilon == composition.zcdp_epsilon(3000, "0.15", "1e-9")
    assert found.tighter == {}


def test_a_guarantee_is_that_of_the_account_and_not_of_the_file(small: SmallLake) -> None:
    with_budget(small, **STANDARD, gaussian=False).release(None, **TOP)
    found = guarantees.guarantee(small.dataset, budget_of(small))
    assert found is not None
    assert found.epsilon == pytest.approx(34.8812, rel=1e-4)


def test_a_persons_years_are_the_sum_of_their_blocks(small: SmallLake) -> None:
    ledger = small.ledger(lakes.NOON)
    for year in range(2020, 2024):
        ledger.open_block(str(year), account(small), 2.5)
    said = guarantees.over_blocks(small.dataset, ledger.blocks())
    assert said is not None
    assert said.startswith("(10.00, 0.0e+00)-DP for a person in all 4 blocks")
    ledger.open_block("t", account(small), 1, mode="track")
    assert guarantees.over_blocks(small.dataset, ledger.blocks()) is None
