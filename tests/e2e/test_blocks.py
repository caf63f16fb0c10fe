"""Releases on a dataset with privacy blocks: account and blocks in one entry, all or nothing."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dp_udfs.budget import NOTHING
from dp_udfs.errors import (
    BudgetExhaustedError,
    BudgetWaitingError,
    InvalidParameterError,
    SettingsError,
)
from jobs import release_counts
from jobs.lake import refusals, runs, slices
from jobs.release_counts import Outcome
from tests import lakes, release_drill
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake

TOP: dict[str, Any] = {"k": 3, "max_candidates": 4}  # seven units of epsilon 1.5
ROOM_FOR_ONE = """
[blocks]
mode = "enforce"
days = 7
epsilon = 15
delta = 1e-7
alphas = ["inf"]
"""


OPENS_BY_TENTHS = """
[blocks.queue]
policy = "dpf_by_time"
lifetime = 100
tick = 10
"""


@pytest.fixture
def clips(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SmallLake]:
    """Everything is real but Spark's part: the histogram is fixed."""
    queue = getattr(request, "param", "")
    text = lakes.changed(lakes.CLIPS + ROOM_FOR_ONE, gaussian="false") + queue
    small = lakes.make(tmp_path, TEST_SECRET, text)
    small.append([lakes.watched("u1", title="film 1")])
    small.publish()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release_counts, "compute", release_drill.compute)
        yield small


def test_an_answer_is_taken_from_the_account_and_from_each_block_in_one_entry(
    clips: SmallLake,
) -> None:
    outcome = clips.release(None, **TOP)
    (entry,) = clips.entries("allocate")
    claim = clips.ledger().find(str(outcome.run_id))
    assert claim
    assert claim.blocks == slices.demands(outcome.question)
    assert entry["units"] == 7
    for block in clips.ledger().blocks():
        assert block.filter.consumed == claim.blocks[block.block_id]  # the reserve, for good
    assert outcome.charged.units < 7  # the account gets the rest back


def test_blocks_are_the_cap_over_all_analysts_together(clips: SmallLake) -> None:
    clips.release(None, **TOP)
    with pytest.raises(BudgetExhaustedError, match=r"left 4.5 of 15, used by others \(10.5\)"):
        clips.release(None, "research", **TOP | {"k": 2, "max_candidates": 3, "tau": 1})
    assert (
        clips.ledger(lakes.NOON).get_budget("research", clips.question(**TOP).account).used
        == NOTHING
    )
    assert len(clips.entries("refuse")) == 1


def test_what_is_out_already_takes_nothing_more_of_any_block(clips: SmallLake) -> None:
    first = clips.release(None, **TOP)
    second = clips.release(None, "research", **TOP)
    assert second.rows == first.rows
    assert second.charged == first.charged != NOTHING
    assert [bool(entry["blocks"]) for entry in clips.entries("allocate")] == [True, False]


def test_a_run_that_is_tried_again_keeps_the_blocks_it_took(clips: SmallLake) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release_counts, "compute", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            clips.release(None, run_id="nightly", **TOP)
    clips.release(None, run_id="nightly", **TOP)
    clips.release(None, run_id="nightly", **TOP)
    assert len(clips.entries("allocate")) == 1
    assert all(block.filter.left.epsilons == (4.5,) for block in clips.ledger().blocks())


def test_a_copy_of_a_run_that_was_overtaken_gives_the_same_answer(clips: SmallLake) -> None:
    first: list[Outcome] = []
    check = runs.require_readable  # between looking for the run and allocating

    def overtaken(*arguments: Any) -> None:
        patch.setattr(runs, "require_readable", check)
        first.append(clips.release(None, run_id="nightly", **TOP))
        check(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "require_readable", overtaken)
        second = clips.release(None, run_id="nightly", **TOP)
    assert (second.rows, second.charged) == (first[0].rows, first[0].charged)
    assert len(clips.entries("allocate")) == 1


def test_a_settings_file_without_blocks_cannot_go_round_those_of_its_table(
    clips: SmallLake,
) -> None:
    clips.release(None, **TOP)
    whole, left = clips.dataset, [block.filter.left for block in clips.ledger().blocks()]
    clips.dataset = whole.model_copy(update={"blocks": None})
    with pytest.raises(SettingsError, match=r"dataset clips: blocks: missing"):
        clips.release(None, "research", **TOP | {"k": 2, "max_candidates": 3})
    assert len(clips.entries("allocate")) == 1
    assert [block.filter.left for block in clips.ledger().blocks()] == left


def test_a_refusal_names_the_first_few_of_many_blocks(clips: SmallLake) -> None:
    clips.release(None, **TOP)
    assert len(clips.ledger().blocks()) == 6
    with pytest.raises(BudgetExhaustedError) as refused:
        clips.release(None, **TOP | {"max_candidates": 5})
    assert str(refused.value).count("asked for") == refusals.NAMED
    assert str(refused.value).endswith("; and 3 more are short")


@pytest.mark.parametrize("clips", [OPENS_BY_TENTHS], indirect=True)
def test_a_release_waits_for_its_blocks_and_is_charged_when_they_are_granted(
    clips: SmallLake,
) -> None:
    for _ in range(2):  # without a name of its own it finds its place again
        with pytest.raises(BudgetWaitingError, match=r"has unlocked 0, needed 10.5, and 5 more"):
            clips.release(None, **TOP)
    account = clips.question(**TOP).account
    assert clips.ledger(lakes.NOON).get_budget("marketing", account).used == NOTHING
    later = lakes.NOON + timedelta(seconds=70)
    outcome = clips.release(None, at=later, **TOP)
    claim = clips.ledger().find(str(outcome.run_id))
    assert claim
    assert claim.ticket
    assert claim.ticket.decided_at == later
    assert [len(clips.entries(kind)) for kind in ("submit", "allocate", "settle")] == [1, 1, 1]
    assert outcome.rows


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_an_empty_run_id_is_refused_before_anything_is_spent(clips: SmallLake) -> None:
    """As a template that was not filled in leaves it."""
    with pytest.raises(InvalidParameterError, match="run_id"):
        clips.release(None, run_id="", **TOP)
    assert clips.entries("allocate") == []
