"""Bad settings get one line that names file and key."""

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dp_udfs.errors import SettingsError
from jobs.lake import question_settings, settings
from jobs.lake.question_settings import QuestionSettings
from jobs.lake.settings import DatasetSettings
from jobs.lake.toml_files import build

CONF = Path(__file__).parents[3] / "conf"


def dataset_content(**changes: Any) -> dict[str, Any]:
    """The MovieLens file with some keys changed, written `table__key=value`."""
    content = tomllib.loads((CONF / "datasets" / "movielens.toml").read_text())
    for path, value in changes.items():
        *tables, key = path.split("__")
        target = content
        for table in tables:
            target = target[table]
        if value is None:
            del target[key]
        else:
            target[key] = value
    return content


def refusal(model: type[Any], content: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as caught:
        build("a.toml", model, content)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("a.toml: ")
    return message


@pytest.mark.parametrize("path", sorted(CONF.glob("releases/*.toml")), ids=lambda path: path.stem)
def test_every_release_file_of_the_project_reads(path: Path) -> None:
    lake = settings.load_lake(CONF / "local.toml")
    question = question_settings.load_question(path)
    dataset = settings.load_dataset(question.dataset, lake)
    assert "element" in dataset.columns[question.element].use


def test_both_files_over_the_film_ratings_declare_the_same_columns() -> None:
    lake = settings.load_lake(CONF / "local.toml")
    weak, strict = (settings.load_dataset(n, lake) for n in ("movielens", "movielens-strict"))
    assert weak.columns == strict.columns


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budget__epsilon": 0}, "budget.epsilon: epsilon = 0 is outside"),
        ({"budget__epsilon": float("nan")}, "budget.epsilon"),
        ({"budget__epsilon": float("inf")}, "budget.epsilon"),
        ({"budget__epsilon": None}, "budget.epsilon: missing"),
        ({"budget__delta": 1}, "budget.delta"),
        ({"budget__delta": None}, "budget.delta: missing"),
        ({"budget__units": 0}, "budget.units"),
        ({"budget__units": 2.5}, "budget.units"),
        ({"budget__units": True}, "budget.units"),
        ({"budget__unit": 3}, "budget.unit: unknown key"),
        ({"budget__mode": None}, "budget.mode: missing"),
        ({"budget__mode": "off"}, "budget.mode: Input should be 'enforce' or 'track'"),
        ({"budget__units": 2**63}, "budget.units: Input should be less than"),
        ({"budget__warn_at": 0}, "budget.warn_at: must be above 0 and at most 1"),
        ({"budget__warn_at": 80}, "budget.warn_at: must be above 0 and at most 1"),
        ({"budget__warn_at": "high"}, "budget.warn_at: must be a number"),
        ({"table__time_zone": "Mars/Olympus"}, "table.time_zone"),
        ({"table__retention_days": None}, "table.retention_days: missing"),
        ({"table__privacy_unit": "household"}, "table.privacy_unit"),
        ({"columns__area__l0": 0}, "columns.area.l0"),
        ({"columns__area__domain": []}, "columns.area"),
        ({"columns__gender__domain": ["F", "F"]}, "'domain' lists a value twice"),
        ({"columns__gender__domain": ["F", 1]}, "values of type string"),
        ({"columns__gender__domain": ["F | M", "M"]}, "a cohort may"),
        ({"columns__gender__domain": "unknown"}, "public domain"),
        ({"columns__gender__domain": "lake/people"}, "gender.domain: must be 'unknown' or a"),
        ({"columns__gender__domain": {"table": "people"}}, "gender.domain: must be 'unknown' or a"),
        ({"columns__rating__domain": [1.5]}, "rating.domain: must be a text or a whole number"),
        ({"columns__area__use": "element"}, "area.use: Input should be a valid list"),
        ({"budget__period": 0}, "budget.period: must be 'month' or a number of days from 1 to 36"),
        ({"budget__period": "week"}, "budget.period: must be 'month' or a number of days"),
        ({"table__privacy_unit": "event"}, "need privacy_unit = 'user'"),
        ({"table__privacy_unit": "user_day"}, "need privacy_unit = 'user'"),
        (
            {
                "table__privacy_unit": "event",
                "columns__area__l0": None,
                "columns__occupation__l0": None,
            },
            "columns.age_band: l0 and max_per_user",
        ),
        (
            {
                "table__privacy_unit": "event",
                "columns__age_band__max_per_user": None,
                "columns__gender__max_per_user": None,
            },
            "columns.area: l0 and max_per_user",
        ),
        ({"name": "../etc"}, "name: must be"),
    ],
)
def test_a_bad_dataset_file_names_its_key(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(DatasetSettings, dataset_content(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"k": 0}, "k: "),
        ({"k": "10"}, "k: "),
        ({"kk": 1}, "kk: unknown key"),
        ({"measure": "sum"}, "measure: "),
        ({"tau": 3}, "a.toml: measure 'users' counts each user once, so leave 'tau' out"),
        ({"measure": "rows"}, "needs 'tau'"),
        ({"window": {}}, "window: give either"),
        ({"window": {"days": 3, "from": "2020-01-01"}}, "window: give either"),
        ({"window": {"from": "2020-01-01"}}, "window: give either"),
        ({"window": {"from": "2020-01-02", "to": "2020-01-02"}}, "'from' must be before"),
        ({"filters": {"all": [{"column": "rating"}]}}, "give either 'in'"),
        ({"filters": {"all": [{"column": "rating", "in": []}]}}, "'in' is empty"),
        ({"filters": {"all": [{"column": "rating", "in": [1.5]}]}}, "filters.all.0.in"),
        ({"filters": {"sql": "1=1"}}, "filters.sql: unknown key"),
        ({"filters": "rating > 3"}, "filters: Input should be a valid table"),
        ({"filters": {"any": [{"column": "rating"}]}}, "filters.any.0: Input should be a valid l"),
        ({"k": Decimal("10.0")}, "(got 10.0)"),
        ({"filters": {"all": [{"column": "rating", "at_least": 5, "at_most": 1}]}}, "is above"),
        ({"filters": {"all": [{"column": "rating", "at_least": 1}] * 101}}, "more than 100 cond"),
        ({"filters": {"any": [[{"column": "rating", "at_least": 1}]] * 101}}, "more than 100 cond"),
        ({"filters": {"any": [[{"column": "rating", "at_least": 1}] * 101]}}, "more than 100 cond"),
        ({"filters": {"all": [{"column": "rating", "in": list(range(30_000))}]}}, "characters"),
        ({"filters": {"any": [[{"column": "film", "in": ["a" * 100_001]}]]}}, "characters"),
        ({"cohorts": ["gender", "gender"]}, "names a column twice"),
        ({"mechanism": "laplace"}, "mechanism: "),
    ],
)
def test_a_bad_question_names_its_key(changes: dict[str, Any], words: str) -> None:
    content = {"dataset": "movielens", "element": "film", "measure": "users", "k": 3}
    content |= {"max_candidates": 5, "window": {"days": 30}}
    assert words in refusal(QuestionSettings, content | changes)


