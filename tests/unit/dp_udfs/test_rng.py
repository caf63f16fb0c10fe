"""Bits are uniform, repeat by label, and never depend on what is drawn beside them."""

import itertools
import pickle
import random  # only to shuffle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_udfs import rng
from dp_udfs.errors import InvalidParameterError

SECRET = bytes(range(32))
PARTS = st.one_of(st.text(), st.integers(), st.binary())


def first_words(source: rng.SecureRandom, *elements: rng.Element) -> list[int]:
    return [int(word) for word in source.words("purpose", elements)[:, 0]]


@given(st.lists(PARTS, max_size=4), st.lists(PARTS, max_size=4))
def test_labels_are_encoded_injectively(one: list[rng.Label], other: list[rng.Label]) -> None:
    same = one == other and list(map(type, one)) == list(map(type, other))
    assert (rng.encode_label(*one) == rng.encode_label(*other)) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("abc",), ("ab", "c")),
        (("a", "b"), ("a", "c")),
        (("a", "b"), ("asb",)),  # as if nothing but the letter of its type came before a part
        (("a", "b"), ("a" + rng.encode_label("b").decode(),)),
        ((1,), ("1",)),
        ((b"1",), ("1",)),
        ((1,), (b"1",)),
        ((), ("",)),
        (("",), (b"",)),
        ((-1,), (1,)),
        (("s",), ("ss",)),
        (("\ud800",), ("?",)),
    ],
)
def test_labels_that_look_alike_give_other_bits(
    one: tuple[rng.Label, ...], other: tuple[rng.Label, ...]
) -> None:
    assert first_words(rng.keyed(SECRET, *one), "x") != first_words(rng.keyed(SECRET, *other), "x")
    parent = rng.keyed(SECRET, "parent")
    assert first_words(parent.child(*one), "x") != first_words(parent.child(*other), "x")


def test_every_part_of_the_address_changes_the_bits() -> None:
    source = rng.keyed(SECRET, "label")
    words = [
        source.words("a", ["x"]),
        source.words("b", ["x"]),
        source.words("a", ["y"]),
        source.words("a", ["x"], block=1),
        source.child("a").words("a", ["x"]),
        rng.keyed(SECRET, "other").words("a", ["x"]),
        rng.keyed(SECRET[::-1], "label").words("a", ["x"]),
        source.stream("a", 8),
        source.stream("b", 8),
        source.stream("a", 8, block=1),
        source.child("a").stream("a", 8),
    ]
    for one, other in itertools.combinations(words, 2):
        assert not np.intersect1d(one, other).size


def test_elements_that_look_alike_have_their_own_bits() -> None:
    elements: list[rng.Element] = [None, "None", "null", "NULL", "", "n", b"", "a", "A"]
    elements += [0, "0", b"0", 1, "1", b"1"]
    assert len(set(first_words(rng.keyed(SECRET), *elements))) == len(elements)


def test_numpy_scalars_count_as_what_they_hold() -> None:
    source = rng.keyed(SECRET)
    elements = [np.int64(7), np.str_("x"), np.bytes_(b"y")]
    assert first_words(source, *elements) == first_words(source, 7, "x", b"y")  # type: ignore[arg-type]


@given(st.lists(st.one_of(st.none(), PARTS), min_size=1, max_size=8), st.randoms())
def test_bits_do_not_depend_on_batch_or_order(
    elements: list[rng.Element], shuffler: random.Random
) -> None:
    source = rng.keyed(SECRET, "label")
    alone = [first_words(source, element)[0] for element in elements]
    assert first_words(source, *elements) == alone
    order = list(range(len(elements)))
    shuffler.shuffle(order)
    assert first_words(source, *(elements[i] for i in order)) == [alone[i] for i in order]


def test_a_longer_stream_begins_with_the_shorter_one() -> None:
    source = rng.keyed(SECRET)
    assert source.stream("a", 1000)[:10].tolist() == source.stream("a", 10).tolist()


def test_keyed_bits_are_the_same_on_every_machine_and_version() -> None:
    source = rng.keyed(SECRET, "label", 1, b"x")
    assert first_words(source, "film", 7, None) == FILM_7_NULL
    assert source.child("cohort").stream("count", 2).tolist() == STREAM


FILM_7_NULL = [5917282734154096630, 3231881816926930321, 6454562469449693653]
STREAM = [1499322672003110863, 2485866982620426960]


@pytest.mark.parametrize("source", [rng.keyed(SECRET, "bits"), rng.fresh()])
def test_bits_are_balanced(source: rng.SecureRandom) -> None:
    """Of 512,000 bits, half are ones within 5 deviations (false alarms: 1 in 1.7 million)."""
    for words in (source.words("purpose", range(1000)), source.stream("purpose", 8000)):
        ones = int(np.bitwise_count(words).sum(dtype=np.int64))
        assert abs(ones - 256_000) < 5 * 512_000**0.5 / 2
        assert len(np.unique(words)) == 8000


def test_fresh_bits_never_repeat() -> None:
    source = rng.fresh()
    draws = [source.words("a", ["x"]), source.words("a", ["x"]), rng.fresh().words("a", ["x"])]
    draws += [source.child("b").stream("a", 8), source.stream("a", 8), source.stream("a", 8)]
    assert len(np.unique(np.concatenate([words.ravel() for words in draws]))) == 48


@pytest.mark.parametrize("source", [rng.keyed(SECRET), rng.fresh()])
def test_shapes(source: rng.SecureRandom) -> None:
    assert source.words("a", []).shape == (0, 8)
    assert source.words("a", ["x", "y"]).shape == (2, 8)
    assert source.stream("a", 0).shape == (0,)
    assert source.stream("a", 3).dtype == np.uint64


def test_a_short_secret_is_refused_without_being_shown() -> None:
    with pytest.raises(InvalidParameterError, match="at least 32") as caught:
        rng.keyed(b"hunter2" * 4)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidParameterError, match="bytes"):
        rng.keyed("x" * 64)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [rng.keyed(SECRET), rng.fresh()])
@pytest.mark.parametrize("element", [True, 1.5, float("nan"), ("x",), np.bool_(True)])
def test_other_types_are_refused(source: rng.SecureRandom, element: rng.Element) -> None:
    with pytest.raises(InvalidParameterError, match="of type"):
        source.words("a", ["x", element])
    with pytest.raises(InvalidParameterError, match="of type"):
        source.child(element)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="None"):
        source.child(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="block"):
        source.words("a", ["x"], block=-1)


def test_a_keyed_source_can_be_pickled_and_hides_its_key() -> None:
    source = rng.keyed(SECRET, "label")
    copy = pickle.loads(pickle.dumps(source))
    assert first_words(copy, "x") == first_words(source, "x")
    assert repr(source) == str(source) == "_Keyed()"
    assert SECRET not in pickle.dumps(source)
