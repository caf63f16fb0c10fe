"""What every mechanism promises besides its distribution (for that, see tests/statistical)."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError, dataclass
from fractions import Fraction
from inspect import signature
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_udfs import candidates, noise, prices, top_k
from dp_udfs.candidates import Counts, Elements
from dp_udfs.errors import InvalidParameterError
from dp_udfs.rng import Element, SecureRandom, fresh, keyed
from dp_udfs.top_k import TopK

SECRET = bytes(range(32))
LABEL = ("table-7", "snapshot-3", "top films", "cohort-a")


@dataclass(frozen=True)
class Case:
    """One mechanism with parameters; `sees_all` where it reads a whole histogram or domain."""

    function: Callable[..., TopK]
    parameters: dict[str, Any]
    sees_all: bool = False

    def __call__(
        self, elements: Elements, counts: Counts, rng: SecureRandom, **changed: Any
    ) -> TopK:
        return self.function(elements, counts, rng=rng, **(self.parameters | changed))

    def reserve(self, domain_size: int) -> int:
        names = ("k", "l0", "with_counts", "optimise_threshold")
        given = {name: value for name, value in self.parameters.items() if name in names}
        units, calls = prices.maximum_cost(self.function.__name__, domain_size=domain_size, **given)
        assert calls == 1
        return units


UNKNOWN_GUMBEL = {"k": 5, "linf": 1, "max_candidates": 8, "epsilon": "1", "delta": "0.01"}
CASES = {
    "known_laplace": Case(top_k.known_laplace, {"l0": 2, "linf": 1, "epsilon": "1"}, True),
    "known_gumbel": Case(top_k.known_gumbel, {"k": 5, "linf": 1, "epsilon": "1"}, True),
    "known_gumbel without counts": Case(
        top_k.known_gumbel, {"k": 5, "linf": 1, "epsilon": "1", "with_counts": False}, True
    ),
    "unknown_laplace": Case(
        top_k.unknown_laplace,
        {"l0": 2, "linf": 1, "max_candidates": 8, "epsilon": "1", "delta": "0.01"},
    ),
    "unknown_gumbel": Case(top_k.unknown_gumbel, UNKNOWN_GUMBEL),
    "unknown_gumbel with l0": Case(top_k.unknown_gumbel, UNKNOWN_GUMBEL | {"l0": 2}),
    "unknown_gumbel, fixed candidates": Case(
        top_k.unknown_gumbel, UNKNOWN_GUMBEL | {"optimise_threshold": False}
    ),
    "unknown_gumbel without counts": Case(
        top_k.unknown_gumbel, UNKNOWN_GUMBEL | {"with_counts": False}
    ),
    "fixed_gaussian": Case(
        top_k.fixed_gaussian, {"l0": 2, "linf": 1, "epsilon": "1", "delta": "0.01"}, True
    ),
}
every_mechanism = pytest.mark.parametrize("case", CASES.values(), ids=CASES)

FILMS: tuple[Element, ...] = (
    "Alien",
    "Brazil",
    "Casablanca",
    "Duel",
    "Eraserhead",
    None,
    "",
    "é",
    "😀",
    "null",
)
COUNTS = (60, 55, 50, 45, 40, 35, 30, 25, 20, 15)


def for_case(case: Case) -> tuple[tuple[Element, ...], tuple[int, ...]]:
    """As many of the candidates as the mechanism may see."""
    most = len(FILMS) if case.sees_all else case.parameters["max_candidates"] + 1
    return FILMS[:most], COUNTS[:most]


# --- the contract of every mechanism --------------------------------------------------------------


@every_mechanism
def test_the_same_label_repeats_the_answer_and_the_answer_is_frozen(case: Case) -> None:
    answer = case(*for_case(case), keyed(SECRET, *LABEL))
    assert answer == case(*for_case(case), keyed(SECRET, *LABEL))
    assert len(answer.elements) > 0
    with pytest.raises(FrozenInstanceError):
        answer.units = 0  # type: ignore[misc]


@every_mechanism
@given(order=st.permutations(range(len(FILMS))))
@settings(max_examples=20, deadline=None)
def test_the_order_of_candidates_does_not_matter(case: Case, order: list[int]) -> None:
    elements, counts = for_case(case)
    order = [place for place in order if place < len(elements)]
    shuffled = [elements[i] for i in order], np.array([counts[i] for i in order], dtype=np.int32)
    rng = keyed(SECRET, *LABEL)
    assert case(*shuffled, rng) == case(elements, counts, rng)


@every_mechanism
def test_ties_go_by_name_whatever_the_order(case: Case) -> None:
    elements, _ = for_case(case)
    rng = keyed(SECRET, *LABEL)
    answers = {
        case(list(order), [9] * len(elements), rng)
        for order in (elements, elements[::-1], elements[3:] + elements[:3])
    }
    assert len(answers) == 1


@every_mechanism
def test_integers_are_elements_too_and_sort_as_numbers(case: Case) -> None:
    numbers = [9007199254740993, 9007199254740992, 10, 9, -1, None, 0, 7, 8]
    rng = keyed(SECRET, *LABEL)
    plain = case(numbers, COUNTS[:9], rng)
    assert case(np.array(numbers[:5]), COUNTS[:5], rng) == case(numbers[:5], COUNTS[:5], rng)
    assert set(plain.elements) <= set(numbers)
    assert all(element is None or type(element) is int for element in plain.elements)


@every_mechanism
def test_the_cost_of_any_outcome_is_within_the_reserve(case: Case) -> None:
    elements, counts = for_case(case)
    for seed in range(60):
        answer = case(elements, [count // (1 + seed % 12) for count in counts], keyed(SECRET, seed))
        assert 0 < answer.units <= case.reserve(len(elements))
        if "k" not in case.parameters:  # it costs its bound, whatever it shows
            assert answer.units == case.parameters["l0"]
        assert answer.calls == 1


@every_mechanism
def test_no_candidates_run_the_same_path_and_are_charged(case: Case) -> None:
    rng = keyed(SECRET, *LABEL)
    known = case.function.__name__.startswith("known")
    elements = list(FILMS) if known else []
    answer = case(elements, [0] * len(elements), rng)
    assert answer.units > 0
    assert answer.calls == 1
    if not known:
        assert answer == case(FILMS[:8], [0] * 8, rng)  # a zero is no candidate
        assert answer.elements == ()
        assert answer.stopped
    if answer.counts is not None:
        assert all(type(count) is int for count in answer.counts)


@pytest.mark.parametrize("name", ["unknown_laplace", "unknown_gumbel", "fixed_gaussian"])
def test_an_element_that_is_not_in_the_data_is_never_shown(name: str) -> None:
    """However low the threshold: delta 0.9, and noise of about 10."""
    shown: set[Element] = set()
    for seed in range(300):
        rng = keyed(SECRET, seed)
        shown |= set(
            CASES[name](["a", "b", "y", "z"], [2, 1, 0, 0], rng, epsilon="0.2", delta=0.9).elements
        )
    assert shown == {"a", "b"}


@every_mechanism
@pytest.mark.parametrize("part", range(len(LABEL)))
def test_any_part_of_the_label_changes_all_the_noise(case: Case, part: int) -> None:
    label = [text + "x" if place == part else text for place, text in enumerate(LABEL)]
    assert_other_noise(case, keyed(SECRET, *label), {})


@every_mechanism
def test_any_parameter_changes_all_the_noise_even_if_the_label_forgot_it(case: Case) -> None:
    changes = {"epsilon": "1.01", "delta": "0.011", "linf": 2, "l0": 3, "k": 4, "max_candidates": 9}
    known = signature(case.function).parameters
    flags = {
        name: not case.parameters.get(name, parameter.default)
        for name, parameter in known.items()
        if isinstance(parameter.default, bool)
    }
    for name, value in (changes | flags).items():
        if name in known:
            assert_other_noise(case, keyed(SECRET, *LABEL), {name: value})


def assert_other_noise(case: Case, rng: SecureRandom, changed: dict[str, Any]) -> None:
    """The uniform numbers behind the answer share nothing with those of the usual label."""
    usual, other = Recorder(keyed(SECRET, *LABEL)), Recorder(rng)
    case(*for_case(case), usual)
    case(*for_case(case), other, **changed)
    assert usual.drawn
    assert not usual.drawn & other.drawn


@every_mechanism
def test_selection_and_counts_draw_for_different_purposes(case: Case) -> None:
    rng = Recorder(keyed(SECRET, *LABEL))
    answer = case(*for_case(case), rng)
    expected = set() if answer.counts is None else {"count"}
    if case.function is top_k.unknown_laplace:
        expected |= {"stop"}
    if case.function in (top_k.known_gumbel, top_k.unknown_gumbel):
        expected |= {"selection"}
    if case.function is top_k.unknown_gumbel and case.parameters.get("optimise_threshold", True):
        expected |= {"optimal-threshold"}
    assert rng.purposes == expected


@every_mechanism
def test_fresh_randomness_serves_as_well(case: Case) -> None:
    answer = case(*for_case(case), fresh())
    assert set(answer.elements) <= set(FILMS)
    assert 0 < answer.units <= case.reserve(len(FILMS))


class Recorder(SecureRandom):
    """Passes everything on, and remembers what was drawn and for which purposes."""

    def __init__(
        self, inner: SecureRandom, drawn: set[int] | None = None, purposes: set[str] | None = None
    ) -> None:
        self.inner = inner
        self.drawn = set() if drawn is None else drawn
        self.purposes = set() if purposes is None else purposes

    def words(self, purpose: str, elements: Sequence[Element], block: int = 0) -> Any:
        return self._note(purpose, self.inner.words(purpose, elements, block))

    def stream(self, purpose: str, size: int, block: int = 0) -> Any:
        return self._note(purpose, self.inner.stream(purpose, size, block))

    def child(self, *label: str | int | bytes) -> "Recorder":
        return Recorder(self.inner.child(*label), self.drawn, self.purposes)

    def _note(self, purpose: str, words: Any) -> Any:
        self.purposes.add(purpose)
        self.drawn.update(words.ravel().tolist())
        return words


# --- what is refused ------------------------------------------------------------------------------


@every_mechanism
@pytest.mark.parametrize(
    ("elements", "counts"),
    [
        (["a", "b", "a"], [3, 2, 1]),
        ([None, None], [3, 2]),
        (["a", "b"], [3, -1]),
        (["a", "b"], [3]),
        (["a", "b"], [3.0, 2.5]),
        (["a", "b"], [True, False]),
        (["a"], [2**60]),
        (["a"], [[3]]),
        (["a", 1], [3, 2]),
        ([True], [3]),
        ([b"stop"], [3]),
        ([1.5], [3]),
    ],
    ids=str,
)
def test_candidates_that_make_no_sense_are_refused(case: Case, elements: Any, counts: Any) -> None:
    with pytest.raises(InvalidParameterError):
        case(elements, counts, keyed(SECRET, *LABEL))


BAD_VALUES: dict[str, list[Any]] = {
    "epsilon": ["0", 0.0, -1, float("nan"), float("inf"), "much", "1e-9", "1e-9999", 10**5000],
    "delta": ["0", 1, -0.1, float("nan"), "little", "1e-301", "1e-5000", Fraction(1, 3**10_000)],
    "l0": [0, -1, 1.5, True],
    "linf": [0, -1, 1.5, True, 2**53 + 1, 2**63, 10**30],
    "k": [0, -1, 1.5, True],
    "max_candidates": [0, -1, 1.5],
}


@every_mechanism
def test_parameters_out_of_range_are_refused_by_name(case: Case) -> None:
    for name, values in BAD_VALUES.items():
        for value in values if name in case.parameters else ():
            with pytest.raises(InvalidParameterError, match=name):
                case(*for_case(case), keyed(SECRET, *LABEL), **{name: value})


@pytest.mark.parametrize("name", ["unknown_laplace", "unknown_gumbel"])
def test_more_candidates_than_allowed_are_refused(name: str) -> None:
    elements = [f"film {place}" for place in range(10)]
    with pytest.raises(InvalidParameterError, match="max_candidates"):
        CASES[name](elements, range(10, 20), keyed(SECRET))


def test_k_above_max_candidates_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="max_candidates"):
        CASES["unknown_gumbel"](["a"], [5], keyed(SECRET), k=9)


def test_an_epsilon_far_beyond_any_guarantee_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="lower l0 or epsilon"):
        CASES["unknown_laplace"](["a"], [5], keyed(SECRET), l0=1000, epsilon=50)


def test_a_float_is_read_as_its_decimal() -> None:
    case, rng = CASES["unknown_gumbel"], keyed(SECRET)
    answers = {
        case(*for_case(case), rng, epsilon=epsilon, delta=delta)
        for epsilon, delta in itertools.product(
            ("0.15", 0.15, Fraction(3, 20)), ("1e-3", 0.001, Fraction(1, 1000))
        )
    }
    assert len(answers) == 1


# --- each mechanism -------------------------------------------------------------------------------


def test_known_laplace_returns_the_whole_domain_by_noisy_count() -> None:
    answer = CASES["known_laplace"](FILMS, COUNTS, keyed(SECRET))
    assert set(answer.elements) == set(FILMS)
    assert answer.counts is not None
    assert list(answer.counts) == sorted(answer.counts, reverse=True)
    assert not answer.stopped
    assert answer.units == 2


def test_equal_noisy_counts_go_by_name() -> None:
    elements = [chr(65 + place) for place in range(26)]
    answer = CASES["known_laplace"](elements[::-1], [3] * 26, keyed(SECRET))
    assert answer.counts is not None
    pairs = list(zip(answer.counts, answer.elements, strict=True))
    assert pairs == sorted(pairs, key=lambda pair: (-pair[0], str(pair[1])))
    assert len(set(answer.counts)) < 26


def test_text_sorts_by_its_utf8_bytes_after_null() -> None:
    words = ["😀", "\uffee", "b", "é", "", "B", "a"]
    order = candidates.total_order([*words, None], np.zeros(8, dtype=np.int64))
    ordered = [[*words, None][place] for place in order]
    assert ordered == [None, *sorted(words, key=lambda word: word.encode())]


@pytest.mark.parametrize(("with_counts", "units"), [(True, 20), (False, 10)])
def test_known_gumbel_gives_all_of_a_domain_smaller_than_k(with_counts: bool, units: int) -> None:
    answer = top_k.known_gumbel(
        FILMS, COUNTS, k=50, linf=1, epsilon=1, with_counts=with_counts, rng=keyed(SECRET)
    )
    assert set(answer.elements) == set(FILMS)
    assert not answer.stopped
    assert answer.units == units


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0, 1, 5, 20, 200]), k=st.integers(1, 8))
@settings(max_examples=150, deadline=None)
def test_unknown_gumbel_charges_what_it_did(seed: int, scale: int, k: int) -> None:
    counts = [scale * (9 - rank) for rank in range(9)]
    for optimise, shows in itertools.product((True, False), repeat=2):
        answer = CASES["unknown_gumbel"](
            FILMS[:9],
            counts,
            keyed(SECRET, seed),
            k=k,
            optimise_threshold=optimise,
            with_counts=shows,
        )
        length = len(answer.elements) + answer.stopped  # with the stop symbol
        expected = 2 * length + (not answer.stopped) if shows else length + 1
        assert answer.units == expected - (not optimise)
        assert (answer.counts is None) is not shows
        assert answer.stopped or len(answer.elements) == k


@pytest.mark.parametrize(
    ("shown", "k", "with_counts", "units"), [(6, 9, True, 14), (10, 10, True, 21), (6, 9, False, 8)]
)
def test_published_costs(shown: int, k: int, with_counts: bool, units: int) -> None:
    answer = top_k.unknown_gumbel(
        [f"film {place:02}" for place in range(shown)],
        [10**6] * shown,
        k=k,
        linf=1,
        max_candidates=10,
        epsilon="0.15",
        delta="1e-10",
        with_counts=with_counts,
        rng=keyed(SECRET),
    )
    assert len(answer.elements) == shown
    assert answer.stopped is (shown < k)
    assert answer.units == units


def test_k_beyond_the_candidates_ends_with_the_stop_symbol() -> None:
    answer = CASES["unknown_gumbel"](["a", "b"], [10**6, 10**6], keyed(SECRET))
    assert set(answer.elements) == {"a", "b"}
    assert answer.stopped


def test_only_the_count_of_the_first_element_not_considered_matters() -> None:
    for name in ("unknown_laplace", "unknown_gumbel, fixed candidates"):
        case = CASES[name]
        first = case(["a", "b", "c"], [90, 70, 30], keyed(SECRET), **two(case))
        renamed = case(["a", "b", "zzz"], [90, 70, 30], keyed(SECRET), **two(case))
        assert first == renamed


def two(case: Case) -> dict[str, int]:
    return {"max_candidates": 2} | ({"k": 2} if "k" in case.parameters else {})


def test_the_count_below_the_candidates_raises_the_threshold() -> None:
    case = CASES["unknown_laplace"]
    low = case(["a", "b", "c"], [90, 70, 0], keyed(SECRET), max_candidates=2)
    high = case(["a", "b", "c"], [90, 70, 69], keyed(SECRET), max_candidates=2)
    assert low.elements == ("a", "b")
    assert "b" not in high.elements


def test_an_optimal_threshold_finds_a_flat_top_that_fixed_candidates_hide() -> None:
    """30 elements at 180, then nothing: 7.5 of 20 are found on average, against 1.5."""

    def found(optimise: bool, seed: int) -> int:
        answer = top_k.unknown_gumbel(
            range(30),
            [180] * 30,
            k=20,
            linf=1,
            max_candidates=1000,
            epsilon="0.15",
            delta="1e-10",
            optimise_threshold=optimise,
            rng=keyed(SECRET, seed),
        )
        return len(answer.elements)

    means = [sum(found(optimise, seed) for seed in range(60)) / 60 for optimise in (True, False)]
    assert means[0] > 5
    assert means[1] < 3


@given(cut=st.integers(0, 10))
@settings(max_examples=11, deadline=None)
def test_fixed_gaussian_decides_each_element_by_itself(cut: int) -> None:
    case, rng = CASES["fixed_gaussian"], keyed(SECRET, "x")
    whole = case(FILMS, COUNTS, rng)
    parts = [case(FILMS[:cut], COUNTS[:cut], rng), case(FILMS[cut:], COUNTS[cut:], rng)]
    merged = [pair for part in parts for pair in zip(part.elements, part.counts or (), strict=True)]
    assert sorted(merged, key=str) == sorted(
        zip(whole.elements, whole.counts or (), strict=True), key=str
    )


def test_fixed_gaussian_shows_few_of_many_lone_members() -> None:
    """100,000 keys with one member each, delta 0.01 for one of them, standard deviation 2."""
    shown = top_k.fixed_gaussian(
        range(100_000), np.ones(100_000, dtype=np.int64), l0=1, linf=1, epsilon=1, delta="0.01",
        rng=keyed(SECRET),
    )  # fmt: skip
    threshold = prices.noise_summary("fixed_gaussian", l0=1, linf=1, epsilon=1, delta="0.01")
    assert threshold.standard_deviation == pytest.approx(2)
    assert threshold.threshold_offset is not None
    assert threshold.threshold_offset >= 5.652
    assert len(shown.elements) <= 1126
    assert len(shown.elements) >= 200  # P[Z > 5] = 0.0030, while P[Z > 4] = 0.0122 is too much
    assert min(shown.counts or ()) > threshold.threshold_offset


def test_absent_elements_of_a_known_domain_get_noise_of_their_own() -> None:
    """1,000 known keys, members in 5: integer Laplace noise of scale 1 leaves 46 % at zero."""
    domain = [f"key {place:04}" for place in range(1000)]
    counts = np.array([50] * 5 + [0] * 995)
    answer = top_k.known_laplace(domain, counts, l0=1, linf=1, epsilon=2, rng=keyed(SECRET))
    released = dict(zip(answer.elements, answer.counts or (), strict=True))
    empty = np.array([released[key] for key in domain[5:]])
    assert len(released) == 1000
    assert 397 <= np.count_nonzero(empty == 0) <= 522
    assert (empty > 0).any()
    assert (empty < 0).any()


@every_mechanism
def test_each_count_has_noise_of_its_own(case: Case) -> None:
    """Of scale 20,000, on far larger counts: two agree by chance once in 80,000 pairs."""
    elements = FILMS[: case.parameters.get("max_candidates")]
    answer = case(elements, [10**6] * len(elements), keyed(SECRET), epsilon="0.0001")
    assert len(answer.elements) >= 5
    assert answer.counts is None or len(set(answer.counts)) == len(answer.counts)


def test_noise_reaches_the_mechanisms_with_the_scales_of_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Laplace scale 2 linf / epsilon, its square as Gaussian variance, slope epsilon / linf."""
    seen: list[tuple[str, Fraction]] = []

    def spy(name: str) -> None:
        original = getattr(noise, name)

        def record(*arguments: Any, **keywords: Any) -> Any:
            seen.append((name, arguments[1 if name == "gumbel_order" else 0]))
            return original(*arguments, **keywords)

        monkeypatch.setattr(noise, name, record)

    for name in ("discrete_laplace", "discrete_gaussian", "gumbel_order"):
        spy(name)
    for case in CASES.values():
        case(*for_case(case), keyed(SECRET), epsilon="0.3", linf=3)
    assert set(seen) == {
        ("discrete_laplace", Fraction(20)),
        ("discrete_gaussian", Fraction(400)),
        ("gumbel_order", Fraction(1, 10)),
    }