@pytest.mark.parametrize("text", ["k = = 3", f"k = {'9' * 5000}", f"k = {'[' * 5000}"])
def test_a_missing_file_and_broken_toml_are_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        question_settings.load_question(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text(text)
    with pytest.raises(SettingsError, match="cannot be read as TOML"):
        question_settings.load_question(broken)


def test_a_float_is_read_as_the_decimal_its_author_wrote() -> None:
    budgets = [
        build("a.toml", DatasetSettings, dataset_content(budget__epsilon=value)).budget
        for value in (0.15, "0.15", "0.150", "15e-2")
    ]
    assert {budget.epsilon for budget in budgets} == {"0.15"}


def test_relative_paths_start_at_the_root_of_the_lake_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lake = settings.load_lake(CONF / "local.toml")
    assert lake.tables.ledger == str(CONF.parent / "lake" / "ledger")
    table = settings.load_dataset("movielens", lake).table
    assert table.engagements == str(CONF.parent / "lake" / "movielens" / "engagements")


@pytest.mark.parametrize(
    ("location", "is_name"),
    [("a.b", True), ("main.a.b", True), ("lake/a", False), ("lake", False), ("a.b.c.d", False)],
)
def test_table_names_are_told_from_paths(location: str, is_name: bool) -> None:
    assert settings.is_table_name(location) is is_name


def lake_with_secret(tmp_path: Path, text: str | None) -> settings.LakeSettings:
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "local.toml").write_text((CONF / "local.toml").read_text())
    (tmp_path / "lake").mkdir()
    if text is not None:
        (tmp_path / "lake" / "secret").write_text(text)
    return settings.load_lake(conf / "local.toml")


def test_a_good_secret_is_read(tmp_path: Path) -> None:
    text = bytes(range(32)).hex()
    assert lake_with_secret(tmp_path, text + "\n").read_secret() == bytes(range(32))


@pytest.mark.parametrize(
    "text", [None, "", "zz" * 32, "ab" * 16, "00" * 32, "ab" * 31, bytes(range(31)).hex()]
)
def test_a_missing_or_weak_secret_is_refused_without_being_shown(
    tmp_path: Path, text: str | None
) -> None:
    with pytest.raises(SettingsError, match="openssl rand -hex 32") as caught:
        lake_with_secret(tmp_path, text).read_secret()
    assert not text or text not in str(caught.value)


def test_an_undeclared_analyst_is_refused() -> None:
    dataset = build("a.toml", DatasetSettings, dataset_content())
    assert dataset.allowance("marketing") == (200, 30)
    with pytest.raises(SettingsError, match="'nobody' is not declared"):
        dataset.allowance("nobody")
