"""Settings of several regions: shares that never add up to more, and what each may spend."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_udfs.errors import BudgetExhaustedError, SettingsError
from jobs.lake import accounts, guarantees
from jobs.lake.ledger import Ledger
from jobs.lake.replication import replicate
from jobs.lake.settings import DatasetSettings, LakeSettings, Regions, load_dataset, load_lake
from tests import lakes

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
TABLE = "0b6a"  # a table's id

ESCROW = """
[regions]
mode = "escrow"
shares = { west = 2, east = 1 }
ledgers = { OTHER = "OTHER/ledger" }
"""
EVENTUAL = """
[regions]
mode = "eventual"
ledgers = { OTHER = "OTHER/ledger" }
"""


def lake(root: Path, region: str, regions: str) -> tuple[LakeSettings, DatasetSettings]:
    conf = root / "conf" / region
    (conf / "datasets").mkdir(parents=True)
    text = lakes.LAKE.replace('region = "local"', f'region = "{region}"')
    text = text.replace('root = ".."', 'root = "../.."').replace("lake/ledger", f"{region}/ledger")
    other = "east" if region == "west" else "west"
    (conf / "local.toml").write_text(text + regions.replace("OTHER", other))
    (conf / "datasets" / "clips.toml").write_text(lakes.CLIPS)
    loaded = load_lake(conf / "local.toml")
    return loaded, load_dataset("clips", loaded)


def both(root: Path, regions: str) -> list[tuple[Ledger, DatasetSettings]]:
    made = [lake(root, region, regions) for region in ("west", "east")]
    return [
        (Ledger(settings.tables.ledger, settings.region, lambda: NOON), dataset)
        for settings, dataset in made
    ]


def test_each_region_opens_its_share_and_spends_no_more(tmp_path: Path) -> None:
    opened = both(tmp_path, ESCROW)
    for (ledger, dataset), units in zip(opened, (2000, 1000), strict=True):
        for _ in range(2):
            budget = accounts.open_account(ledger, dataset, TABLE, "marketing", NOON)
        assert (budget.units, budget.calls) == (units, units // 10)
        with pytest.raises(BudgetExhaustedError):
            ledger.allocate("r", analyst="marketing", dataset=TABLE, units=units + 1, calls=1)
    replicate([ledger for ledger, _ in opened])
    for ledger, dataset in opened:
        budget = ledger.get_budget("marketing", TABLE)
        assert (budget.in_all.units, budget.in_all.calls) == (3000, 300)
        promise, whole = (
            guarantees.guarantee(dataset, budget),
            guarantees.guarantee(dataset.model_copy(update={"regions": None}), budget),
        )
        assert promise == whole


def test_a_share_states_the_guarantee_of_the_whole_before_it_hears_of_others(
    tmp_path: Path,
) -> None:
    (_, (ledger, dataset)) = both(tmp_path, ESCROW)
    budget = accounts.open_account(ledger, dataset, TABLE, "marketing", NOON)
    alone = dataset.model_copy(update={"regions": None})
    promise, part = guarantees.guarantee(dataset, budget), guarantees.guarantee(alone, budget)
    assert promise is not None
    assert part is not None
    assert promise.epsilon > part.epsilon


def test_eventual_regions_share_one_account_and_say_what_that_means(tmp_path: Path) -> None:
    opened = both(tmp_path, EVENTUAL)
    for ledger, dataset in opened:
        accounts.open_account(ledger, dataset, TABLE, "marketing", NOON)
    replicate([ledger for ledger, _ in opened])
    for ledger, dataset in opened:
        budget = ledger.get_budget("marketing", TABLE)
        assert budget.units == budget.in_all.units == 3000
        assert "each can spend the whole" in guarantees.facts(dataset, budget)["regions"]


def test_an_account_that_is_older_than_escrow_is_not_spent_in_escrow(tmp_path: Path) -> None:
    ((ledger, dataset), _) = both(tmp_path, ESCROW)
    alone = dataset.model_copy(update={"regions": None})
    budget = accounts.open_account(ledger, alone, TABLE, "marketing", NOON)
    assert "each can spend the whole" in guarantees.facts(dataset, budget)["regions"]
    with pytest.raises(SettingsError, match=r"regions.mode: .* keep mode 'eventual' until it ends"):
        accounts.open_account(ledger, dataset, TABLE, "marketing", NOON)
    fresh = accounts.open_account(ledger, dataset, TABLE, "research", NOON)
    assert "regions" not in guarantees.facts(dataset, fresh)


def test_the_path_of_another_ledger_starts_at_the_root(tmp_path: Path) -> None:
    settings, _ = lake(tmp_path, "west", EVENTUAL)
    assert settings.regions is not None
    assert settings.regions.ledgers == {"east": str(tmp_path / "east" / "ledger")}


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 99), min_size=2),
    st.integers(0, 10**6),
)
def test_shares_never_add_up_to_more_than_the_whole(parts: dict[str, int], amount: int) -> None:
    here, *others = parts
    regions = Regions(mode="escrow", ledgers=dict.fromkeys(others, "path"), shares=parts)
    shares = [regions.share_of(region, amount) for region in parts]
    assert amount - len(parts) < sum(shares) <= amount
    assert regions.share_of(here, amount) == amount * parts[here] // sum(parts.values())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("shares = { west = 2, east = 1 }", ""), "shares: needed in mode 'escrow'"),
        (("west = 2, ", ""), "shares"),
        (("east = 1", "north = 1"), "shares: one for each of 'ledgers'"),
        (("west = 2", "west = 0"), "shares"),
        (("OTHER =", "west ="), "regions.ledgers.west"),
        (('mode = "escrow"', 'mode = "eventual"'), "shares: needed in mode 'escrow', and only"),
    ],
)
def test_regions_that_do_not_fit_are_refused(
    tmp_path: Path, change: tuple[str, str], why: str
) -> None:
    with pytest.raises(SettingsError, match=why):
        lake(tmp_path, "west", ESCROW.replace(*change))


def test_the_first_run_in_a_region_makes_its_ledger_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests import programs

    west, _ = lake(tmp_path, "west", EVENTUAL)
    ended = programs.run_here(capsys, "replicate_ledger", "--conf", west.source)
    assert ended.code == 2, "a path may be mistyped, so another region's is not made here"
    assert f"there is no ledger at {tmp_path / 'east' / 'ledger'}" in ended.error
    assert Ledger(west.tables.ledger, "west").exists()
    named = [f"west={west.tables.ledger}", f"east={tmp_path / 'east' / 'ledger'}"]
    assert programs.run_here(capsys, "replicate_ledger", *named).code == 0
    assert programs.run_here(capsys, "replicate_ledger", "--conf", west.source).code == 0


def test_the_program_replicates_what_the_settings_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    from tests import programs

    settings, _ = lake(tmp_path, "west", EVENTUAL)
    opened = [(Ledger(settings.tables.ledger, "west", lambda: NOON), None)]
    opened += [(Ledger(tmp_path / "east" / "ledger", "east", lambda: NOON), None)]
    for ledger, _ in opened:
        ledger.open_account("marketing", TABLE, NOON.date(), 10, 10)
    ended = programs.run_here(
        capsys, "replicate_ledger", "--conf", settings.source, "--format", "json"
    )
    rows: list[dict[str, Any]] = json.loads(ended.out)["rows"]
    assert [(row["ledger"], row["copied"], row["entries"]) for row in rows] == [
        ("west", 1, {"east": 1, "west": 1}),
        ("east", 1, {"east": 1, "west": 1}),
    ]
    shown = programs.run_here(capsys, "replicate_ledger", "--simulate")
    assert shown.code == 0
    assert "overspent" in shown.out
