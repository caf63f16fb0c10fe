"""Privacy blocks of a dataset file: which days they hold, what they own, what a question takes."""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dp_udfs import curves
from dp_udfs.budget import RenyiCurve
from dp_udfs.errors import SettingsError
from jobs.lake import settings, slices, toml_files
from jobs.lake.ledger import Ledger
from jobs.lake.questions import Question
from jobs.lake.settings import Regions
from tests import lakes
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake

BLOCKS = """
[blocks]
mode = "enforce"
days = 7
epsilon = 10
delta = 1e-7
alphas = ["2", "8", "32"]
"""
TOP = {"k": 3, "max_candidates": 4}


@pytest.fixture
def clips(tmp_path: Path) -> SmallLake:
    made = lakes.make(tmp_path, TEST_SECRET, lakes.CLIPS + BLOCKS)
    made.publish()
    return made


def ask(clips: SmallLake, start: date, end: date, **keys: Any) -> Question:
    return replace(clips.question(**TOP, **keys), start=start, end=end)


def days(question: Question) -> list[tuple[str, str]]:
    return [(each.details["from"], each.details["to"]) for each in slices.openings(question)]


def test_a_window_touches_each_block_that_shares_a_day_with_it(clips: SmallLake) -> None:
    assert date(2024, 2, 1).weekday() == date(1970, 1, 1).weekday()  # a block begins
    whole = ask(clips, date(2024, 2, 1), date(2024, 2, 15))
    assert days(whole) == [("2024-02-01", "2024-02-08"), ("2024-02-08", "2024-02-15")]
    assert days(ask(clips, date(2024, 2, 7), date(2024, 2, 8))) == days(whole)[:1]
    assert days(ask(clips, date(2024, 2, 7), date(2024, 2, 9))) == days(whole)
    assert days(ask(clips, date(1969, 12, 31), date(1970, 1, 1))) == [("1969-12-25", "1970-01-01")]


def test_a_question_takes_its_reserve_of_every_block(clips: SmallLake) -> None:
    question = clips.question(**TOP)
    demands = slices.demands(question)
    assert len(demands) == len(slices.openings(question)) == 6
    assert question.reserve.units == 7
    wanted = RenyiCurve.demand(curves.units_curve(7, "1.5", ("2", "8", "32")))
    assert set(demands.values()) == {wanted}
    gaussian = clips.question(element="city", mechanism="fixed_gaussian")
    (noisy,) = set(slices.demands(gaussian).values())
    assert noisy == RenyiCurve.demand([2 * alpha * 1.5**2 / 8 for alpha in (2, 8, 32)])


def test_a_dataset_without_blocks_takes_nothing(tmp_path: Path) -> None:
    small = lakes.make(tmp_path, TEST_SECRET)
    small.publish()
    assert slices.demands(small.question(**TOP)) == {}


def test_a_region_owns_its_share_under_its_own_name(clips: SmallLake) -> None:
    regions = Regions(mode="escrow", ledgers={"east": "e"}, shares={"local": 2, "east": 1})
    one_alpha = replace_blocks(clips, alphas=("inf",))
    dataset = one_alpha.dataset.model_copy(update={"regions": regions})
    opening = slices.openings(replace(one_alpha, dataset=dataset))[0]
    assert opening.block_id.endswith("+7@local")
    assert opening.capacity == RenyiCurve((6_666_666_666,))


def replace_blocks(clips: SmallLake, **changes: Any) -> Question:
    assert clips.dataset.blocks
    blocks = clips.dataset.blocks.model_copy(update=changes)
    dataset = clips.dataset.model_copy(update={"blocks": blocks})
    return replace(clips.question(**TOP), dataset=dataset)


def test_days_that_are_cut_otherwise_would_be_a_second_budget(
    clips: SmallLake, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.open_blocks(slices.openings(clips.question(**TOP)))
    ledger.open_blocks(slices.openings(clips.question(**TOP)))
    assert len(ledger.blocks()) == 6
    with pytest.raises(SettingsError, match=r"blocks.days: 8, but .* of 7 days"):
        ledger.open_blocks(slices.openings(replace_blocks(clips, days=8)))
    with pytest.raises(SettingsError, match="never changes"):
        ledger.open_blocks(slices.openings(replace_blocks(clips, epsilon="11")))
    assert len(ledger.blocks()) == 6


def test_a_window_of_too_many_blocks_is_refused(clips: SmallLake) -> None:
    with pytest.raises(SettingsError, match="1001 privacy blocks of 7 days"):
        slices.openings(ask(clips, date(1970, 1, 1), date(1989, 3, 4)))


BAD = [
    ('alphas = ["2", "8", "32"]', 'alphas = ["1.5", "8"]', "alphas"),
    ('alphas = ["2", "8", "32"]', 'alphas = ["2"]', "leaves nothing"),
    ("days = 7", "days = 0", "blocks.days"),
    ("delta = 1e-7", "delta = 0", "blocks.delta"),
    ('alphas = ["2", "8", "32"]', 'alphas = ["inf"]', "Gaussian"),
    ("days = 7", "weeks = 1", "blocks.weeks: unknown key"),
]


@pytest.mark.parametrize(("line", "instead", "message"), BAD)
def test_bad_blocks_get_one_line(tmp_path: Path, line: str, instead: str, message: str) -> None:
    text = lakes.CLIPS + BLOCKS.replace(line, instead)
    with pytest.raises(SettingsError, match=message):
        lakes.make(tmp_path, TEST_SECRET, text)


def test_blocks_state_what_a_person_loses(tmp_path: Path) -> None:
    uncapped = "\n".join(
        line for line in lakes.CLIPS.splitlines() if not line.startswith(("l0", "max_per_user"))
    )
    text = lakes.changed(uncapped + BLOCKS, privacy_unit='"event"')
    with pytest.raises(SettingsError, match="privacy_unit must be 'user'"):
        lakes.make(tmp_path, TEST_SECRET, text)


def test_blocks_in_several_regions_need_shares_and_one_alpha(clips: SmallLake) -> None:
    regions = Regions(mode="eventual", ledgers={"east": "e"})
    content = clips.dataset.model_dump() | {"regions": regions}
    with pytest.raises(SettingsError, match="escrow"):
        toml_files.build("clips", settings.DatasetSettings, content)
