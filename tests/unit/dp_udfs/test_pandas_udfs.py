"""The bridge over Arrow batches gives what `Mechanism.run` gives, however the rows arrive."""

import pickle
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_udfs import pandas_udfs, rng
from dp_udfs.errors import InvalidParameterError
from dp_udfs.pandas_udfs import ARROW_ANSWER_SCHEMA, Mechanism
from dp_udfs.rng import Element

KEY = bytes(range(32, 64))
PUBLIC = ("adults", "all | x", "seniors", "teens", "éé", "")
FILMS = ("Alien", "Brazil", None, "", "null", "None", "😀")

MECHANISMS = {
    "known_laplace": Mechanism("known_laplace", l0=1, epsilon="0.5", domain=("Alien", "", "Duel")),
    "known_gumbel": Mechanism("known_gumbel", k=2, tau=2, epsilon="0.5", domain=("Alien", "Duel")),
    "known_gumbel without counts": Mechanism(
        "known_gumbel", k=9, epsilon="0.5", with_counts=False, domain=("Alien", None, "Duel")
    ),
    "unknown_laplace": Mechanism(
        "unknown_laplace", l0=2, max_candidates=6, epsilon="0.9", delta="0.05"
    ),
    "unknown_gumbel": Mechanism(
        "unknown_gumbel", k=3, max_candidates=6, epsilon="0.9", delta="0.05"
    ),
    "unknown_gumbel with l0, without counts": Mechanism(
        "unknown_gumbel",
        k=3,
        l0=1,
        max_candidates=7,
        epsilon="0.9",
        delta="0.05",
        with_counts=False,
        optimise_threshold=False,
    ),
    "fixed_gaussian": Mechanism("fixed_gaussian", l0=1, epsilon="0.9", delta="0.05"),
}
every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)

Histograms = dict[str, dict[Element, int]]

histograms = st.dictionaries(
    st.sampled_from(PUBLIC),
    st.dictionaries(st.sampled_from(FILMS), st.integers(1, 60), min_size=1),
)


def batches(
    rows: Sequence[tuple[str | None, Element, int]],
    cuts: Iterable[int] = (),
    element: pa.DataType | None = None,
) -> list[pa.RecordBatch]:
    """Rows as record batches, cut at these places."""
    schema = pa.schema(
        [("cohort", pa.string()), ("element", element or pa.string()), ("n", pa.int64())]
    )
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    whole = pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)
    edges = [0, *sorted(cuts), len(rows)]
    parts = [whole.slice(a, b - a) for a, b in pairwise(edges)]
    return [
        batch
        for part in parts
        for batch in part.to_batches() or [pa.RecordBatch.from_pylist([], schema=schema)]
    ]


def expected(
    mechanism: Mechanism, histograms: Histograms, cohorts: Iterable[str]
) -> list[dict[str, Any]]:
    """Rows by the definition: one cohort after the other."""
    rows = []
    for cohort in cohorts:
        histogram = histograms.get(cohort, {})
        answer = mechanism.run(
            list(histogram), list(histogram.values()), rng.keyed(KEY, "cohort", cohort)
        )
        for place, element in enumerate(answer.elements):
            rows.append(
                blank("element", cohort)
                | {
                    "rank": place + 1,
                    "element": None if element is None else str(element),
                    "noisy_count": None if answer.counts is None else answer.counts[place],
                }
            )
        rows.append(
            blank("stop", cohort)
            | {"stopped": answer.stopped, "units": answer.units, "calls": answer.calls}
        )
    return rows


def blank(row_kind: str, cohort: str) -> dict[str, Any]:
    return dict.fromkeys(ARROW_ANSWER_SCHEMA.names) | {"row_kind": row_kind, "cohort": cohort}


