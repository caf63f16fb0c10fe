"""The made-up table is the same whoever makes it, and varied in the ways that matter."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from dp_udfs.errors import InvalidParameterError
from jobs.lake import settings, synthetic
from jobs.lake.synthetic import Shape

SHAPE = Shape(rows=60_000, users=3_000, elements=500, cohorts=20, days=10, seed=7)
FIRST_ROWS = [
    {
        "user_id": 931,
        "event_date": date(2024, 1, 27),
        "article": "article-277",
        "employer": "employer-004",
        "audience": "audience-015",
    },
    {
        "user_id": 2899,
        "event_date": date(2024, 1, 23),
        "article": "article-011",
        "employer": "employer-003",
        "audience": "audience-001",
    },
    {
        "user_id": 1790,
        "event_date": date(2024, 1, 22),
        "article": "article-002",
        "employer": "employer-050",
        "audience": "audience-001",
    },
]


def test_a_row_depends_on_its_number_alone() -> None:
    whole = synthetic.rows(np.arange(SHAPE.rows), SHAPE)
    some = np.array([59_999, 0, 31_415])
    assert synthetic.rows(some, SHAPE).equals(whole.take(some))


def test_these_rows_are_the_same_on_every_machine() -> None:
    found = synthetic.rows(np.arange(3), SHAPE).to_pylist()
    assert found == FIRST_ROWS


def test_another_seed_is_another_table() -> None:
    numbers = np.arange(1_000)
    first = synthetic.rows(numbers, SHAPE)
    for other in (8, 0, 2**40):
        second = synthetic.rows(numbers, replace(SHAPE, seed=other))
        for name in first.column_names:
            same = np.mean(np.array(first[name]) == np.array(second[name]))
            assert same < 0.4, (other, name)


def test_the_table_is_skewed_and_people_return() -> None:
    table = synthetic.rows(np.arange(SHAPE.rows), SHAPE).to_pandas()
    articles = table["article"].value_counts()
    # zipf: the share of the k-th article is 1 / (k * H(500)), H(500) = 6.7928
    assert articles["article-001"] == pytest.approx(60_000 / 6.7928, rel=0.05)
    assert articles["article-010"] == pytest.approx(60_000 / 67.928, rel=0.2)
    assert table["user_id"].nunique() > 2_900
    assert table.groupby("user_id")["event_date"].nunique().median() > 3
    audiences = table["audience"].value_counts()
    assert len(audiences) == 20
    assert audiences.iloc[0] > 4 * audiences.iloc[-1]
    assert table["event_date"].min() == date(2024, 1, 21)
    assert table["event_date"].max() == date(2024, 1, 30)


def test_facts_about_people_nearly_hold() -> None:
    """So that enforcing them changes something, as it does in real tables."""
    table = synthetic.rows(np.arange(SHAPE.rows), SHAPE).to_pandas()
    employers = table.groupby("user_id")["employer"].nunique()
    assert set(employers) == {1, 2}
    assert (employers == 2).mean() == pytest.approx(1 / 20, abs=0.02)
    own = table.groupby(["user_id", "audience"]).size().groupby("user_id").max().sum()
    assert 0.88 < own / SHAPE.rows < 0.95


def test_the_dataset_file_fits_the_table() -> None:
    conf = Path(__file__).parents[3] / "conf"
    dataset = settings.load_dataset("synthetic", settings.load_lake(conf / "local.toml"))
    shape = replace(SHAPE, cohorts=200)
    table = synthetic.rows(np.arange(SHAPE.rows), shape)
    assert set(table["audience"].to_pylist()) == set(dataset.columns["audience"].domain)
    assert set(table.column_names) == {"user_id", "event_date", *dataset.columns}


@pytest.mark.parametrize("name", ["rows", "users", "elements", "cohorts", "days"])
def test_sizes_are_positive(name: str) -> None:
    with pytest.raises(InvalidParameterError, match=name):
        replace(SHAPE, **{name: 0})


def test_one_of_everything_works() -> None:
    shape = Shape(rows=2, users=1, elements=1, cohorts=1, days=1, seed=0)
    first, second = synthetic.rows(np.arange(2), shape).to_pylist()
    assert first == second
    assert first["article"] == "article-001"
