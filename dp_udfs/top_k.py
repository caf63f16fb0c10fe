"""Private top-k and histograms: the five mechanisms that turn true counts into an answer.

All of them protect one privacy unit that is added or removed: its counts move in one direction,
each by at most `linf`, and at most `l0` of them where a bound is enforced. Noise is integer and
exact, and every purpose has its own: a value that decided the order is never a count that is shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dp_udfs import candidates, checks, noise, thresholds
from dp_udfs.candidates import Counts, Elements, IntArray
from dp_udfs.checks import Real
from dp_udfs.errors import InvalidParameterError
from dp_udfs.rng import Element, SecureRandom

_STOP = b"stop"  # the stop symbol among the elements, which are never bytes


@dataclass(frozen=True)
class TopK:
    """What one mechanism answers for one cohort; all of it may be published.

    Attributes
    ----------
    elements : tuple of str, int or None
        Released elements, best first; None is the NULL key.
    counts : tuple of int or None
        Their noisy counts, which may be negative; None where counts were not asked for.
    stopped : bool
        The threshold ended the answer, rather than `k` or the domain.
    units : int
        Bounded-range steps made, each of the epsilon given: what is charged in the end.
    calls : int
        Calls made: 1. What it weighs on an account is `prices.charged_calls`.
    """

    elements: tuple[Element, ...]
    counts: tuple[int, ...] | None
    stopped: bool
    units: int
    calls: int = 1


# --- mechanisms -----------------------------------------------------------------------------------


def known_laplace(
    elements: Elements,
    counts: Counts,
    *,
    l0: int,
    linf: int,
    epsilon: Real,
    rng: SecureRandom,
) -> TopK:
    """Release the noisy count of every element of a public domain.

    Parameters
    ----------
    elements, counts : sequences of equal length
        The whole domain in any order, with zeros for absent elements; counts in privacy units.
    l0 : int
        Most elements that one privacy unit touches, enforced.
    linf : int
        Most that one privacy unit adds to one count, enforced.
    epsilon : decimal string, Fraction or float
        Size of one information unit, in nats; a float is read as its decimal.
    rng : SecureRandom
        Keyed by the question, its snapshot and the cohort.

    Returns
    -------
    TopK
        All elements by noisy count descending, then element; costs `l0` units.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range, an element is listed twice or a count is negative.

    Notes
    -----
    Privacy: (l0 * epsilon / 2)-DP, and a composition of l0 epsilon-bounded-range steps. Each
    count has integer noise P(z) ~ exp(-|z| epsilon / (2 linf)).
    """
    _check_bounds(l0=l0, linf=linf)
    epsilon = checks.exact_epsilon(epsilon)
    names, true = candidates.in_total_order(elements, counts)
    rng = _keyed(rng, "known_laplace", epsilon, l0=l0, linf=linf)
    noisy = true + noise.discrete_laplace(2 * linf / epsilon, rng, "count", names)
    return _by_noisy_count(names, noisy, stopped=False, units=l0)


def known_gumbel(
    elements: Elements,
    counts: Counts,
    *,
    k: int,
    linf: int,
    epsilon: Real,
    with_counts: bool = True,
    rng: SecureRandom,
) -> TopK:
    """Release the top `k` of a public domain, whatever number of elements a privacy unit touches.

    Parameters
    ----------
    elements, counts : sequences of equal length
        The whole domain in any order, with zeros for absent elements; counts in privacy units.
    k : int
        Elements to release; a `k` beyond the domain releases all of it.
    linf, epsilon, rng
        As in `known_laplace`.
    with_counts : bool
        Also release a noisy count for each element.

    Returns
    -------
    TopK
        In the order of selection, so counts need not fall. Costs two units an element, one
        without counts.

    Raises
    ------
    InvalidParameterError
        As in `known_laplace`.

    Notes
    -----
    Privacy: each element selected and each count shown is one epsilon-bounded-range step; with
    counts the whole is (3 k epsilon / 2)-DP. Selection is the exponential mechanism by peeling,
    with weights exp(epsilon h / linf); counts have fresh noise.

    References
    ----------
    Durfee and Rogers (2019), arXiv 1905.04273.
    """
    _check_bounds(k=k, linf=linf)
    epsilon = checks.exact_epsilon(epsilon)
    names, true = candidates.in_total_order(elements, counts)
    rng = _keyed(rng, "known_gumbel", epsilon, k=k, linf=linf, with_counts=with_counts)
    chosen = noise.gumbel_order(true, epsilon / linf, None, rng, "selection", names, limit=k)
    shown, noisy = _fresh_counts(names, true, chosen, linf, epsilon, with_counts, rng)
    return TopK(shown, noisy, stopped=False, units=len(shown) * (2 if with_counts else 1))


def unknown_laplace(
    elements: Elements,
    counts: Counts,
    *,
    l0: int,
    linf: int,
    max_candidates: int,
    epsilon: Real,
    delta: Real,
    rng: SecureRandom,
) -> TopK:
    """Release the elements found in the data that clear a noisy threshold, with their counts.

    Parameters
    ----------
    elements, counts : sequences of equal length
        The true top `max_candidates + 1` in any order, or fewer where there are no more.
    l0, linf, epsilon, rng
        As in `known_laplace`.
    max_candidates : int
        Elements considered; the count of the next one carries the threshold.
    delta : decimal string, Fraction or float
        Chance that an element of a lone privacy unit shows; see Notes.

    Returns
    -------
    TopK
        Elements above the threshold by noisy count descending, then element; costs `l0` units.

    Raises
    ------
    InvalidParameterError
        As in `known_laplace`, or if there are more candidates than `max_candidates + 1`.

    Notes
    -----
    Privacy: one call is (l0 * epsilon / 2, delta)-DP; in composition it is l0
    epsilon-bounded-range steps and `call_delta`, which is at most 2 delta up to
    l0 * epsilon = 2.19. The value that clears the threshold is the value shown.
    """
    _check_bounds(l0=l0, linf=linf, max_candidates=max_candidates)
    epsilon, delta = checks.exact_epsilon(epsilon), checks.exact_delta(delta)
    names, true = candidates.positive_top(elements, counts, max_candidates)
    rng = _keyed(
        rng,
        "unknown_laplace",
        epsilon,
        l0=l0,
        linf=linf,
        max_candidates=max_candidates,
        delta=delta,
    )
    scale = 2 * linf / epsilon
    offset = thresholds.unknown_laplace_offset(l0, linf, max_candidates, epsilon, delta)
    threshold = candidates.count_at(true, max_candidates) + offset
    threshold += int(noise.discrete_laplace(scale, rng, "stop", 1)[0])
    names, true = names[:max_candidates], true[:max_candidates]
    noisy = true + noise.discrete_laplace(scale, rng, "count", names)
    return _above(names, noisy, threshold, units=l0)


def unknown_gumbel(
    elements: Elements,
    counts: Counts,
    *,
    k: int,
    linf: int,
    max_candidates: int,
    epsilon: Real,
    delta: Real,
    l0: int | None = None,
    optimise_threshold: bool = True,
    with_counts: bool = True,
    rng: SecureRandom,
) -> TopK:
    """Release the top `k` of what is found in the data, until the stop symbol is drawn.

    Parameters
    ----------
    elements, counts : sequences of equal length
        The true top `max_candidates + 1` in any order, or fewer where there are no more.
    k : int
        Most elements to release; at most `max_candidates`.
    linf, epsilon, rng
        As in `known_laplace`.
    max_candidates, delta
        As in `unknown_laplace`.
    l0 : int or None
        Most elements that one privacy unit touches, if enforced: lowers the threshold.
    optimise_threshold : bool
        First choose privately how many of the candidates to consider; costs one unit.
    with_counts : bool
        Also release a noisy count for each element.

    Returns
    -------
    TopK
        In the order of selection; `stopped` when the stop symbol came before `k` elements.

    Raises
    ------
    InvalidParameterError
        As in `unknown_laplace`, or if `k` is above `max_candidates`.

    Notes
    -----
    Privacy: the choice of the threshold, each selection (the stop symbol included) and each
    count are one epsilon-bounded-range step each, charged as made; one call adds delta. As one
    call, ((2k + 1) epsilon, delta)-DP. The number of candidates considered never shows.

    References
    ----------
    Durfee and Rogers (2019), arXiv 1905.04273; Rogers et al. (2020), arXiv 2002.05839.
    """
    _check_bounds(k=k, linf=linf, max_candidates=max_candidates)
    if l0 is not None:
        checks.positive_integers(l0=l0)
    if k > max_candidates:
        raise InvalidParameterError(f"k = {k} is above max_candidates = {max_candidates}")
    epsilon, delta = checks.exact_epsilon(epsilon), checks.exact_delta(delta)
    names, true = candidates.positive_top(elements, counts, max_candidates)
    rng = _keyed(
        rng,
        "unknown_gumbel",
        epsilon,
        k=k,
        l0=l0,
        linf=linf,
        max_candidates=max_candidates,
        delta=delta,
        optimise_threshold=optimise_threshold,
        with_counts=with_counts,
    )
    slope = epsilon / linf
    considered = max_candidates
    if optimise_threshold:
        considered = _optimal_candidates(true, k, l0, max_candidates, slope, rng)
    displaced = thresholds.most_displaced(considered, l0)
    below = candidates.count_at(true, considered)
    names, true = names[:considered], true[:considered]

    # The stop symbol has weight exp(epsilon (below + linf) / linf) * displaced / delta.
    scores = np.append(true, below + linf)
    log_terms = noise.LogTerms([displaced / delta], ones_before=len(names))
    rivals = [*names, _STOP]
    order = noise.gumbel_order(scores, slope, log_terms, rng, "selection", rivals, limit=k)
    ends = np.flatnonzero(order == len(names))
    stopped = len(ends) > 0
    chosen = order[: ends[0]] if stopped else order
    shown, noisy = _fresh_counts(names, true, chosen, linf, epsilon, with_counts, rng)
    selections = len(shown) + stopped
    units = int(optimise_threshold) + selections + (len(shown) if with_counts else 0)
    return TopK(shown, noisy, stopped, units)


def fixed_gaussian(
    elements: Elements,
    counts: Counts,
    *,
    l0: int,
    linf: int,
    epsilon: Real,
    delta: Real,
    rng: SecureRandom,
) -> TopK:
    """Release the elements found in the data that clear a public threshold, with their counts.

    Parameters
    ----------
    elements, counts : sequences of equal length
        The whole histogram in any order. Never a top of it: an element that leaves such a list
        is not a lone unit's, and delta would be near 1.
    l0, linf, epsilon, rng
        As in `known_laplace`.
    delta : decimal string, Fraction or float
        Chance that any element of a lone privacy unit shows.

    Returns
    -------
    TopK
        Elements above the threshold by noisy count descending, then element; costs `l0` units.

    Raises
    ------
    InvalidParameterError
        As in `known_laplace`.

    Notes
    -----
    Privacy: delta-approximate (l0 epsilon^2 / 8)-zCDP. Not bounded range: an account that meets
    it states its zCDP figure. Each element is decided by its own noise, of variance
    (2 linf / epsilon)^2, so whole and part of a histogram give an element the same result.
    """
    _check_bounds(l0=l0, linf=linf)
    epsilon, delta = checks.exact_epsilon(epsilon), checks.exact_delta(delta)
    names, true = candidates.in_total_order(elements, counts, positive=True)
    rng = _keyed(rng, "fixed_gaussian", epsilon, l0=l0, linf=linf, delta=delta)
    noisy = true + noise.discrete_gaussian((2 * linf / epsilon) ** 2, rng, "count", names)
    threshold = thresholds.fixed_gaussian_threshold(l0, linf, epsilon, delta)
    return _above(names, noisy, threshold, units=l0)


# --- steps the mechanisms share -------------------------------------------------------------------


def _check_bounds(*, linf: int, **others: int) -> None:
    """Refuse what is not a positive whole number, and a `linf` that counts have no room for."""
    checks.positive_integers(linf=linf, **others)
    if linf > candidates.LARGEST_COUNT:
        raise InvalidParameterError(f"linf is above {candidates.LARGEST_COUNT}")


def _keyed(
    rng: SecureRandom, mechanism: str, epsilon: Fraction, **parameters: object
) -> SecureRandom:
    """Derive a generator of its own for these parameters: reused noise could be solved for."""
    label = (f"{name}={value}" for name, value in parameters.items())
    return rng.child(mechanism, f"epsilon={epsilon}", *label)


def _optimal_candidates(
    true: IntArray,
    k: int,
    l0: int | None,
    max_candidates: int,
    slope: Fraction,
    rng: SecureRandom,
) -> int:
    """Choose privately, from k to `max_candidates`, the number of candidates to consider.

    Weights exp(-epsilon h / linf) / m, where h is the count of the first element not considered
    and m the most that one unit displaces: a lower threshold is likelier.
    """
    below = np.zeros(max_candidates + 1, dtype=np.int64)
    below[: len(true)] = true
    log_terms = _threshold_log_terms(k, l0, max_candidates)
    best = noise.gumbel_order(
        -below[k:], slope, log_terms, rng, "optimal-threshold", len(log_terms), limit=1
    )
    return k + int(best[0])


@lru_cache(maxsize=64)
def _threshold_log_terms(k: int, l0: int | None, max_candidates: int) -> noise.LogTerms:
    """List 1 / m for each number of candidates from k to `max_candidates`."""
    choices = range(k, max_candidates + 1)
    terms = [Fraction(1, thresholds.most_displaced(choice, l0)) for choice in choices]
    return noise.LogTerms(terms)


def _fresh_counts(
    names: Sequence[Element],
    true: IntArray,
    chosen: IntArray,
    linf: int,
    epsilon: Fraction,
    with_counts: bool,
    rng: SecureRandom,
) -> tuple[tuple[Element, ...], tuple[int, ...] | None]:
    """Name the chosen, and count them with noise that had no part in their selection."""
    shown = tuple(names[i] for i in chosen.tolist())
    if not with_counts:
        return shown, None
    noisy = true[chosen] + noise.discrete_laplace(2 * linf / epsilon, rng, "count", shown)
    return shown, tuple(noisy.tolist())


def _above(names: Sequence[Element], noisy: IntArray, threshold: int, units: int) -> TopK:
    """Answer with the elements strictly above the threshold, which is what ends it."""
    kept = np.flatnonzero(noisy > threshold)
    shown = [names[i] for i in kept.tolist()]
    return _by_noisy_count(shown, noisy[kept], stopped=True, units=units)


def _by_noisy_count(
    names: Sequence[Element], noisy: IntArray, *, stopped: bool, units: int
) -> TopK:
    """Answer in the order of the released counts."""
    order = candidates.total_order(names, noisy)
    shown = tuple(names[i] for i in order.tolist())
    return TopK(shown, tuple(noisy[order].tolist()), stopped, units)
