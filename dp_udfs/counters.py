"""How many users there are, counted privately day by day, and how sure one may be of it.

Under user privacy even the number of users is private. A tree counter tells it at any time for one
price, and a lower bound says up to which number users surely exist: claims may name the blocks of
those users and no others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from dp_udfs import checks, noise
from dp_udfs.checks import Real
from dp_udfs.errors import InvalidParameterError
from dp_udfs.rng import SecureRandom


def levels(periods: int) -> int:
    """Return how many sums one user can be part of when there are so many periods."""
    checks.positive_integers(periods=periods)
    return periods.bit_length()  # floor(log2 T) + 1


@dataclass(frozen=True)
class CounterTerms:
    """A tree counter whose sums are drawn one by one: by programs that live one period long.

    Parameters
    ----------
    periods : int
        How many periods there will be at most; fixed from the start.
    epsilon : number
        Loss of the whole stream of counts, in nats.

    Notes
    -----
    Privacy: epsilon-DP for all sums together, between tables that differ in one user, as long as
    every period's sum is drawn once and a user counts in one period alone. Users who leave may be
    left out of later sums.
    """

    periods: int
    epsilon: Real

    def __post_init__(self) -> None:
        checks.positive(epsilon=checks.exact(epsilon=self.epsilon))
        checks.noise_scale(scale=self.scale)

    @property
    def scale(self) -> Fraction:
        """Scale of the noise of each sum, in users."""
        return levels(self.periods) / checks.exact(epsilon=self.epsilon)

    def summed(self, period: int) -> range:
        """Say which periods the sum of this one is over: a power of two of them, up to itself."""
        self._check(period)
        return range(period - (period & -period) + 1, period + 1)

    def noisy_sum(self, users: int, period: int, rng: SecureRandom) -> int:
        """Add noise to the number of users first seen in the periods of a sum."""
        checks.non_negative_integers(users=users)
        self._check(period)
        drawn = noise.discrete_laplace(self.scale, rng, "users", [period])
        return users + int(drawn[0])

    def estimate(self, sums: Mapping[int, int], period: int) -> int:
        """Add up the noisy sums that make the count of all users so far."""
        total = 0
        while period:
            total += sums[period]
            period -= period & -period
        return total

    def lower_bound(self, estimate: int, period: int, beta: Real, earlier: int = 0) -> int:
        """Return a number of users that exist, but for a probability of beta over all periods."""
        each = float(checks.exact(beta=beta)) / self.periods
        noises = period.bit_count()
        return max(0, earlier, estimate - discrete_quantile(each, noises, self.scale))

    def _check(self, period: int) -> None:
        checks.positive_integers(period=period)
        if period > self.periods:
            raise InvalidParameterError(f"the counter was made for {self.periods} periods")


@dataclass
class TreeCounter:
    """A running count of users, each counted in the period that first saw them.

    Parameters
    ----------
    periods : int
        How many periods there will be at most; fixed from the start.
    epsilon : number
        Loss of the whole stream of counts, in nats.
    rng : SecureRandom
        Source of the noise, keyed by what is counted.

    Notes
    -----
    Privacy: epsilon-DP for all counts together, between streams that differ in one user. A user
    is part of at most `levels(periods)` sums, each with noise of scale levels / epsilon. The noise
    is discrete and exact.

    References
    ----------
    Chan, Shi and Song (2011), the binary mechanism, with one level more so that the last count of
    2**k periods has its own sum.
    """

    periods: int
    epsilon: Real
    rng: SecureRandom
    period: int = 0
    _sums: list[int] = field(default_factory=list, repr=False)
    _noisy: list[int] = field(default_factory=list, repr=False)
    _terms: CounterTerms = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._sums = [0] * levels(self.periods)
        self._noisy = [0] * levels(self.periods)
        self._terms = CounterTerms(self.periods, self.epsilon)

    @property
    def scale(self) -> Fraction:
        """Scale of the noise of each sum, in users."""
        return self._terms.scale

    @property
    def noises(self) -> int:
        """How many noises the count of this period adds up."""
        return self.period.bit_count()

    def count(self, new_users: int) -> int:
        """Add the users first seen in the next period and return the noisy count of all so far."""
        checks.non_negative_integers(new_users=new_users)
        if self.period == self.periods:
            raise InvalidParameterError(f"the counter was made for {self.periods} periods")
        self.period += 1
        level = (self.period & -self.period).bit_length() - 1  # trailing zeros
        self._sums[level] = sum(self._sums[:level]) + new_users
        self._sums[:level] = [0] * level
        self._noisy[level] = self._terms.noisy_sum(self._sums[level], self.period, self.rng)
        return sum(
            self._noisy[level] for level in range(len(self._noisy)) if self.period >> level & 1
        )

    def lower_bound(self, estimate: int, beta: float, earlier: int = 0) -> int:
        """Return a number of users that exist but for a probability of beta; see `lower_bound`."""
        return max(0, earlier, estimate - discrete_quantile(beta, self.noises, self.scale))


def lower_bound(estimate: float, noises: int, scale: Real, beta: float, *, earlier: int = 0) -> int:
    """Return a number of users that exist but for a probability of beta.

    Parameters
    ----------
    estimate : float
        A noisy count.
    noises : int
        How many independent Laplace noises it adds up: the one bits of the period's number.
    scale : number
        Scale of each, in users. The noise is continuous; for that of `TreeCounter` use its method.
    beta : float
        Probability of error for this one count. Whoever relies on T counts, as a running maximum
        does, asks each for beta / T.
    earlier : int
        A bound that held before: users are never uncounted.

    Returns
    -------
    int
        max(0, earlier, floor(estimate - tail)), where the noise exceeds the tail with probability
        beta, exactly.
    """
    width = float(checks.exact(scale=scale))
    checks.positive(scale=width)
    return max(0, earlier, math.floor(estimate - width * laplace_quantile(beta, noises)))


def nameable_buckets(bound: int, users_per_bucket: int) -> int:
    """Return how many buckets of consecutive users may be named: those wholly below the bound."""
    checks.non_negative_integers(bound=bound)
    checks.positive_integers(users_per_bucket=users_per_bucket)
    return bound // users_per_bucket


# --- what the counter costs -----------------------------------------------------------------------


def counter_cost(
    epsilon: Real, periods: int, alphas: Sequence[float], method: Literal["exact", "paper"]
) -> tuple[float, ...]:
    """Give what a counter takes from the capacity of every user block, at its creation.

    Parameters
    ----------
    epsilon : number
        Loss of the counter, in nats.
    periods : int
        How many periods it counts at most.
    alphas : sequence of float
        Orders of the block; the order infinity is epsilon itself.
    method : "exact" or "paper"
        The Rényi divergence of the counter's own noise; or 2 alpha epsilon^2, which holds for any
        counter and is larger.
    """
    whole = float(checks.exact(epsilon=epsilon))
    checks.positive(epsilon=whole)
    if method == "paper":
        return tuple(whole if math.isinf(a) else 2 * a * whole**2 for a in alphas)
    if method != "exact":
        raise InvalidParameterError(f"method = {method!r} is neither exact nor paper")
    sums = levels(periods)
    return tuple(sums * discrete_laplace_renyi(sums / whole, alpha) for alpha in alphas)


def laplace_renyi(scale: float, alpha: float) -> float:
    """Return the Rényi divergence of continuous Laplace noise between counts that differ by one."""
    if math.isinf(alpha):
        return 1 / scale
    up = math.log(alpha / (2 * alpha - 1)) + (alpha - 1) / scale
    down = math.log((alpha - 1) / (2 * alpha - 1)) - alpha / scale
    return _log_add(up, down) / (alpha - 1)


def discrete_laplace_renyi(scale: float, alpha: float) -> float:
    """Return the Rényi divergence of discrete Laplace noise between counts that differ by one.

    Notes
    -----
    The loss is 1 / scale with probability 1 / (1 + q), q = exp(-1 / scale), and else its negative.
    """
    if math.isinf(alpha):
        return 1 / scale
    total = _log_add((alpha - 1) / scale, -alpha / scale) - math.log1p(math.exp(-1 / scale))
    return total / (alpha - 1)


def _log_add(one: float, other: float) -> float:
    larger = max(one, other)
    return larger + math.log1p(math.exp(min(one, other) - larger))


# --- tails of sums of noise -----------------------------------------------------------------------


def laplace_tail(x: float, noises: int) -> float:
    """Return the probability that a sum of standard Laplace variables exceeds x >= 0.

    Notes
    -----
    Exact: exp(-x) sum_{k<m} 1/k! sum_{i<=k} C(k,i) x^(k-i) (m+i-1)!/(m-1)! 2^-(m+i), where each
    sign pattern leaves a difference of two gamma variables.
    """
    checks.positive_integers(noises=noises)
    m = noises
    rising = [math.factorial(m + i - 1) / math.factorial(m - 1) / 2.0 ** (m + i) for i in range(m)]
    total = sum(
        math.comb(k, i) * x ** (k - i) * rising[i] / math.factorial(k)
        for k in range(m)
        for i in range(k + 1)
    )
    return math.exp(-x) * total


def laplace_quantile(beta: float, noises: int) -> float:
    """Return the x that a sum of standard Laplace variables exceeds with probability beta."""
    checks.probability(beta=beta)
    if laplace_tail(0.0, noises) <= beta:
        return 0.0
    low, high = 0.0, 1.0
    while laplace_tail(high, noises) > beta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if laplace_tail(middle, noises) <= beta else (middle, high)
    return high


def discrete_tail(bound: int, noises: int, scale: Real) -> float:
    """Return the probability that a sum of discrete Laplace variables exceeds bound >= 0.

    Notes
    -----
    The sum is a difference of two negative binomials. With q = exp(-1 / scale) the tail is
    sum_{k<m} (1-q)^k q^(g+m-k) sum_{i<=k} C(g+m, k-i) C(m+i-1, i) (1-q)^m q^(2i) / (1-q^2)^(m+i).
    All terms are positive: nothing cancels.
    """
    checks.positive_integers(noises=noises)
    checks.non_negative_integers(bound=bound)
    m, g, width = noises, bound, float(checks.exact(scale=scale))
    checks.positive(scale=width)
    miss, twice = -math.expm1(-1 / width), -math.expm1(-2 / width)  # 1 - q, 1 - q^2
    odds = miss / twice
    total = 0.0
    for k in range(m):
        inner = sum(
            math.comb(g + m, k - i)
            * miss ** (k - i)
            * math.comb(m + i - 1, i)
            * math.exp(-2 * i / width)
            * odds ** (m + i)
            for i in range(k + 1)
        )
        total += math.exp(-(g + m - k) / width) * inner
    return total


def discrete_quantile(beta: float, noises: int, scale: Real) -> int:
    """Return the smallest whole number that a sum of discrete Laplace exceeds with at most beta."""
    checks.probability(beta=beta)
    high = 1
    while not _below(high, noises, scale, beta):
        high *= 2
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        if _below(middle, noises, scale, beta):
            high = middle
        else:
            low = middle
    return high


def _below(bound: int, noises: int, scale: Real, beta: float) -> bool:
    """Whether a tail is at most beta, with room for the rounding of its sum."""
    return discrete_tail(bound, noises, scale) * (1 + 1e-9) <= beta
