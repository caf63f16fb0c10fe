"""Questions that mean the same are the same question; a difference in data or parameters is not."""

from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dp_udfs.budget import Loss
from dp_udfs.errors import ClaimError, SettingsError, UnboundedContributionError
from jobs.lake import questions, settings
from jobs.lake.conditions import in_words
from jobs.lake.question_settings import QuestionSettings
from jobs.lake.questions import Question, resolve
from jobs.lake.settings import Column, DatasetSettings
from jobs.lake.tables import Snapshot, TableState
from jobs.lake.toml_files import build

CONF = Path(__file__).parents[3] / "conf"
SECRET = bytes(range(32))


def state(digest: str = "d1", table_id: str = "t1") -> TableState:
    return TableState(location="/lake/t", table_id=table_id, version=3, digest=digest)


def a_snapshot(**tables: TableState) -> Snapshot:
    return Snapshot(
        snapshot_id=7,
        as_of=date(1998, 4, 23),
        published_at=datetime(1998, 4, 23, tzinfo=UTC),
        tables={"engagements": state()} | tables,
    )


@pytest.fixture
def dataset() -> DatasetSettings:
    return settings.load_dataset("movielens", settings.load_lake(CONF / "local.toml"))


Ask = Callable[..., Question]


@pytest.fixture
def ask(dataset: DatasetSettings) -> Ask:
    def ask(of: DatasetSettings = dataset, **changes: Any) -> Question:
        content = {
            "dataset": "movielens",
            "element": "film",
            "measure": "users",
            "k": 10,
            "max_candidates": 200,
            "window": {"days": 30},
        } | changes
        content = {key: value for key, value in content.items() if value is not None}
        return resolve(build("a", QuestionSettings, content), of, a_snapshot())

    return ask


def filters(*all_of: dict[str, Any], any_of: Any = ()) -> dict[str, Any]:
    return {"all": list(all_of), "any": list(any_of)}


def test_a_rolling_window_becomes_absolute(ask: Ask) -> None:
    question = ask(window={"days": 30})
    assert (question.start, question.end) == (date(1998, 3, 24), date(1998, 4, 23))
    assert question.label == ask(window={"from": "1998-03-24", "to": "1998-04-23"}).label


def test_a_window_reaches_back_as_far_as_rows_are_retained(
    ask: Ask, dataset: DatasetSettings
) -> None:
    table = dataset.table.model_copy(update={"retention_days": 30, "purge_lag_days": 5})
    short = dataset.model_copy(update={"table": table})
    assert ask(short, window={"days": 30}).start == date(1998, 3, 24)
    with pytest.raises(SettingsError, match="retention 30 days"):
        ask(short, window={"days": 31})


