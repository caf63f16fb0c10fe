"""What one user adds to an answer is bounded, and thresholds are made for that bound."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dp_udfs import rng
from dp_udfs.errors import SettingsError
from dp_udfs.pandas_udfs import Mechanism
from jobs.lake.bounding import bound_contributions
from jobs.lake.engagements import select
from jobs.lake.histograms import histogram
from jobs.lake.questions import Question
from jobs.release_counts import compute
from tests import lakes
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def exact(tmp_path: Path) -> SmallLake:
    """An empty lake with an epsilon of 100: noise is 0 but once in 10^21 draws."""
    return lakes.make(tmp_path, TEST_SECRET, epsilon="100")


@pytest.fixture
def clips(tmp_path: Path) -> SmallLake:
    """A lake with rows of all kinds, published."""
    small = lakes.make(tmp_path, TEST_SECRET)
    small.append(lakes.many_rows(seed=4, size=300))
    small.publish()
    return small


# --- caps and their order -------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["event", "user_day"])
def test_a_cap_that_spans_several_protected_units_is_refused(tmp_path: Path, unit: str) -> None:
    """Removing one event could swap an element for another: counts would move both ways."""
    with pytest.raises(SettingsError, match=r"clips.toml: .*l0 and max_per_user .* 'user'"):
        lakes.make(tmp_path, TEST_SECRET, privacy_unit=f'"{unit}"')


def test_removing_a_user_moves_few_counts_and_all_of_them_down(
    clips: SmallLake, spark: "SparkSession"
) -> None:
    question = clips.question(
        element="city", max_candidates=9, measure="rows", tau=2, cohorts=["club"]
    )
    assert question.cohorts_per_user == 2
    rows = select(spark, question)
    everybody = bounded_counts(question, rows)
    for user in ("u0", "u1", "u2"):
        without = bounded_counts(question, rows.where(rows.user != user))
        moved = {key: everybody[key] - without[key] for key in everybody | without}
        moved = {key: change for key, change in moved.items() if change}
        assert moved
        assert all(0 < change <= 2 for change in moved.values())
        assert len({element for _, element in moved}) <= 2
        assert len({cohort for cohort, _ in moved}) <= 2


def bounded_counts(question: Question, rows: Any) -> Counter[tuple[str, str]]:
    """The true counts of a question."""
    bounded = bound_contributions(
        rows, cohorts_per_user=2, l0=2, salt=question.dataset.table.bounding_salt
    )
    counted = histogram(bounded, measure="rows", tau=2, cohort_count=4).collect()
    return Counter({(row.cohort, row.element): row.n for row in counted})


def test_who_has_many_titles_in_many_places_counts_once(
    exact: SmallLake, spark: "SparkSession"
) -> None:
    """ "One device a person" and "one country a person" are declared, and are not trusted."""
    devices = exact.dataset.columns["device"].domain
    exact.append(
        [
            watched(f"u{number}", day, device=device, country=country)
            for number in range(30)
            for day, device in enumerate(devices, start=1)
            for country in ("DE", "FR")
        ]
    )
    exact.publish()
    found = lakes.counts(exact.release(spark, element="device", cohorts=["country"]))
    assert sum(found.values()) == 30
    assert sum(count > 0 for count in found.values()) > 5


def test_a_zealous_user_adds_no_more_than_tau(exact: SmallLake, spark: "SparkSession") -> None:
    rows = [watched("zealous", topic=["art", "art"]) for _ in range(500)]
    exact.append([*rows, watched("other", topic=["art", "food"])])
    exact.publish()
    topics: dict[str, Any] = {"element": "topic", "k": 6}
    users = exact.release(spark, **topics)
    assert lakes.counts(users)["all", "art"] == 2
    rows_of_seven = exact.release(spark, **topics, measure="rows", tau=7)
    assert lakes.counts(rows_of_seven)["all", "art"] == 8
    assert lakes.counts(rows_of_seven)["all", "food"] == 1


def test_filters_and_consent_come_before_the_caps(exact: SmallLake, spark: "SparkSession") -> None:
    """Capped first, some of these users would keep only rows that do not count."""
    for_each = [
        {"device": "tv", "country": "DE", "score": 5},
        {"device": "radio", "country": "FR", "score": 5},
        {"device": "watch", "country": "NO", "score": 1},
        {"device": "tv", "country": "NO", "score": 1},
        {"device": "phone", "country": "XX", "score": 5},
    ]
    exact.append([watched(f"u{n}", 1, **columns) for n in range(40) for columns in for_each])
    exact.append([watched(f"out{n}", device="tv", country="DE", score=5) for n in range(9)])
    exact.opt_out(*(f"out{n}" for n in range(9)))
    exact.publish()
    found = lakes.counts(
        exact.release(
            spark,
            element="device",
            cohorts=["country"],
            filters={"all": [{"column": "score", "in": [5]}]},
        )
    )
    assert found["DE", "tv"] + found["FR", "radio"] == 40
    assert sum(found.values()) == 40
    assert min(found["DE", "tv"], found["FR", "radio"]) > 5


# --- thresholds -----------------------------------------------------------------------------------

CITIES: dict[str, Any] = {"element": "city", "mechanism": "fixed_gaussian"}


def test_a_fixed_threshold_reads_the_whole_histogram(
    exact: SmallLake, spark: "SparkSession"
) -> None:
    """More elements than any list of candidates holds, and lone ones that these would displace."""
    crowd = [watched(f"u{n}", city=f"city {n // 3}") for n in range(4500)]
    exact.append(crowd + [watched(f"lone{n}", city=f"a lone city {n}") for n in range(200)])
    exact.publish()
    found = lakes.counts(exact.release(spark, **CITIES))
    assert found == {("all", f"city {n}"): 3 for n in range(1500)}


def test_a_lone_element_changes_no_other_of_a_fixed_threshold(
    clips: SmallLake, spark: "SparkSession", tmp_path: Path
) -> None:
    question = clips.question(**CITIES, cohorts=["channel"])
    answers = []
    for name, more in (("with", [watched("lone", city="A lone city", channel="app")]), ("not", [])):
        table = lakes.engagement_table(clips.dataset, [*more, *clips.rows])
        asked = lakes.same_label(question, tmp_path / name, table)
        answer = compute(asked, TEST_SECRET, spark).rows.to_pylist()
        answers.append(
            [
                (row["cohort"], row["element"], row["noisy_count"])
                for row in answer
                if row["element"] != "A lone city"
            ]
        )
    assert answers[0] == answers[1]
    assert len(answers[0]) > 6


def test_few_of_many_lone_elements_pass_a_gaussian_threshold(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    """Standard deviation 2 and delta 0.01: a Laplace formula would show 2,520 of 100,000.

    Delta allows 1,000; the next whole number that keeps it gives 300 (70 either way: 4 deviations).
    """
    clips = lakes.CLIPS.replace("l0 = 2", "l0 = 1")
    small = lakes.make(tmp_path, TEST_SECRET, clips, epsilon="1", delta="0.01")
    small.append([watched(f"u{number}", city=f"city {number}") for number in range(100_000)])
    small.publish()
    outcome = small.release(spark, **CITIES)
    assert outcome.question.noise.standard_deviation == 2
    shown = lakes.counts(outcome)
    assert 230 < len(shown) < 370
    assert min(shown.values()) == 7  # above 5.652 by whole numbers, and strictly


def test_a_lone_element_seldom_passes_a_laplace_threshold() -> None:
    """Expected are at most 10 of 4,000 (delta 0.01 shared with the neighbour's side); keyed."""
    mechanism = Mechanism("unknown_laplace", l0=1, max_candidates=3, epsilon="2", delta="0.01")
    shown = 0
    for number in range(4000):
        answer = mechanism.run([f"lone {number}"], [1], rng.keyed(TEST_SECRET, number))
        shown += len(answer.elements)
    assert 0 < shown <= 25


def test_absent_elements_of_a_public_list_have_noise_of_their_own(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    """With noise of scale 1, 46 % of zeros stay 0: 397 to 522 of 995 but once in 15,000 times."""
    domain = [f"device {number}" for number in range(1000)]
    clips = lakes.CLIPS.replace('["phone", "radio", "tablet", "tv", "watch"]', str(domain))
    small = lakes.make(tmp_path, TEST_SECRET, clips, epsilon="2")
    small.append([watched(f"u{n}", device=domain[n % 5]) for n in range(500)])
    small.publish()
    found = lakes.counts(small.release(spark, element="device"))
    assert len(found) == 1000
    assert all(80 < found["all", device] < 120 for device in domain[:5])
    noise = Counter(found["all", device] for device in domain[5:])
    assert 397 <= noise[0] <= 522
    assert sum(count for value, count in noise.items() if value > 0) > 200
    assert sum(count for value, count in noise.items() if value < 0) > 200
