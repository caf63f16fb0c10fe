"""How a claim ends once its answer is stored: the numbers are published, the loss is charged.

The release job and the repair program end claims by this one rule, so it does not matter which of
them comes first, nor how often.
"""

from collections.abc import Callable
from datetime import datetime

from dp_udfs.budget import NOTHING, Loss
from dp_udfs.errors import ClaimError, SettingsError
from jobs.lake import releases
from jobs.lake.ledger import Allocation, Ledger, utc_now
from jobs.lake.releases import Release
from jobs.lake.settings import LakeSettings


def open_ledger(lake: LakeSettings, clock: Callable[[], datetime] = utc_now) -> Ledger:
    """Open the lake's ledger; the first account makes it, but not where one is gone.

    Raises
    ------
    SettingsError
        If there is none though answers are stored: they were charged in one, and a new one would be
        a second allowance.
    """
    ledger = Ledger(lake.tables.ledger, lake.region, clock)
    if not ledger.exists() and releases.manifests(lake.tables.releases):
        raise SettingsError(
            f"there is no ledger at {lake.tables.ledger}, though the answers at "
            f"{lake.tables.releases} were charged in one; check the paths, or bring it back: "
            f"jobs.restore_ledger --from BACKUP, or --alone REASON without a backup"
        )
    return ledger


def publish(ledger: Ledger, claim: Allocation, answer: Release) -> Loss:
    """Publish a stored answer on a claim and settle the claim, in one entry.

    Returns
    -------
    Loss
        What the claim is charged.

    Raises
    ------
    ClaimError
        If the claim was closed without this answer, or the answer was published with other numbers.
    """
    require_same_numbers(ledger, claim.dataset, answer)
    loss = cost(ledger, claim, answer)
    try:
        ledger.settle(
            claim.run_id,
            units=loss.units,
            calls=loss.calls,
            publish=(answer.label, answer.digest),
        )
    except ClaimError:  # closed by now; perhaps by another copy of this run
        closed = ledger.find(claim.run_id)
        if closed is None or closed.settled is None or closed.label != answer.label:
            raise
        return closed.settled
    return loss


def cost(ledger: Ledger, claim: Allocation, answer: Release) -> Loss:
    """Say what an answer costs a claim: nothing where the analyst has it from another run.

    Units of the answer are turned into the account's: see `accounts.price`.
    """
    owned = any(
        published.label == answer.label and published.run_id != claim.run_id
        for published in ledger.released_labels(claim.analyst, claim.dataset)
    )
    return NOTHING if owned else due(claim, answer)


def due(claim: Allocation, answer: Release) -> Loss:
    """Say what an answer costs a claim that is the first to bring it to its analyst."""
    return Loss(answer.loss.units * claim.details.get("unit_weight", 1), claim.calls)


def require_same_numbers(ledger: Ledger, dataset: str, answer: Release) -> None:
    """Refuse an answer whose label was published with other numbers: two answers tell more.

    Raises
    ------
    ClaimError
        If the stored answer was lost or replaced, and the code has changed since.
    """
    for published in ledger.released_labels(dataset=dataset):
        if published.label == answer.label and published.digest != answer.digest:
            raise ClaimError(
                f"release {answer.label[:12]} was published with other numbers by run "
                f"{published.run_id}; restore the table of releases from a backup"
            )
