"""Pictures of simulations, by matplotlib (the extra `pictures`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dp_udfs.errors import SettingsError
from dp_udfs.sweeps import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png")


def check(path: Path) -> None:
    """Refuse a picture that could not be drawn, before the work that it shows.

    Raises
    ------
    SettingsError
        If the file's suffix is not known, its folder does not exist, or matplotlib is missing.
    """
    if path.suffix not in SUFFIXES:
        raise SettingsError(f"picture {path}: must end in {' or '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise SettingsError(f"picture {path}: there is no folder {path.parent}")
    try:
        import matplotlib as _  # noqa: F401, ICN001 - is it there?
    except ImportError:
        raise SettingsError(
            "pictures need matplotlib: pip install 'discreet[pictures]', or leave --picture out"
        ) from None


def draw(outcomes: Sequence[Outcome], title: str, path: Path) -> None:
    """Draw how many claims each policy grants against N, and how long its best N lets them wait.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Of one workload.
    title : str
        Stands above the picture.
    path : Path
        Ends in .svg or .png; what is there is replaced.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    granted, waited = figure.subplots(1, 2)
    figure.suptitle(title)
    longest = max((outcome.delay_of(1) or 0.0) for outcome in outcomes)
    for place, family in enumerate(dict.fromkeys(outcome.family for outcome in outcomes)):
        of_family = [outcome for outcome in outcomes if outcome.family == family]
        _draw_granted(granted, of_family, f"C{place}")
        best = max(of_family, key=lambda each: each.granted)
        _draw_delays(waited, best, longest, f"C{place}")
    granted.set(xscale="log", xlabel="N, claims that share a block", ylabel="claims granted")
    granted.set_ylim(bottom=0)
    waited.set(xscale="symlog", xlabel="time from submission to grant", ylabel="share of claims")
    waited.set_xlim(left=0)
    waited.set_ylim(0, 1)
    for axes in (granted, waited):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path)


def _draw_granted(axes: "Axes", outcomes: Sequence[Outcome], colour: str) -> None:
    """Draw a curve over N, or a level line where there is no N."""
    ns = [outcome.n for outcome in outcomes if outcome.n is not None]
    heights = [outcome.granted for outcome in outcomes]
    if ns:
        axes.plot(ns, heights, color=colour, marker="o", markersize=3, label=outcomes[0].family)
    else:
        axes.axhline(heights[0], color=colour, linestyle="--", label=outcomes[0].family)


def _draw_delays(axes: "Axes", outcome: Outcome, longest: float, colour: str) -> None:
    """Draw the share of all claims that had their budget within each time, up to the longest."""
    shares = np.arange(outcome.granted + 1) / max(1, outcome.states.total())
    label = outcome.family if outcome.n is None else f"{outcome.family}, N = {outcome.n:,}"
    times = [0, *outcome.delays, max(longest, 1.0)]
    axes.step(times, [*shares, shares[-1]], color=colour, where="post", label=label)
