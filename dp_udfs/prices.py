"""Price and noise of an answer to come: public numbers, known before any data are read."""

import math
from dataclasses import dataclass
from fractions import Fraction

from dp_udfs import checks, tails, thresholds
from dp_udfs.checks import Real
from dp_udfs.errors import InvalidParameterError

MECHANISMS = (
    "known_laplace",
    "known_gumbel",
    "unknown_laplace",
    "unknown_gumbel",
    "fixed_gaussian",
)

_EACH_TAIL = Fraction(1, 40)  # of a 95 % interval


@dataclass(frozen=True)
class NoiseSummary:
    """Public numbers about an answer to come.

    Attributes
    ----------
    standard_deviation : float or None
        Of the noise of one count; None where no counts are shown.
    half_width : int or None
        Smallest w such that the noise of one count lies within [-w, w] with 95 %.
    threshold_offset : float or None
        What the threshold adds, before its own noise, to the count of the first element not
        considered (to zero for `fixed_gaussian`). The threshold itself is secret where that
        count is. None for known domains.
    units, calls : int
        The most that one call can cost, at the question's own epsilon and delta.
    """

    standard_deviation: float | None
    half_width: int | None
    threshold_offset: float | None
    units: int
    calls: int


def maximum_cost(
    mechanism: str,
    *,
    k: int | None = None,
    l0: int | None = None,
    with_counts: bool = True,
    optimise_threshold: bool = True,
    domain_size: int | None = None,
) -> tuple[int, int]:
    """Return the units and calls to allocate for one call: no outcome costs more.

    Raises
    ------
    InvalidParameterError
        If the mechanism is unknown or a parameter that decides its price is missing.
    """
    _check_mechanism(mechanism)
    if not mechanism.endswith("gumbel"):
        return _given(l0=l0), 1
    most = _given(k=k)
    if mechanism == "known_gumbel":
        most = most if domain_size is None else min(most, domain_size)
        return most * (2 if with_counts else 1), 1
    return most * (2 if with_counts else 1) + int(optimise_threshold), 1


def call_delta(
    mechanism: str, *, l0: int | None = None, epsilon: Real, delta: Real | None = None
) -> Fraction:
    """Return the delta that one call adds to a composition, rounded up; 0 for known domains.

    For `unknown_laplace` this is (1 + exp(l0 * epsilon / 2)) / 2 * delta: conditioning on "no
    element of a lone unit shows" is paid for on both sides of a neighbour pair.
    """
    _check_mechanism(mechanism)
    if mechanism.startswith("known"):
        return Fraction(0)
    if delta is None:
        raise InvalidParameterError(f"{mechanism} needs delta")
    exact = checks.exact_delta(delta)
    if mechanism != "unknown_laplace":
        return exact
    loss = thresholds.half_loss(_given(l0=l0), checks.exact_epsilon(epsilon))
    return (1 + thresholds.exp_above(loss)) / 2 * exact


def charged_calls(
    mechanism: str,
    *,
    l0: int | None = None,
    epsilon: Real,
    delta: Real | None = None,
    account_delta: Real | None = None,
) -> int:
    """Return what one call weighs on an account whose calls each stand for twice its delta.

    `account_delta` is the account's delta per call, the question's own if left out. A call on
    a known domain has delta 0 and weighs 1 by policy.
    """
    added = call_delta(mechanism, l0=l0, epsilon=epsilon, delta=delta)
    if added == 0:
        return 1
    per_call = delta if account_delta is None else account_delta
    assert per_call is not None  # call_delta refused it
    return math.ceil(added / (2 * checks.exact_delta(per_call)))


def noise_summary(
    mechanism: str,
    *,
    linf: int,
    epsilon: Real,
    delta: Real | None = None,
    k: int | None = None,
    l0: int | None = None,
    max_candidates: int | None = None,
    with_counts: bool = True,
    optimise_threshold: bool = True,
    domain_size: int | None = None,
) -> NoiseSummary:
    """Describe noise, threshold and price of a call by its parameters alone."""
    units, _ = maximum_cost(
        mechanism,
        k=k,
        l0=l0,
        with_counts=with_counts,
        optimise_threshold=optimise_threshold,
        domain_size=domain_size,
    )
    calls = charged_calls(mechanism, l0=l0, epsilon=epsilon, delta=delta)
    if mechanism.endswith("gumbel") and not with_counts:
        deviation = half_width = None
    else:
        gaussian = mechanism == "fixed_gaussian"
        deviation, half_width = count_noise(2 * linf / checks.exact_epsilon(epsilon), gaussian)
    offset = None
    if not mechanism.startswith("known"):
        assert delta is not None  # charged_calls refused it
        offset = _threshold_offset(mechanism, linf, epsilon, delta, l0, max_candidates)
    return NoiseSummary(deviation, half_width, offset, units, calls)


def count_noise(scale: Fraction, gaussian: bool) -> tuple[float, int]:
    """Return standard deviation and 95 % half-width of a count's noise (scale 2 linf / epsilon)."""
    if gaussian:
        return math.sqrt(_gaussian_variance(scale)), tails.gaussian_threshold(scale**2, _EACH_TAIL)
    ratio = math.exp(-1 / scale)
    deviation = math.sqrt(2 * ratio) / -math.expm1(-1 / scale)
    return deviation, tails.laplace_threshold(scale, _EACH_TAIL)


def _gaussian_variance(scale: Fraction) -> float:
    """Return the variance of the discrete Gaussian: scale^2 to every digit if not very small."""
    if scale > 10:
        return float(scale**2)
    values = range(-200, 201)
    weights = [math.exp(-(z**2) / (2 * scale**2)) for z in values]
    return sum(z**2 * w for z, w in zip(values, weights, strict=True)) / sum(weights)


def _threshold_offset(
    mechanism: str,
    linf: int,
    epsilon: Real,
    delta: Real,
    l0: int | None,
    max_candidates: int | None,
) -> float:
    """Return what the threshold adds to the count of the first element not considered."""
    epsilon, delta = checks.exact_epsilon(epsilon), checks.exact_delta(delta)
    if mechanism == "fixed_gaussian":
        return thresholds.fixed_gaussian_threshold(_given(l0=l0), linf, epsilon, delta)
    most = _given(max_candidates=max_candidates)
    if mechanism == "unknown_laplace":
        return thresholds.unknown_laplace_offset(_given(l0=l0), linf, most, epsilon, delta)
    return thresholds.unknown_gumbel_offset(most, l0, linf, epsilon, delta)


def _check_mechanism(mechanism: str) -> None:
    if mechanism not in MECHANISMS:
        raise InvalidParameterError(
            f"mechanism = {mechanism!r} is not one of {', '.join(MECHANISMS)}"
        )


def _given(**parameters: int | None) -> int:
    """Return the one parameter, which this mechanism cannot do without."""
    ((name, value),) = parameters.items()
    if value is None:
        raise InvalidParameterError(f"{name} is missing; this mechanism needs it")
    checks.positive_integers(**{name: value})
    return value
