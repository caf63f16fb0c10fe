"""Exact noise: discrete Laplace, discrete Gaussian, and the order of scores with Gumbel noise.

Every draw is a function of uniform numbers with unlimited bits. All draws are computed at once in
floating point, with a bound on the error that leaves room for any C library. The few draws that
the bound leaves undecided are computed again in rigorous arithmetic, with more bits of the same
uniform number, until they are decided. So the distributions are exact, no value is too large to
occur, and the same bits give the same noise on every platform.
"""

import itertools
import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dp_udfs import checks
from dp_udfs.errors import InvalidParameterError
from dp_udfs.intervals import FEWEST_DIGITS, Interval, decide, precisions
from dp_udfs.rng import WORDS_PER_BLOCK, Element, SecureRandom, UInt64Array
from dp_udfs.tails import gaussian_threshold, laplace_difference_threshold, laplace_threshold
from dp_udfs.uniforms import Draws, Uniforms

__all__ = [
    "LogTerms",
    "discrete_gaussian",
    "discrete_laplace",
    "gaussian_threshold",
    "gumbel_order",
    "laplace_difference_threshold",
    "laplace_threshold",
]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

# Relative error allowed to a floating-point logarithm, and to what is computed from it. A good
# library errs by 4e-16; bits after the first 63 add less than 2e-12, except near 0 and 1.
_SLACK = 1e-11
_TAIL = 2.0**-24  # closer to 0 (or to 1, where that matters) a draw is always computed again


def discrete_laplace(
    scale: Fraction, rng: SecureRandom, purpose: str, elements: Sequence[Element] | int
) -> IntArray:
    """Draw integers z with probability proportional to exp(-abs(z) / scale).

    Parameters
    ----------
    scale : Fraction
        In units of the counts; from 2**-20 to 2**40. The standard deviation is about
        1.41 times as much.
    rng : SecureRandom
        Source of bits, keyed by the question and the snapshot it reads.
    purpose : str
        What the noise is for; no two kinds of noise from one `rng` share a purpose.
    elements : sequence of str, int, bytes or None, or int
        One draw for each element, keyed by it; or that many draws from one stream.

    Returns
    -------
    ndarray of shape (n_elements,), int64
        The noise, in the order of `elements`.

    Raises
    ------
    InvalidParameterError
        If the scale is out of range or an element has another type.

    Notes
    -----
    Privacy: added to a count that one privacy unit changes by at most `linf`, its loss lies
    between -linf / scale and linf / scale. The distribution is exact.

    References
    ----------
    By inversion: abs(Z) is the number of n >= 1 with U < 2 q^n / (1 + q), q = exp(-1 / scale).
    """
    checks.noise_scale(scale=scale)
    return _laplace(scale, Draws(rng, purpose, elements).uniforms())


def discrete_gaussian(
    variance: Fraction, rng: SecureRandom, purpose: str, elements: Sequence[Element] | int
) -> IntArray:
    """Draw integers z with probability proportional to exp(-z^2 / (2 variance)).

    Parameters
    ----------
    variance : Fraction
        In squared units of the counts, from 2**-40 to 2**80. From about one on, it is the
        variance of the draws to many digits.
    rng, purpose, elements
        As in `discrete_laplace`.

    Returns
    -------
    ndarray of shape (n_elements,), int64
        The noise, in the order of `elements`.

    Raises
    ------
    InvalidParameterError
        If the variance is out of range or an element has another type.

    Notes
    -----
    Privacy: added to counts of which one privacy unit changes at most `l0`, each by at most
    `linf`, it gives (l0 linf^2 / (2 variance))-zCDP. The distribution is exact.

    References
    ----------
    Canonne, Kamath and Steinke (2020), algorithm 3: propose a discrete Laplace Y of scale t,
    accept it with probability exp(-(abs(Y) - variance / t)^2 / (2 variance)).
    """
    checks.noise_variance(variance=variance)
    spread = math.isqrt(math.floor(variance)) + 1  # t
    draws = Draws(rng, purpose, elements, numbers_each=WORDS_PER_BLOCK)
    noise = np.zeros(draws.size, dtype=np.int64)
    pending = np.arange(draws.size)
    for column in itertools.count(step=2):
        if len(pending) == 0:
            break
        proposal = _laplace(Fraction(spread), draws.uniforms(column, pending))
        accepted = _accepted(proposal, variance, spread, draws.uniforms(column + 1, pending))
        noise[pending[accepted]] = proposal[accepted]
        pending = pending[~accepted]
    return noise