def run(answer: Any, parts: Iterable[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(answer(iter(parts)), schema=ARROW_ANSWER_SCHEMA)


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    order = table.to_pylist()
    return sorted(order, key=lambda row: (row["cohort"], row["rank"] is None, row["rank"]))


def bridge(
    mechanism: Mechanism,
    parts: Sequence[pa.RecordBatch],
    cohorts: Sequence[str] = PUBLIC,
) -> list[dict[str, Any]]:
    """The whole answer, by the path that a release takes for this mechanism."""
    path = pandas_udfs.answer_elementwise if mechanism.elementwise else pandas_udfs.answer_cohorts
    answered = run(path(mechanism, KEY), parts)
    return sorted_rows(pandas_udfs.complete(answered, mechanism, KEY, cohorts))


@every_mechanism
@given(histograms=histograms, data=st.data())
@settings(max_examples=60, deadline=None)
def test_batches_answer_as_the_definition_does(
    mechanism: Mechanism, histograms: Histograms, data: st.DataObject
) -> None:
    """Any order of cohorts and rows, any cuts into batches, empty ones too, absent cohorts too."""
    cohorts = data.draw(st.permutations(list(histograms)))
    rows = [
        (cohort, element, histograms[cohort][element])
        for cohort in cohorts
        for element in data.draw(st.permutations(list(histograms[cohort])))
    ]
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=6))
    assert bridge(mechanism, batches(rows, cuts)) == expected(mechanism, histograms, sorted(PUBLIC))


@given(histograms=histograms, data=st.data())
@settings(max_examples=60, deadline=None)
def test_elementwise_rows_may_come_in_any_order(
    histograms: Histograms, data: st.DataObject
) -> None:
    mechanism = MECHANISMS["fixed_gaussian"]
    rows = [(cohort, *pair) for cohort, found in histograms.items() for pair in found.items()]
    rows = data.draw(st.permutations(rows))
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=6))
    assert bridge(mechanism, batches(rows, cuts)) == expected(mechanism, histograms, sorted(PUBLIC))


@every_mechanism
def test_large_integers_stay_exact_beside_null(mechanism: Mechanism) -> None:
    """Two ids that are one number in floating point, and a NULL in the same batch."""
    numbers = [9007199254740992, 9007199254740993, None]
    if mechanism.domain is not None:
        mechanism = Mechanism("known_laplace", l0=1, epsilon="0.5", domain=tuple(numbers[:2]))
    rows = [("adults", number, 500 + place) for place, number in enumerate(numbers)]
    shown = [
        row["element"]
        for row in bridge(mechanism, batches(rows, element=pa.int64()))
        if row["cohort"] == "adults" and row["row_kind"] == "element"
    ]
    names = {"9007199254740992", "9007199254740993"}
    assert set(shown) == (names if mechanism.domain else names | {None})
    assert len(shown) == len(set(shown))


def test_null_is_an_element_of_its_own() -> None:
    mechanism = Mechanism("unknown_gumbel", k=9, max_candidates=9, epsilon="20", delta="1e-6")
    rows = [("adults", element, 100) for element in (None, "null", "None", "", "NULL", "a")]
    answer = bridge(mechanism, batches(rows), ["adults"])
    shown = {row["element"]: row["noisy_count"] for row in answer if row["row_kind"] == "element"}
    assert set(shown) == {None, "null", "None", "", "NULL", "a"}
    assert all(abs(count - 100) < 5 for count in shown.values())
    assert [row["row_kind"] for row in answer] == ["element"] * 6 + ["stop"]


def test_rows_without_a_cohort_or_outside_the_public_list_are_dropped() -> None:
    mechanism = MECHANISMS["unknown_gumbel"]
    rows = [("adults", "Alien", 60), (None, "Alien", 60), ("unlisted", "Alien", 60)]
    assert bridge(mechanism, batches(rows)) == bridge(mechanism, batches(rows[:1]))


def test_elements_outside_a_known_domain_are_dropped_and_absent_ones_count_zero() -> None:
    mechanism = Mechanism("known_laplace", l0=1, epsilon="20", domain=("a", "b"))
    rows = [("adults", "a", 70), ("adults", "z", 90), ("adults", None, 90)]
    answer = bridge(mechanism, batches(rows), ["adults", "teens"])
    counts = [(row["cohort"], row["element"], row["noisy_count"]) for row in answer if row["rank"]]
    assert [name[:2] for name in counts] == [
        ("adults", "a"), ("adults", "b"), ("teens", counts[2][1]), ("teens", counts[3][1])
    ]  # fmt: skip
    assert abs(counts[0][2] - 70) < 5
    assert all(abs(count) < 5 for _, _, count in counts[1:])


