"""How losses add up: the guarantee of an account, over one period and over all that a row can meet.

An account is at most `units` steps, each epsilon-bounded-range with the same epsilon and chosen
after seeing earlier answers, plus at most `calls` events of small probability. Every bound here
holds for such an adaptive sequence. Each is a statement about the whole allowance: recomputed for
what happens to have been spent, at a time chosen by looking at answers, it would promise nothing.
"""

import math
from collections.abc import Callable
from datetime import date, timedelta
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dp_udfs import checks
from dp_udfs.checks import Real

Period = int | Literal["month"]  # a number of days, or calendar months


def bounded_range_epsilon(steps: int, epsilon: Real, delta: Real) -> float:
    """Compose bounded-range steps: the base bound of an account.

    Parameters
    ----------
    steps : int
        Number of steps (information units); not negative.
    epsilon : number or decimal string
        Range of each step, in nats.
    delta : number or decimal string
        Probability that the bound may fail, in (0, 1).

    Returns
    -------
    float
        Epsilon of the whole, in nats; never above `steps * epsilon`.

    Raises
    ------
    InvalidParameterError
        If a parameter is outside its range.

    Notes
    -----
    Only for bounded-range steps: one unit of Gaussian noise has a small chance of any loss, so
    neither this bound nor its cap at `steps * epsilon` holds for it. Use `zcdp_epsilon` there.

    References
    ----------
    Dong, Durfee and Rogers (2020), arXiv 1909.13830.
    """
    t, e, log_1_delta = _read(steps, epsilon, delta)
    excess = _mean_excess(e)  # (a - 1) for a = e / (1 - exp(-e))
    drift = t * (excess - math.log1p(excess))
    return min(t * e, drift + e * math.sqrt(t / 2 * log_1_delta))


def zcdp_epsilon(steps: int, epsilon: Real, delta: Real) -> float:
    """Compose steps of epsilon^2/8-zCDP each, by the optimised Rényi conversion.

    A bounded-range step costs that much, and so does one count with Gaussian noise of standard
    deviation 2 tau / epsilon. Parameters and errors are those of `bounded_range_epsilon`.

    Returns
    -------
    float
        Epsilon of the whole, in nats. It is not capped at `steps * epsilon`: a Gaussian step
        exceeds its epsilon with small probability.

    References
    ----------
    Rogers and Steinke (2021), arXiv 2004.07223; Canonne, Kamath and Steinke (2020), proposition 12.
    """
    t, e, log_1_delta = _read(steps, epsilon, delta)
    return _from_zcdp(t * e * e / 8, log_1_delta)


def bounded_range_renyi_epsilon(steps: int, epsilon: Real, delta: Real) -> float:
    """Compose bounded-range steps by their exact Rényi curve: a little below `zcdp_epsilon`.

    Parameters, errors and caveat are those of `bounded_range_epsilon`.

    References
    ----------
    arXiv 2004.07223, the supremum over s of the Rényi divergence of a step with loss in [-s, e-s].
    """
    t, e, log_1_delta = _read(steps, epsilon, delta)
    if not t:
        return 0.0
    return min(t * e, _from_renyi(lambda alpha: t * bounded_range_renyi(alpha, e), log_1_delta))


def adaptive_epsilon(
    steps: int, epsilon: Real, delta: Real, *, cells: int = 16, margin: float = 4.0
) -> float:
    """Compose bounded-range steps as well as can be: the optimum for adaptive choices, from above.

    An offline figure: it takes seconds for 3,000 steps, and holds for a number of steps that is
    fixed beforehand, all of the same epsilon. Parameters and errors are those of
    `bounded_range_epsilon`.

    Parameters
    ----------
    cells : int
        Points of the grid in one epsilon. The error falls with their square and time grows with it:
        16 say 32.52 where 3,000 steps of 0.15 cost 32.49 at delta 1e-9.
    margin : float
        How far, in nats, the grid reaches beyond where the loss is looked for.

    Notes
    -----
    Let H(a) be the most that `delta` can be at ratio a = exp(epsilon) after n steps. One more step
    makes of it, at a, the highest chord of H over a window [v exp(-epsilon), v] that holds a. H is
    convex, so straight lines between grid points lie above it; on them the highest chord of each
    cell of v has a closed form. Rounding errors of the floating point are not counted.

    References
    ----------
    Dong, Durfee and Rogers (2020), arXiv 1909.13830, for steps chosen beforehand.
    """
    t, e, log_1_delta = _read(steps, epsilon, delta)
    checks.positive_integers(cells=cells)
    if not t:
        return 0.0
    top = bounded_range_epsilon(steps, epsilon, delta)
    first, last = -cells * math.ceil(margin / e + 2), cells * (top + margin) / e
    grid = np.exp(np.arange(first, last) * (e / cells))
    most = np.maximum(0.0, 1 - grid)
    for _ in range(t):
        most = _highest_chords(grid, most, e, cells)
    after = int(np.argmax(most <= math.exp(-log_1_delta)))
    low, high = most[after], most[after - 1]
    share = (high - math.exp(-log_1_delta)) / (high - low)
    return min(t * e, math.log(grid[after - 1] + share * (grid[after] - grid[after - 1])))