class LogTerms:
    """Factors of the weights of candidates, ready to be used for many cohorts.

    Parameters
    ----------
    terms : sequence of Fraction
        One positive factor for each candidate.
    ones_before : int
        So many candidates stand before them, whose factor is one.

    Raises
    ------
    InvalidParameterError
        If a factor is not positive.
    """

    def __init__(self, terms: Sequence[Fraction], ones_before: int = 0) -> None:
        if any(term.numerator <= 0 for term in terms):
            raise InvalidParameterError("log_terms must be positive")
        self._terms, self._ones_before = tuple(terms), ones_before
        above_line = [math.log(term.numerator) for term in terms]
        below_line = [math.log(term.denominator) for term in terms]
        parts = np.zeros((2, len(self)))
        parts[:, ones_before:] = above_line, below_line
        self.logarithms = parts[0] - parts[1]
        self.sizes = parts[0] + parts[1]  # what bounds the error of a logarithm

    def __len__(self) -> int:
        return self._ones_before + len(self._terms)

    def __getitem__(self, place: int) -> Fraction:
        """Return the factor of one candidate."""
        beyond = place - self._ones_before
        return self._terms[beyond] if beyond >= 0 else Fraction(1)


def gumbel_order(
    linear: Sequence[int] | IntArray,
    slope: Fraction,
    log_terms: LogTerms | None,
    rng: SecureRandom,
    purpose: str,
    elements: Sequence[Element] | int,
    limit: int | None = None,
) -> IntArray:
    """Order candidates by score plus standard Gumbel noise, the largest first.

    Parameters
    ----------
    linear : array of shape (n_candidates,), int64
        Counts. The score of a candidate is slope * linear + ln(log_term).
    slope : Fraction
        In nats for each unit of the counts.
    log_terms : LogTerms or None
        Factors of the weights exp(score); None where all are one.
    rng, purpose, elements
        As in `discrete_laplace`; one element for each candidate.
    limit : int or None
        How many places are wanted; all if None.

    Returns
    -------
    ndarray of shape (min(limit, n_candidates),), int64
        Places of the candidates in `linear`.

    Raises
    ------
    InvalidParameterError
        If lengths differ, elements repeat, or counts range over 2**63 or more.

    Notes
    -----
    Privacy: this is the exponential mechanism with weights exp(score), applied again and again
    without replacement, in exact arithmetic. The noisy scores themselves must not be released:
    their loss has no bound. They never leave this function.

    References
    ----------
    Race: with independent uniform U, the order of ascending ln(-ln U) - score.
    """
    draws = Draws(rng, purpose, elements)
    if not isinstance(elements, int) and len(set(elements)) < draws.size:
        raise InvalidParameterError("elements must differ: equal keys would tie for ever")
    race = _Race(np.asarray(linear, dtype=np.int64), slope, log_terms, draws)
    return race.order(draws.size if limit is None else limit)


# --- discrete Laplace and Gaussian ----------------------------------------------------------------


def _laplace(scale: Fraction, uniforms: Uniforms) -> IntArray:
    """Discrete Laplace: the first bit is the sign, the others are U."""
    log_uniform, tail = _log_uniform(uniforms.words & np.uint64(2**63 - 1), bits=63)
    # abs(Z) counts the n >= 1 with n < x, where x = scale * (ln(2 / (1 + q)) - ln U) is positive.
    width = float(scale)
    q = math.exp(-min(1 / width, 700.0))
    x = (math.log(2.0) - math.log1p(q) - log_uniform) * width
    error = (1.0 - log_uniform) * (_SLACK * width)
    magnitude = np.ceil(x + error)
    undecided = (np.maximum(np.ceil(x - error), 1.0) != magnitude) | tail
    noise = magnitude.astype(np.int64) - 1
    for row in np.flatnonzero(undecided).tolist():
        noise[row] = _laplace_magnitude(scale, uniforms, row)
    return np.where(uniforms.words >> np.uint64(63), -noise, noise)


def _laplace_magnitude(scale: Fraction, uniforms: Uniforms, row: int) -> int:
    """Compute one magnitude with as many digits and bits as it takes."""
    for digits in precisions():
        log_uniform = uniforms.log(row, digits, skip=1)
        if log_uniform is None:
            continue
        one = Interval.of(1, digits)
        q = Interval.of(Fraction(-1) / scale, digits).exp()
        x = Interval.of(scale, digits) * ((one + one).ln() - (one + q).ln() - log_uniform)
        low, high = max(math.ceil(x.low), 1), max(math.ceil(x.high), 1)
        if low == high:
            return low - 1
    raise AssertionError("precisions never end")


def _accepted(proposal: IntArray, variance: Fraction, spread: int, uniforms: Uniforms) -> BoolArray:
    """Say which proposals the Gaussian keeps: where U < exp(-excess)."""
    log_uniform, undecided = _log_uniform(uniforms.words, bits=64)
    size = np.abs(proposal).astype(np.float64)
    excess = (size - float(variance / spread)) ** 2 / float(2 * variance)
    error = _SLACK * (1.0 - log_uniform + (size + spread) ** 2 / float(variance))
    accepted = -log_uniform > excess
    undecided |= np.abs(log_uniform + excess) <= error
    for row in np.flatnonzero(undecided).tolist():
        exact = (spread * abs(int(proposal[row])) - variance) ** 2 / (2 * variance * spread**2)
        accepted[row] = _less_than_exp(uniforms, row, -exact)
    return accepted


def _less_than_exp(uniforms: Uniforms, row: int, exponent: Fraction) -> bool:
    def less(digits: int) -> bool | None:
        log_uniform = uniforms.log(row, digits)
        return None if log_uniform is None else log_uniform.below(Interval.of(exponent, digits))

    return decide(less)