@every_mechanism
def test_no_rows_at_all_answer_every_cohort_and_charge_it(mechanism: Mechanism) -> None:
    answer = bridge(mechanism, [])
    stops = [row for row in answer if row["row_kind"] == "stop"]
    assert [row["cohort"] for row in stops] == sorted(PUBLIC)
    assert all(row["units"] > 0 and row["calls"] == 1 for row in stops)


def test_cohorts_and_keys_have_noise_of_their_own() -> None:
    mechanism = Mechanism("known_laplace", l0=1, epsilon="0.001", domain=tuple("abcdefgh"))
    answers = [
        {row["element"]: row["noisy_count"] for row in answer if row["rank"]}
        for answer in (
            bridge(mechanism, [], ["adults"]),
            bridge(mechanism, [], ["teens"]),
            sorted_rows(
                pandas_udfs.complete(
                    ARROW_ANSWER_SCHEMA.empty_table(), mechanism, bytes(32), ["adults"]
                )
            ),
        )
    ]
    for letter in "abcdefgh":
        assert len({answer[letter] for answer in answers}) == 3


def test_a_cohort_in_two_pieces_is_refused() -> None:
    rows = [("a", "x", 3), ("b", "x", 3), ("a", "y", 3)]
    answer = pandas_udfs.answer_cohorts(MECHANISMS["unknown_gumbel"], KEY)
    with pytest.raises(InvalidParameterError, match="follow each other"):
        run(answer, batches(rows))


def test_only_elementwise_mechanisms_answer_elementwise() -> None:
    with pytest.raises(InvalidParameterError, match="one by one"):
        pandas_udfs.answer_elementwise(MECHANISMS["unknown_laplace"], KEY)


def test_many_cohorts_come_back_in_several_batches() -> None:
    mechanism = Mechanism("known_gumbel", k=50, epsilon="1", domain=tuple(range(50)))
    rows = [(f"cohort {place:04}", 0, 5) for place in range(300)]
    parts = list(
        pandas_udfs.answer_cohorts(mechanism, KEY)(iter(batches(rows, element=pa.int64())))
    )
    assert len(parts) > 1
    assert sum(len(part) for part in parts) == 300 * 51


def test_only_what_the_mechanism_may_see_is_asked_for() -> None:
    assert MECHANISMS["unknown_gumbel"].limit == 7
    assert MECHANISMS["known_laplace"].limit is None
    assert MECHANISMS["fixed_gaussian"].limit is None
    assert MECHANISMS["fixed_gaussian"].elementwise


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"name": "laplace", "epsilon": "1"}, "mechanism"),
        ({"name": "known_laplace", "l0": 1, "epsilon": "1"}, "domain"),
        ({"name": "known_laplace", "epsilon": "1", "domain": ("a",)}, "l0"),
        ({"name": "known_laplace", "l0": 1, "k": 3, "epsilon": "1", "domain": ("a",)}, "k is not"),
        ({"name": "fixed_gaussian", "l0": 1, "epsilon": "1"}, "delta"),
        ({"name": "fixed_gaussian", "l0": 0, "epsilon": "1", "delta": "0.1"}, "l0"),
        ({"name": "fixed_gaussian", "l0": 1, "epsilon": "nan", "delta": "0.1"}, "epsilon"),
        ({"name": "fixed_gaussian", "l0": 1, "tau": 0, "epsilon": "1", "delta": "0.1"}, "tau"),
    ],
)
def test_a_mechanism_checks_itself(parameters: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameterError, match=named):
        Mechanism(**parameters)


def test_a_mechanism_travels_to_workers() -> None:
    for mechanism in MECHANISMS.values():
        assert pickle.loads(pickle.dumps(mechanism)) == mechanism


def test_workers_do_not_import_spark_or_pandas() -> None:
    code = "import sys, dp_udfs.pandas_udfs; print({'pyspark', 'pandas'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_numpy_counts_of_any_width_serve() -> None:
    mechanism = MECHANISMS["unknown_gumbel"]
    wide = mechanism.run(["a", "b"], [50, 40], rng.keyed(KEY))
    assert mechanism.run(["a", "b"], np.array([50, 40], dtype=np.int16), rng.keyed(KEY)) == wide