def pure_epsilon(steps: int, epsilon: Real, delta: Real) -> float:
    """Compose releases of which nothing is known but that each is epsilon-DP.

    Parameters and errors are those of `bounded_range_epsilon`, with `epsilon` the loss of each.

    References
    ----------
    Bun and Steinke (2016): epsilon-DP is epsilon^2/2-zCDP, which is a step of range 2 epsilon.
    """
    t, e, log_1_delta = _read(steps, epsilon, delta)
    return min(t * e, _from_zcdp(t * e * e / 2, log_1_delta))


def account_guarantee(
    units: int,
    calls: int,
    epsilon: Real,
    delta: Real,
    delta_prime: Real,
    gaussian: bool = False,
) -> tuple[float, float]:
    """Say what an allowance promises, however its analyst spends it.

    Parameters
    ----------
    units : int
        Information units of the allowance.
    calls : int
        Calls of the allowance; each adds at most 2 delta.
    epsilon : number or decimal string
        Size of one unit, in nats.
    delta : number or decimal string
        Delta of one call.
    delta_prime : number or decimal string
        Failure probability of the composition bound itself.
    gaussian : bool
        Whether Gaussian mechanisms may be asked for: then the figure is the zCDP one.

    Returns
    -------
    (float, float)
        Epsilon and delta of the whole allowance.

    Raises
    ------
    InvalidParameterError
        If a parameter is outside its range.

    Notes
    -----
    Privacy: any adaptive sequence of answers that keeps within the allowance is (epsilon, delta)-DP
    between datasets that differ in one privacy unit, for one analyst on one table in one period.
    Analysts who share different answers add up.
    """
    checks.non_negative_integers(calls=calls)
    bound = zcdp_epsilon if gaussian else bounded_range_epsilon
    events = 2 * calls * checks.exact_delta(delta) + checks.exact_delta(delta_prime)
    return bound(units, epsilon, delta_prime), float(min(events, Fraction(1)))


def guarantee_over_periods(
    periods: int,
    units: int,
    calls: int,
    epsilon: Real,
    delta: Real,
    delta_prime: Real,
    gaussian: bool = False,
) -> tuple[float, float]:
    """Say what the same allowance promises to a row that is there in several periods.

    Parameters are those of `account_guarantee`, and `periods` from `periods_met`.
    """
    checks.positive_integers(periods=periods)
    return account_guarantee(
        periods * units, periods * calls, epsilon, delta, delta_prime, gaussian
    )


def periods_met(retention_days: int, purge_lag_days: int, period: Period) -> int:
    """Count the periods whose questions can read one row: its worst day is taken.

    Parameters
    ----------
    retention_days : int
        A row dated d may be read up to and including day d + retention_days.
    purge_lag_days : int
        Days by which reading may outlast the retention: 0 where it is enforced when reading. Add
        one where rows and periods are dated in different time zones.
    period : int or "month"
        Length of a period in days, or calendar months.

    Returns
    -------
    int
        At least 1.
    """
    checks.non_negative_integers(retention_days=retention_days, purge_lag_days=purge_lag_days)
    readable = retention_days + purge_lag_days
    if period != "month":
        checks.positive_integers(period=period)
        return 1 + math.ceil(readable / period)
    month_ends = (
        date(year, month, 1) - timedelta(days=1)
        for year in range(2000, 2400)  # the calendar repeats after 400 years
        for month in range(1, 13)
    )
    return max(_months_between(day, day + timedelta(days=readable)) for day in month_ends) + 1


def _months_between(first: date, last: date) -> int:
    return 12 * (last.year - first.year) + last.month - first.month