def _log_uniform(numerators: UInt64Array, bits: int) -> tuple[FloatArray, BoolArray]:
    """Take logarithms of numerators / 2**bits; and say which are too near zero to be good."""
    uniform = numerators * 0.5**bits
    tail = uniform < _TAIL
    return np.log(np.maximum(uniform, _TAIL)), tail


# --- Gumbel order ---------------------------------------------------------------------------------


class _Race:
    """Candidates that finish at the times ln(-ln U) - score; earlier is better."""

    def __init__(
        self, linear: IntArray, slope: Fraction, log_terms: LogTerms | None, draws: Draws
    ) -> None:
        terms = draws.size if log_terms is None else len(log_terms)
        if linear.shape != (draws.size,) or terms != draws.size:
            raise InvalidParameterError("linear, log_terms and elements must be of equal length")
        self.slope, self.log_terms = slope, log_terms
        self.uniforms = draws.uniforms()
        # Only differences of scores matter, so they are taken from the best one, in integers.
        self.ahead = linear
        if draws.size:
            if int(linear.max()) - int(linear.min()) >= 2**63:
                raise InvalidParameterError("linear ranges over 2**63 or more")
            self.ahead = linear - (linear.max() if slope >= 0 else linear.min())

    def order(self, limit: int) -> IntArray:
        """Return the first `limit` candidates; only runs of near ties among them are refined."""
        time, error = self._times()
        earliest, latest = time - error, time + error
        order = np.arange(len(time))
        if 0 < limit < len(time):  # leave out who certainly comes after so many others
            order = np.flatnonzero(earliest <= np.partition(latest, limit - 1)[limit - 1])
        order = order[np.argsort(time[order], kind="stable")]
        latest_so_far = np.maximum.accumulate(latest[order])
        earliest_from_here = np.minimum.accumulate(earliest[order][::-1])[::-1]
        breaks = np.flatnonzero(latest_so_far[:-1] < earliest_from_here[1:]) + 1
        starts = np.concatenate(([0], breaks))
        ends = np.concatenate((breaks, [len(order)]))
        near_ties = (ends - starts > 1) & (starts < limit)
        for start, end in zip(starts[near_ties].tolist(), ends[near_ties].tolist(), strict=True):
            order[start:end] = self._refined(order[start:end].tolist())
        return order[:limit].astype(np.int64)

    def _times(self) -> tuple[FloatArray, FloatArray]:
        """Compute all times in floating point, and bounds on their errors."""
        words = self.uniforms.words
        distance = (np.minimum(words, ~words) + 0.5) * 0.5**64  # from U to 0 or 1, the nearer
        tail = distance < _TAIL
        distance = np.maximum(distance, _TAIL)
        log_uniform = np.where(words < 2**63, np.log(distance), np.log1p(-distance))
        noise = np.log(-log_uniform)
        for row in np.flatnonzero(tail).tolist():
            noise[row] = self._noise(row)
        score = self.ahead * float(self.slope)
        size = 1.0 + np.abs(noise) + np.abs(score)
        if self.log_terms is not None:
            score += self.log_terms.logarithms
            size += self.log_terms.sizes
        return noise - score, size * _SLACK

    def _noise(self, row: int) -> float:
        """Compute ln(-ln U) of a U near 0 or 1, to more digits than the bound on the error asks."""
        for digits in precisions():
            noise = self._exact_noise(row, digits)
            if noise is not None and noise.width < _SLACK / 10:
                return float(noise.low)
        raise AssertionError("precisions never end")

    def _exact_noise(self, row: int, digits: int) -> Interval | None:
        """Enclose ln(-ln U); None if U cannot be told from 0 or 1 yet."""
        log_uniform = self.uniforms.log(row, digits)
        if log_uniform is None or log_uniform.high >= 0:
            return None
        return (-log_uniform).ln()

    def _exact_time(self, row: int, digits: int) -> Interval:
        noise = self._exact_noise(row, digits)
        if noise is None:
            return Interval(Decimal("-Infinity"), Decimal("Infinity"), digits)
        time = noise - Interval.of(self.slope * int(self.ahead[row]), digits)
        if self.log_terms is not None:
            time = time - Interval.of(self.log_terms[row], digits).ln()
        return time

    def _refined(self, rows: list[int], digits: int = FEWEST_DIGITS) -> list[int]:
        """Order a run of near ties in rigorous arithmetic, and what that leaves tied with more."""
        times = sorted(((self._exact_time(row, digits), row) for row in rows), key=_start)
        runs: list[list[int]] = []
        latest = Decimal("-Infinity")
        for time, row in times:
            if runs and time.low <= latest:
                runs[-1].append(row)
            else:
                runs.append([row])
            latest = max(latest, time.high)
        refined = (run if len(run) == 1 else self._refined(run, 2 * digits) for run in runs)
        return [row for run in refined for row in run]


def _start(timed: tuple[Interval, int]) -> Decimal:
    return timed[0].low
