"""Curves of blocks: what a block's capacity promises, and what counts take from it.

A block keeps one number for each Rényi order of its grid; the order infinity is epsilon itself.
Values are in nats; `RenyiCurve.demand` and `RenyiCurve.capacity` make whole numbers of them.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from dp_udfs import checks, composition
from dp_udfs.checks import Real
from dp_udfs.errors import InvalidParameterError


def block_capacity(epsilon: Real, delta: Real, alphas: Sequence[str]) -> list[float]:
    """Give the capacity that makes (epsilon, delta) of a block at each single order.

    Parameters
    ----------
    epsilon : number or decimal string
        What the block may lose for good, in nats.
    delta : number or decimal string
        Of that promise; `block_guarantee` says what the choice of an order adds.
    alphas : sequence of str
        The block's orders.

    Returns
    -------
    list of float
        epsilon - ln(1/delta) / (alpha - 1); an order where that is not positive is never used.
    """
    whole, log_1_delta = float(checks.exact_epsilon(epsilon)), -math.log(checks.exact_delta(delta))
    return [whole - log_1_delta / (alpha - 1) for alpha in map(float, alphas)]


def units_curve(
    units: int, epsilon: Real, alphas: Sequence[str], *, gaussian: bool = False
) -> list[float]:
    """Give what units of an account take from a block: their Rényi divergence at each order.

    Parameters
    ----------
    units : int
        Steps of `epsilon` bounded range, or of Gaussian noise at epsilon^2/8-zCDP.
    epsilon : number or decimal string
        Of one unit.
    alphas : sequence of str
        The block's orders.
    gaussian : bool
        Whether some units may be Gaussian: then no finite loss covers the order infinity.

    Notes
    -----
    Privacy: the delta of calls is not in the curve; it adds to the delta of every block touched.
    """
    checks.non_negative_integers(units=units)
    step = float(checks.exact_epsilon(epsilon))
    return [units * _step(alpha, step, gaussian) for alpha in map(float, alphas)]


def pure_curve(epsilon: Real, alphas: Sequence[str]) -> list[Fraction]:
    """Give what one epsilon-DP computation takes from a block, exactly.

    Notes
    -----
    Privacy: epsilon-DP implies epsilon^2/2-zCDP (Bun and Steinke 2016, proposition 1.4), and its
    Rényi divergence is at most epsilon at every order.
    """
    loss = checks.exact_epsilon(epsilon)
    return [
        loss if math.isinf(float(alpha)) else min(loss, checks.exact(alpha=alpha) * loss**2 / 2)
        for alpha in alphas
    ]


def zcdp_curve(rho: Real, alphas: Sequence[str]) -> list[Fraction]:
    """Give what one rho-zCDP computation takes from a block: alpha rho at each order, exactly.

    Gaussian noise of deviation sigma at sensitivity 1 has rho = 1 / (2 sigma^2).

    Raises
    ------
    InvalidParameterError
        If rho is not positive, or the block knows the order infinity alone, where no finite loss
        covers it.
    """
    loss = checks.exact(rho=rho)
    checks.positive(rho=loss)
    if any(math.isinf(float(alpha)) for alpha in alphas):
        raise InvalidParameterError("rho: the block's order 'inf' knows no zCDP; give an epsilon")
    return [checks.exact(alpha=alpha) * loss for alpha in alphas]


def block_guarantee(
    capacity: Sequence[float], alphas: Sequence[str], epsilon: Real
) -> tuple[float, float]:
    """Say what a block's capacity promises, however adaptively claims are made on it.

    Parameters
    ----------
    capacity : sequence of float
        One value per order, in nats.
    alphas : sequence of str
        The orders.
    epsilon : number or decimal string
        At which the guarantee is stated.

    Returns
    -------
    (float, float)
        Epsilon, and delta: a sum over the usable orders, since answers may decide which of them is
        kept. A block of order infinity alone promises delta 0 at its capacity.

    Notes
    -----
    Privacy: all claims on the block together are (epsilon, delta)-DP between tables that differ in
    one privacy unit within the block's slice; the deltas of its claims come on top.

    References
    ----------
    Lécuyer et al. (2019), block composition; Canonne, Kamath and Steinke (2020), proposition 12.
    """
    stated, delta = float(checks.exact_epsilon(epsilon)), 0.0
    for value, alpha in zip(capacity, map(float, alphas), strict=True):
        if value <= 0:
            continue
        if math.isinf(alpha):
            delta += 0.0 if value <= stated else 1.0
        else:
            mass = (alpha - 1) * math.log1p(-1 / alpha) - math.log(alpha)
            delta += math.exp(min(0.0, (alpha - 1) * (value - stated) + mass))
    return stated, min(1.0, delta)


def guarantee_over_blocks(blocks: int, epsilon: float, delta: float) -> tuple[float, float]:
    """Say what one person can lose whose rows lie in so many blocks: years of them, or a life.

    Parameters
    ----------
    blocks : int
        Blocks that hold rows of the person: `blocks_met` for one slice per so many days.
    epsilon, delta : float
        The guarantee of one block.

    Notes
    -----
    Privacy: only where each claim's demand bounds what it tells of all rows of a person together
    (`privacy_unit = "user"`, caps enforced over the whole question). Then every claim that reads
    the person is paid in full on at least one of the person's blocks, so the sum covers them all.
    """
    checks.non_negative_integers(blocks=blocks)
    return blocks * epsilon, min(1.0, blocks * delta)


def blocks_met(days: int, block_days: int) -> int:
    """Count the blocks of so many days that a stretch of days can touch."""
    checks.positive_integers(days=days, block_days=block_days)
    return 1 + math.ceil((days - 1) / block_days)


def _step(alpha: float, epsilon: float, gaussian: bool) -> float:
    if gaussian:
        return alpha * epsilon**2 / 8
    return epsilon if math.isinf(alpha) else composition.bounded_range_renyi(alpha, epsilon)