def _read(steps: int, epsilon: Real, delta: Real) -> tuple[int, float, float]:
    """Check the three numbers; delta comes back as ln(1/delta)."""
    checks.non_negative_integers(steps=steps)
    exact_delta = checks.exact_delta(delta)
    log_1_delta = math.log(exact_delta.denominator) - math.log(exact_delta.numerator)
    return int(steps), float(checks.exact_epsilon(epsilon)), log_1_delta


def _highest_chords(
    grid: NDArray[np.float64], most: NDArray[np.float64], epsilon: float, cells: int
) -> NDArray[np.float64]:
    """Give the highest chord at each grid point, of a convex function that is 1 at 0.

    On a cell of v the function is alpha + beta v, one window below it is alpha' + beta' v exp(-e),
    and the chord at a is (P + a R + D v + a E / v) / (1 - exp(-e)) with the coefficients below.
    D and E are never positive, so it is highest at v = sqrt(a E / D), or at an end of the cell.
    """
    shrink, size = math.exp(-epsilon), len(grid)
    ratios = np.exp(np.arange(1, cells + 1) * (epsilon / cells))
    points = np.concatenate([grid[0] / ratios[::-1], grid, grid[-1] * ratios])
    before = 1 - (1 - most[0]) * points[:cells] / grid[0]
    values = np.concatenate([before, most, np.full(cells, most[-1])])
    beta = np.diff(values) / np.diff(points)
    alpha = values[:-1] - points[:-1] * beta
    d = shrink * (beta[:-cells] - beta[cells:])
    e = alpha[cells:] - alpha[:-cells]
    p, r = alpha[:-cells] - shrink * alpha[cells:], beta[cells:] - shrink * beta[:-cells]
    at_best = np.sqrt(np.maximum(e / np.where(d < 0, d, -np.inf), 0))
    root, highest = np.sqrt(grid), most * -math.expm1(-epsilon)
    for first in range(cells):
        here = slice(first, first + size)
        ends = points[cells + first : cells + first + size + 1]
        v = np.clip(root * at_best[here], ends[:-1], ends[1:])
        chord = p[here] + d[here] * v + grid * (r[here] + e[here] / v)
        np.maximum(highest, chord, out=highest)
    return highest / -math.expm1(-epsilon)


def _mean_excess(epsilon: float) -> float:
    """Compute epsilon / (1 - exp(-epsilon)) - 1 without cancellation."""
    if epsilon < 0.01:
        return epsilon / 2 + epsilon**2 / 12 - epsilon**4 / 720
    return epsilon / -math.expm1(-epsilon) - 1


def _from_zcdp(rho: float, log_1_delta: float) -> float:
    return _from_renyi(lambda alpha: alpha * rho, log_1_delta) if rho else 0.0


def _from_renyi(curve: Callable[[float], float], log_1_delta: float) -> float:
    """Convert a Rényi curve to epsilon at delta; every order is valid, so take the best found."""

    def epsilon_at(log_order: float) -> float:
        above_1 = math.exp(log_order)  # alpha - 1
        alpha = 1 + above_1
        return (
            curve(alpha) + log_order - math.log(alpha) + (log_1_delta - math.log(alpha)) / above_1
        )

    best, width = min((step / 4 for step in range(-40, 81)), key=epsilon_at), 0.25
    while width > 1e-7:
        width /= 2
        best = min((best - width, best, best + width), key=epsilon_at)
    return max(0.0, epsilon_at(best))


def bounded_range_renyi(alpha: float, epsilon: float) -> float:
    """Compute the Rényi divergence of order `alpha` of one bounded-range step, at the worst s.

    With c = expm1((alpha-1) epsilon) / (1 - exp(-epsilon)) the divergence at s, times alpha - 1, is
    ln(1 + c (1 - exp(-s))) - (alpha-1) s; it is largest at exp(-s) = (alpha-1) (1+c) / (alpha c).
    Where all that cancels, the bound alpha epsilon^2 / 8 is as good to seven digits.
    """
    if alpha * epsilon < 1e-3:
        return alpha * epsilon**2 / 8
    above_1 = alpha - 1
    grown = above_1 * epsilon
    log_expm1 = grown + math.log1p(-math.exp(-grown)) if grown > 1 else math.log(math.expm1(grown))
    log_c = log_expm1 - math.log(-math.expm1(-epsilon))
    log_1_c = max(log_c, 0.0) + math.log1p(math.exp(-abs(log_c)))
    log_alpha = math.log1p(above_1)
    minus_s = math.log(above_1) - log_alpha + log_1_c - log_c
    return minus_s + (log_1_c - log_alpha) / above_1
