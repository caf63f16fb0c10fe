"""Which blocks of users may exist, and what they own."""

import tomllib
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dp_udfs.budget import RenyiCurve
from dp_udfs.errors import SettingsError
from jobs.count_users import _openings
from jobs.lake import consent, purging
from jobs.lake.settings import DatasetSettings
from jobs.lake.toml_files import build
from jobs.lake.user_settings import UserSettings
from tests import lakes
from tests.conftest import TEST_SECRET


def users(**changes: Any) -> UserSettings:
    """Settings of weeks, with some keys changed."""
    content = {
        "blocks": "user", "per_block": 100, "begins": date(2024, 2, 1), "days": 7, "periods": 365,
        "count_epsilon": 0.1, "beta": 0.01, "cost": "exact", "epsilon": 10, "delta": 1e-7,
        "alphas": ["8", "16"],
    }  # fmt: skip
    dataset = tomllib.loads(lakes.CLIPS) | {"users": content | changes}
    settings = build("a.toml", DatasetSettings, dataset).users
    assert settings is not None
    return settings


def test_users_are_counted_where_they_are_what_is_protected() -> None:
    text = lakes.CLIPS.replace('privacy_unit = "user"', 'privacy_unit = "event"')
    text = text.replace("l0 = ", "# l0 = ").replace("max_per_user = ", "# ")
    content = tomllib.loads(text) | {"users": users().model_dump()}
    with pytest.raises(SettingsError, match="users: what a person loses"):
        build("a.toml", DatasetSettings, content)


def test_one_queue_has_one_set_of_orders() -> None:
    text = lakes.CLIPS + (
        '[blocks]\nmode = "enforce"\ndays = 7\nepsilon = 10\ndelta = 1e-7\nalphas = ["8"]\n'
        '[blocks.queue]\npolicy = "dpf_by_arrivals"\nn = 2\n'
    )
    content = tomllib.loads(text) | {"users": users().model_dump()}
    with pytest.raises(SettingsError, match=r"users\.alphas: one queue"):
        build("a.toml", DatasetSettings, content)
    content["users"]["alphas"] = ["8"]
    build("a.toml", DatasetSettings, content)


def test_blocks_of_users_end_at_the_bound() -> None:
    names = [each.block_id for each in _openings(users(), "0b6a", 3, 299)]
    assert names == ["0b6a:users 0+100", "0b6a:users 100+100"]
    timed = list(_openings(users(blocks="user_time"), "0b6a", 3, 100))
    assert [each.block_id for each in timed] == ["0b6a:2024-02-15+7:users 0+100"]
    assert timed[0].details == {"users": [0, 100], "from": "2024-02-15", "to": "2024-02-22"}


def test_every_block_has_paid_for_the_count() -> None:
    exact, paper = users().capacity, users(cost="paper").capacity
    assert exact[0] - paper[0] == pytest.approx(0.16 - 0.0044, abs=1e-4)  # at alpha 8
    (pure,) = users(alphas=["inf"]).capacity
    assert RenyiCurve.capacity(pure) == RenyiCurve.capacity("9.9")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count_epsilon": 11, "alphas": ["inf"]}, "nothing is left"),
        ({"per_block": 0}, "per_block"),
        ({"beta": 0}, "beta"),
        ({"cost": "none"}, "cost"),
        ({"cost": None}, "cost"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        users(**changes)


def test_people_who_leave_leave_the_numbers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = lakes.make(tmp_path, TEST_SECRET)
    small.opt_out("u1")
    said: list[str] = []
    monkeypatch.setattr(consent, "remember", lambda *_: None)
    dataset = small.dataset.model_copy(update={"users": users()})
    purging.delete_rows(
        SimpleNamespace(sql=said.append),  # type: ignore[arg-type]
        small.lake,
        dataset,
        first_date=date(2024, 1, 1),
        first_quarantined=date(2024, 1, 1),
    )
    merged = [text for text in said if text.startswith("MERGE") and dataset.table.numbers in text]
    assert len(merged) == 1