def test_an_old_snapshot_is_not_read_past_the_retention(ask: Ask, dataset: DatasetSettings) -> None:
    table = dataset.table.model_copy(update={"retention_days": 30, "purge_lag_days": 5})
    short = dataset.model_copy(update={"table": table})
    question = replace(ask(window={"days": 30}), dataset=short)
    question.require_retained(date(1998, 4, 28))
    with pytest.raises(SettingsError, match="may not be read any more"):
        question.require_retained(date(1998, 4, 29))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            filters({"column": "gender", "in": ["F"]}, {"column": "rating", "in": [4, 5]}),
            filters({"column": "rating", "in": [5, 4, 4]}, {"column": "gender", "in": ["F"]}),
        ),
        (
            filters({"column": "rating", "at_least": 4}),
            filters({"column": "rating", "in": [4, 5]}),
        ),
        (
            filters({"column": "rating", "at_least": 2}, {"column": "rating", "at_most": 3}),
            filters({"column": "rating", "in": [2, 3]}),
        ),
        (
            filters({"column": "gender", "in": ["F"]}),
            filters(any_of=[[{"column": "gender", "in": ["F"]}]]),
        ),
        (
            filters({"column": "rating", "in": [1, 2]}, {"column": "rating", "in": [2, 3]}),
            filters({"column": "rating", "in": [2]}),
        ),
        (
            filters(any_of=[[{"column": "gender", "in": ["F"]}, {"column": "rating", "in": [1]}]]),
            filters(any_of=[[{"column": "rating", "in": [1]}, {"column": "gender", "in": ["F"]}]]),
        ),
    ],
)
def test_filters_that_mean_the_same_are_the_same_question(
    ask: Ask, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert ask(filters=one).label == ask(filters=other).label


def test_a_question_says_which_rows_it_counts(ask: Ask) -> None:
    assert ask().describe().endswith(" (exclusive)")
    asked = filters(
        {"column": "rating", "at_least": 4},
        any_of=[[{"column": "gender", "in": ["F"]}, {"column": "occupation", "in": ["writer"]}]],
    )
    words = "(exclusive), where (gender = F or occupation = writer) and rating in [4, 5]"
    assert ask(filters=asked).describe().endswith(words)


def test_a_long_filter_is_said_in_short() -> None:
    ids = ("station", tuple(range(12)))
    assert in_words(((ids,),)) == "station in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...]"
    assert in_words(((("station", None, 5),),)) == "station <= 5"
    assert in_words(((("station", 1, 5),),)) == "station >= 1 and station <= 5"
    assert in_words(((("station", ()),),)) == "station in []"


def test_filters_that_differ_are_different_questions(ask: Ask) -> None:
    either = filters(any_of=[[{"column": "gender", "in": ["F"]}, {"column": "rating", "in": [1]}]])
    both = filters({"column": "gender", "in": ["F"]}, {"column": "rating", "in": [1]})
    nothing = filters({"column": "gender", "in": ["F"]}, {"column": "gender", "in": ["M"]})
    labels = {ask(filters=f).label for f in (either, both, nothing)} | {ask().label}
    assert len(labels) == 4


def test_everything_that_decides_an_answer_is_in_the_label(
    ask: Ask, dataset: DatasetSettings
) -> None:
    question = ask()
    changed = [
        ask(k=9),
        ask(max_candidates=201),
        ask(window={"days": 29}),
        ask(cohorts=["gender"]),
        ask(with_counts=False),
        ask(optimise_threshold=False),
        ask(measure="rows", tau=1),
        ask(measure="rows", tau=2),
        replace(question, snapshot=replace(a_snapshot(), snapshot_id=8)),
        replace(question, snapshot=a_snapshot(engagements=state(digest="d2"))),
        replace(question, snapshot=a_snapshot(engagements=state(table_id="t2"))),
        replace(question, snapshot=a_snapshot(opt_outs=state())),
        replace(
            question,
            dataset=dataset.model_copy(
                update={"table": dataset.table.model_copy(update={"bounding_salt": "other"})}
            ),
        ),
    ]
    assert len({q.label for q in [question, *changed]}) == len(changed) + 1


def test_every_field_is_in_the_label_by_itself(ask: Ask, dataset: DatasetSettings) -> None:
    """Also where another field happens to tell two questions apart already."""
    question = replace(
        ask(), filters=tuple(((name, (1,)),) for name in sorted(dataset.columns)), secret_id="s"
    )
    day = timedelta(days=1)
    others: dict[str, Any] = {
        "dataset": dataset.model_copy(update={"name": "other"}),
        "snapshot": replace(question.snapshot, snapshot_id=8),
        "element": "area",
        "measure": "rows",
        "mechanism": replace(question.mechanism, tau=2),
        "cohort_columns": ("gender",),
        "cohorts": ("F", "M"),
        "cohorts_per_user": 1,
        "start": question.start - day,
        "end": question.end - day,
        "filters": question.filters[1:],
        "secret_id": "t",
        "code_version": question.code_version + 1,
    }
    assert {field.name for field in fields(Question)} == {*others, "show"}
    changed = [replace(question, **{name: value}) for name, value in others.items()]
    assert len({q.label for q in [question, *changed]}) == len(changed) + 1


@pytest.mark.parametrize("name", ["film", "gender", "rating"])
def test_what_is_declared_of_a_column_that_is_used_is_in_the_label(
    ask: Ask, dataset: DatasetSettings, name: str
) -> None:
    question = ask(cohorts=["gender"], filters=filters({"column": "rating", "in": [5]}))
    facts: dict[str, Any] = {
        "type": "other",
        "use": (),
        "many": True,
        "domain": (1, 2),
        "l0": 7,
        "max_per_user": 7,
        "keep_nulls": True,
    }
    assert facts.keys() == Column.model_fields.keys()
    labels = {question.label}
    for fact, value in facts.items():
        column = dataset.columns[name].model_copy(update={fact: value})
        columns = {**dataset.columns, name: column}
        other = dataset.model_copy(update={"columns": columns})
        labels.add(replace(question, dataset=other).label)
    assert len(labels) == len(facts) + 1


def test_code_version_changes_the_label(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ask().label
    monkeypatch.setattr(questions, "CODE_VERSION", questions.CODE_VERSION + 1)
    assert ask().label != before


def test_a_cut_after_the_noise_is_no_part_of_the_question(ask: Ask) -> None:
    areas = {"element": "area", "max_candidates": 50}
    assert ask(**areas, k=3).label == ask(**areas, k=None).label
    assert ask(**areas, k=3).show == 3


def test_a_smaller_k_is_of_the_same_family(ask: Ask) -> None:
    assert ask(k=5).family_label == ask(k=10).family_label
    assert ask(k=5).family_label != ask(k=5, max_candidates=100).family_label


@pytest.mark.parametrize(
    ("changes", "name", "l0", "domain"),
    [
        ({}, "unknown_gumbel", None, None),
        ({"element": "area", "mechanism": "unknown_gumbel"}, "unknown_gumbel", 1, None),
        ({"element": "area", "k": None}, "unknown_laplace", 1, None),
        ({"element": "occupation", "k": None, "max_candidates": None}, "known_laplace", 1, 21),
        ({"element": "genre", "max_candidates": None}, "known_gumbel", None, 19),
    ],
)
def test_the_mechanism_follows_from_declared_facts(
    ask: Ask, changes: dict[str, Any], name: str, l0: int | None, domain: int | None
) -> None:
    mechanism = ask(**changes).mechanism
    assert (mechanism.name, mechanism.l0) == (name, l0)
    assert (mechanism.domain and len(mechanism.domain)) == domain


def test_prices_are_those_of_the_reference(ask: Ask) -> None:
    assert ask(k=10).reserve == Loss(21, 1)
    assert ask(k=10, with_counts=False).reserve == Loss(11, 1)
    assert ask(element="genre", k=5, max_candidates=None).reserve == Loss(10, 1)
    assert ask(element="genre", k=50, max_candidates=None).reserve == Loss(38, 1)
    assert ask(element="area", k=None, max_candidates=50).reserve == Loss(1, 1)


def test_exclusive_cohorts_cost_the_largest_and_others_the_sum(ask: Ask) -> None:
    grouped = ask(cohorts=["gender", "age_band"])
    assert len(grouped.cohorts) == 8
    assert grouped.cohorts_per_user == 1
    assert grouped.reserve == Loss(21, 1)
    assert grouped.charge([4, 2, 21, 2, 2, 2, 2, 2]) == Loss(21, 1)
    open_ended = replace(grouped, cohorts_per_user=None)
    assert open_ended.reserve == Loss(8 * 21, 8)
    assert open_ended.charge([4, 2, 21, 2, 2, 2, 2, 2]) == Loss(37, 8)
    two = replace(grouped, cohorts_per_user=2)
    assert two.reserve == Loss(42, 2)
    assert two.charge([4, 2, 21, 2, 2, 2, 2, 2]) == Loss(37, 2)


@pytest.mark.parametrize(
    ("gender", "age_band", "together"), [(1, 1, 1), (2, 3, 6), (3, 4, 8), (1, None, None)]
)
def test_one_user_is_counted_in_as_many_cohorts_as_the_caps_allow_together(
    ask: Ask,
    dataset: DatasetSettings,
    gender: int | None,
    age_band: int | None,
    together: int | None,
) -> None:
    columns = dict(dataset.columns)
    for name, cap in (("gender", gender), ("age_band", age_band)):
        columns[name] = columns[name].model_copy(update={"max_per_user": cap})
    capped = dataset.model_copy(update={"columns": columns})
    question = ask(capped, cohorts=["gender", "age_band"])
    assert question.cohorts_per_user == together
    assert question.cohorts_met == (together or 8)


def test_cohorts_in_another_order_are_the_same_question(ask: Ask) -> None:
    assert ask(cohorts=["gender", "age_band"]).label == ask(cohorts=["age_band", "gender"]).label


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"element": "rating"}, "'rating' is not declared for use as element"),
        ({"element": "nothing"}, "'nothing' is not declared"),
        ({"cohorts": ["film"]}, "'film' is not declared for use as cohort"),
        ({"k": 201}, "k: 201 is above max_candidates = 200"),
        ({"k": None}, "k: missing; unknown_gumbel needs it"),
        ({"max_candidates": None}, "max_candidates: missing"),
        ({"max_candidates": 10**6}, "max_candidates: at most"),
        ({"mechanism": "known_gumbel"}, "needs a public domain"),
        ({"element": "genre", "max_candidates": 5}, "known_gumbel does not use it"),
        (
            {"window": {"from": "1890-01-01", "to": "1890-02-01"}},
            "leaves what snapshot 7 holds: 1898",
        ),
        (
            {"window": {"from": "1998-04-01", "to": "1998-04-24"}},
            "leaves what snapshot 7 holds: 1898",
        ),
        ({"filters": filters({"column": "film", "in": ["x"]})}, "not declared for use as filter"),
        ({"filters": filters({"column": "gender", "in": ["X"]})}, "not in the domain"),
        ({"filters": filters({"column": "gender", "at_least": 1})}, "is text"),
        ({"filters": filters({"column": "rating", "in": ["5"]})}, "values of type bigint"),
        ({"filters": {"any": [[]]}}, "a group is empty"),
        ({"element": "area", "k": None, "with_counts": False}, "always releases counts"),
    ],
)
def test_a_question_that_does_not_fit_is_refused(
    ask: Ask, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        ask(**changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bounded_mechanism_needs_a_declared_bound(ask: Ask) -> None:
    with pytest.raises(UnboundedContributionError, match="needs l0 declared"):
        ask(mechanism="unknown_laplace", k=None)


def test_the_gaussian_must_be_allowed_by_the_dataset(ask: Ask, dataset: DatasetSettings) -> None:
    question = ask(element="area", mechanism="fixed_gaussian", k=None, max_candidates=None)
    assert question.mechanism.name == "fixed_gaussian"
    strict = dataset.model_copy(
        update={"budget": dataset.budget.model_copy(update={"gaussian": False})}
    )
    content = {
        "dataset": "movielens",
        "element": "area",
        "measure": "users",
        "mechanism": "fixed_gaussian",
        "window": {"days": 30},
    }
    with pytest.raises(SettingsError, match="gaussian"):
        resolve(build("a", QuestionSettings, content), strict, a_snapshot())


def test_keys_and_fingerprints_follow_the_question_the_secret_and_the_analyst(ask: Ask) -> None:
    question, other = ask(), ask(k=9)
    keys = {question.noise_key(SECRET), question.noise_key(SECRET[::-1]), other.noise_key(SECRET)}
    assert len(keys) == 3
    assert all(len(key) == 32 for key in keys)
    prints = {
        question.fingerprint("marketing"),
        question.fingerprint("research"),
        replace(question, secret_id="s2").fingerprint("marketing"),
        other.fingerprint("marketing"),
    }
    assert len(prints) == 4
    assert questions.secret_id(SECRET) != questions.secret_id(SECRET[::-1])
    assert questions.secret_id(SECRET) not in SECRET.hex()


def test_a_fingerprint_binds_the_amounts(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ask()
    before = question.fingerprint("marketing")
    for more in (question.reserve + Loss(1, 0), question.reserve + Loss(0, 1)):
        monkeypatch.setattr(Question, "reserve", more)
        assert question.fingerprint("marketing") != before


def test_under_another_secret_it_is_another_question(ask: Ask) -> None:
    question = replace(ask(k=5), secret_id=questions.secret_id(SECRET))
    other = replace(question, secret_id=questions.secret_id(SECRET[::-1]))
    assert question.label != other.label
    assert question.family_label != other.family_label
    question.require_computable(SECRET)
    with pytest.raises(ClaimError, match="new run id"):
        question.require_computable(SECRET[::-1])
