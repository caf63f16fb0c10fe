"""What the ledger promises its callers, one process at a time."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from dp_udfs.budget import Loss
from dp_udfs.errors import (
    BudgetExhaustedError,
    CallLimitError,
    ClaimError,
    InvalidParameterError,
    SettingsError,
)
from jobs.lake.ledger import Allocation, Ledger, Published
from tests.ledgers import DECEMBER, FILMS, NOON, NOVEMBER, Clock


def ask(ledger: Ledger, run_id: str = "r1", units: int = 21, **changes: Any) -> Allocation:
    asked: dict[str, Any] = {"analyst": "research", "dataset": FILMS, "units": units, "calls": 1}
    return ledger.allocate(run_id, **(asked | {"fingerprint": "f1"} | changes))


def left(ledger: Ledger, analyst: str = "research") -> tuple[int, int]:
    budget = ledger.get_budget(analyst, FILMS)
    return budget.units_left, budget.calls_left


def kinds(ledger: Ledger) -> list[str]:
    kinds: list[str] = ledger.entries()["kind"].to_pylist()
    return kinds


# Accounts


def test_an_allowance_is_spent_to_exactly_zero_and_not_beyond(ledger: Ledger) -> None:
    for number in range(10):
        ask(ledger, f"r{number}", units=10)
    assert left(ledger) == (0, 0)
    with pytest.raises(BudgetExhaustedError):
        ask(ledger, "one more", units=1)
    with pytest.raises(CallLimitError):
        ask(ledger, "a free one", units=0)


def test_a_refusal_says_what_was_asked_what_is_left_and_when_it_resets(ledger: Ledger) -> None:
    ask(ledger, units=90)
    with pytest.raises(BudgetExhaustedError) as refused:
        ask(ledger, "r2", details={"dataset_name": "films"})
    assert str(refused.value) == (
        "research on films, period 2026-11-01: asked for 21 units and 1 call, left 10 units and "
        "9 calls of 100 units and 10 calls, used by r1 (90 units and 1 call, open); "
        "resets on 2026-12-01 (UTC)"
    )
    assert refused.value.facts["left"] == Loss(10, 9)
    assert refused.value.facts["resets_at"] == DECEMBER


def test_a_refusal_is_recorded_once_and_takes_nothing(ledger: Ledger) -> None:
    for _ in range(2):
        with pytest.raises(BudgetExhaustedError):
            ask(ledger, units=101)
    assert kinds(ledger) == ["open_account", "refuse"]
    assert left(ledger) == (100, 10)
    assert ledger.find("r1") is None
    ask(ledger, units=100)


def test_opening_again_changes_nothing_without_a_reason(ledger: Ledger) -> None:
    ledger.open_account("research", FILMS, NOVEMBER, 100, 10, period_end=DECEMBER)
    with pytest.raises(SettingsError, match="give a reason"):
        ledger.open_account("research", FILMS, NOVEMBER, 300, 10, period_end=DECEMBER)
    assert kinds(ledger) == ["open_account"]


def test_an_override_counts_at_once_and_survives_the_settings_file(ledger: Ledger) -> None:
    ask(ledger, units=90)
    ledger.open_account("research", FILMS, NOVEMBER, 200, 10, reason="a study")
    assert left(ledger) == (110, 9)
    ledger.open_account("research", FILMS, NOVEMBER, 100, 10)
    assert left(ledger) == (110, 9)
    ledger.open_account("research", FILMS, NOVEMBER, 50, 10, reason="the study is over")
    assert left(ledger) == (0, 9)
    assert kinds(ledger) == ["open_account", "allocate", "override", "override"]


def test_a_period_ends_by_itself_and_leaves_nothing_behind(ledger: Ledger, clock: Clock) -> None:
    ask(ledger, units=90)
    clock.now = datetime(2026, 12, 1, tzinfo=UTC)
    with pytest.raises(SettingsError, match="its periods begin on 2026-11-01"):
        ask(ledger, "r2")
    ledger.open_account("research", FILMS, DECEMBER, 100, 10, period_end=date(2027, 1, 1))
    assert left(ledger) == (100, 10)
    ask(ledger, "r2")
    ledger.settle("r1", units=40, calls=1)  # a straggler is charged where it was allocated
    assert left(ledger) == (79, 9)
    assert ledger.get_budget("research", FILMS, at=NOVEMBER).units_left == 60


def test_the_days_of_a_period_are_those_of_its_zone(tmp_path: Path) -> None:
    clock = Clock(datetime(2024, 11, 1, 6, 59, 59, tzinfo=UTC))
    ledger = Ledger(tmp_path / "ledger", clock=clock)
    for start, end in ((10, 11), (11, 12)):
        ledger.open_account(
            "research",
            FILMS,
            date(2024, start, 1),
            100,
            10,
            period_end=date(2024, end, 1),
            zone="America/Los_Angeles",
        )
    assert ask(ledger, "r1").period_start == date(2024, 10, 1)
    clock.now = datetime(2024, 11, 1, 7, tzinfo=UTC)
    assert ask(ledger, "r2").period_start == date(2024, 11, 1)


def test_there_is_no_asking_as_of_next_month(ledger: Ledger) -> None:
    ledger.open_account("research", FILMS, DECEMBER, 100, 10)
    with pytest.raises(SettingsError, match="2026-12-01 is not running"):
        ask(ledger, period_start=DECEMBER)
    assert ask(ledger, period_start=NOVEMBER).period_start == NOVEMBER


def test_no_day_has_two_allowances(ledger: Ledger) -> None:
    for start, end in ((date(2026, 11, 15), None), (date(2026, 10, 15), date(2026, 11, 14))):
        with pytest.raises(SettingsError, match="overlaps"):
            ledger.open_account("research", FILMS, start, 100, 10, period_end=end)
    with pytest.raises(InvalidParameterError, match="ends on 2026-12-01"):
        ledger.open_account("marketing", FILMS, DECEMBER, 100, 10, period_end=DECEMBER)
    for end in (NOVEMBER, NOON.date()):
        with pytest.raises(SettingsError, match="is over"):
            ledger.open_account("marketing", FILMS, date(2026, 10, 1), 9, 9, period_end=end)


def test_invented_names_have_no_allowance(ledger: Ledger) -> None:
    for analyst in ("Research", "research2"):
        with pytest.raises(SettingsError, match="its periods begin on no day"):
            ask(ledger, analyst=analyst)
    assert kinds(ledger) == ["open_account"]


# Claims


def test_the_same_run_is_charged_once_and_gets_the_same_claim(ledger: Ledger, clock: Clock) -> None:
    first = ask(ledger, details={"snapshot": 7})
    clock.now += timedelta(hours=1)
    assert ask(ledger, details={"snapshot": 8}) == first
    assert first.details == {"snapshot": 7}
    assert Ledger(ledger.path).find("r1") == first
    assert left(ledger) == (79, 9)


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "f2"},
        {"units": 20},
        {"calls": 2},
        {"analyst": "marketing"},
        {"dataset": "0c7b"},
    ],
)
def test_a_run_id_stands_for_one_question(ledger: Ledger, change: dict[str, Any]) -> None:
    ledger.open_account("marketing", FILMS, NOVEMBER, 100, 10)
    ask(ledger)
    with pytest.raises(ClaimError, match="allocated for another question"):
        ask(ledger, **change)
    assert left(ledger) == (79, 9)


def test_settling_charges_what_was_used_and_can_be_repeated(ledger: Ledger) -> None:
    ask(ledger)
    for _ in range(2):
        ledger.settle("r1", units=14, calls=1, publish=("label", "digest"))
    assert left(ledger) == (86, 9)
    assert kinds(ledger) == ["open_account", "allocate", "release", "settle"]
    assert ledger.released_labels() == [Published("label", "research", "r1", "digest")]
    with pytest.raises(ClaimError, match="settled, not open any more"):
        ledger.settle("r1", units=13, calls=1)
    with pytest.raises(ClaimError, match="has published other rows"):
        ledger.settle("r1", units=14, calls=1, publish=("label", "other"))


def test_publishing_and_settling_are_one_commit(ledger: Ledger) -> None:
    ask(ledger)
    version = DeltaTable(ledger.path).version()
    ledger.settle("r1", units=14, calls=1, publish=("label", "digest"))
    assert DeltaTable(ledger.path).version() == version + 1


def test_a_loss_beyond_the_reserve_is_an_error(ledger: Ledger) -> None:
    ask(ledger)
    with pytest.raises(InvalidParameterError, match="more than its reserve"):
        ledger.settle("r1", units=22, calls=1)
    assert left(ledger) == (79, 9)


def test_a_stalled_job_that_wakes_after_expiry_cannot_publish(ledger: Ledger) -> None:
    ask(ledger)
    stalled = Ledger(ledger.path, clock=lambda: NOON)
    assert stalled.find("r1")
    ledger.expire("r1", "not heard of for a day")
    ledger.expire("r1", "not heard of for a day")
    with pytest.raises(ClaimError, match="is expired"):
        stalled.release("r1", label="label", digest="digest")
    with pytest.raises(ClaimError, match="is expired"):
        stalled.settle("r1", units=3, calls=1, publish=("label", "digest"))
    with pytest.raises(ClaimError, match="is expired"):
        stalled.give_back("r1", "nothing was read")
    assert ask(ledger).state == "expired"  # the run gets no second claim
    assert left(ledger) == (79, 9)
    assert ledger.released_labels() == []


def test_only_what_is_unpublished_is_given_back(ledger: Ledger) -> None:
    ask(ledger, "r1")
    ask(ledger, "r2")
    ledger.release("r2", label="label", digest="digest")
    for _ in range(2):
        ledger.give_back("r1", "the session did not start")
    with pytest.raises(ClaimError, match="has published"):
        ledger.give_back("r2", "regret")
    assert left(ledger) == (79, 9)
    again = ask(ledger, "r1")
    assert again.state == "allocated"
    assert left(ledger) == (58, 8)


def test_a_claim_lists_as_open_until_it_is_closed(ledger: Ledger) -> None:
    ask(ledger, "r1")
    ask(ledger, "r2")
    ledger.settle("r1", units=1, calls=1)
    budget = ledger.get_budget("research", FILMS)
    assert [claim.run_id for claim in budget.open] == ["r2"]
    assert (budget.units, budget.calls, budget.resets_at) == (100, 10, DECEMBER)


def test_what_was_published_is_found_by_reader_and_table(ledger: Ledger) -> None:
    ledger.open_account("marketing", FILMS, NOVEMBER, 100, 10)
    for run_id, analyst in (("r1", "research"), ("r2", "marketing")):
        ask(ledger, run_id, analyst=analyst)
        ledger.release(run_id, label="label", digest="digest")
    assert ledger.released_labels(analyst="marketing") == [
        Published("label", "marketing", "r2", "digest")
    ]
    assert len(ledger.released_labels(dataset=FILMS)) == 2
    assert ledger.released_labels(dataset="other") == []


@pytest.mark.parametrize("call", ["release", "settle", "expire", "give_back"])
def test_a_run_without_a_claim_can_do_nothing(ledger: Ledger, call: str) -> None:
    calls: dict[str, Callable[[], None]] = {
        "release": lambda: ledger.release("r9", label="l", digest="d"),
        "settle": lambda: ledger.settle("r9", units=0, calls=0),
        "expire": lambda: ledger.expire("r9", "why"),
        "give_back": lambda: ledger.give_back("r9", "why"),
    }
    with pytest.raises(ClaimError, match="r9 has no claim"):
        calls[call]()


# Names, amounts, time


@pytest.mark.parametrize(
    "name",
    ["", " r", "r\n1", "r\x001", "r" * 201, "u\u0308", "\u202er", 7],
    ids=["empty", "blank", "newline", "nul", "long", "decomposed", "backwards", "number"],
)
def test_names_that_could_be_confused_are_refused(ledger: Ledger, name: Any) -> None:
    for asked in ({"run_id": name}, {"analyst": name}, {"dataset": name}):
        with pytest.raises(InvalidParameterError):
            ask(ledger, **asked)
    with pytest.raises(InvalidParameterError):
        ledger.open_account(name, FILMS, NOVEMBER, 1, 1)


@pytest.mark.parametrize(
    "name", ["../../../x", "x'; DROP TABLE ledger; --", "\u00fc\u540d", "a/b", "%00"]
)
def test_any_printable_name_is_only_text(ledger: Ledger, tmp_path: Path, name: str) -> None:
    ledger.open_account(name, FILMS, NOVEMBER, 100, 10)
    ask(ledger, name, analyst=name)
    fresh = Ledger(ledger.path, clock=lambda: NOON)
    assert fresh.find(name) == ledger.find(name)
    assert left(fresh, name) == (79, 9)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]


@pytest.mark.parametrize("region", ["", "../x", "a/b", "a'b", "West", "\u00fc", "a b", "a:b"])
def test_a_region_is_a_plain_word(tmp_path: Path, region: str) -> None:
    with pytest.raises(InvalidParameterError, match="small letters, digits and hyphens"):
        Ledger(tmp_path / "ledger", region)


@pytest.mark.parametrize("amount", [-1, 0.5, True, "3", None])
def test_amounts_are_whole_numbers(ledger: Ledger, amount: Any) -> None:
    with pytest.raises(InvalidParameterError):
        ask(ledger, units=amount)
    with pytest.raises(InvalidParameterError):
        ledger.open_account("research", FILMS, NOVEMBER, amount, 1, reason="why")


def test_time_never_runs_backwards(ledger: Ledger, clock: Clock) -> None:
    ask(ledger, "r1")
    clock.now -= timedelta(days=40)
    ask(ledger, "r2")
    assert ledger.find("r2").recorded_at == ledger.find("r1").recorded_at == NOON  # type: ignore[union-attr]


def test_a_clock_without_a_zone_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", clock=lambda: datetime(2026, 11, 1))  # noqa: DTZ001
    with pytest.raises(InvalidParameterError, match="without a time zone"):
        ledger.open_account("research", FILMS, NOVEMBER, 1, 1)


def test_entry_ids_name_their_region(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", region="eu-west")
    ledger.open_account("research", FILMS, date(2020, 1, 1), 100, 10)
    claim = ask(ledger)
    ids = ledger.entries()["entry_id"].to_pylist()
    assert all(name.startswith("eu-west:") for name in [*ids, claim.claim_id])
    with pytest.raises(InvalidParameterError, match="region"):
        Ledger(tmp_path / "ledger", region="EU/..")
