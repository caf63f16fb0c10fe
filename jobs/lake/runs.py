"""What binds a run to its question: its name, what its first try pinned, and what it takes.

A run that is tried again finds the snapshot, the secret's name, the code's version and the demand
of its first try in its claim, and so means the same whatever was published or replaced since.
"""

import itertools
import json
from collections.abc import Mapping
from datetime import date

from dp_udfs.budget import Loss, RenyiCurve
from dp_udfs.errors import ClaimError
from jobs.lake import accounts, questions, slices, tables
from jobs.lake.ledger import Allocation, Budget, Ledger
from jobs.lake.questions import Question
from jobs.lake.settings import LakeSettings
from jobs.lake.tables import Snapshot


def pinned(
    lake: LakeSettings, earlier: Allocation | None, snapshot_id: int | None
) -> tuple[int | None, str, int | None]:
    """Return snapshot, secret's name and code's version of a run: those of its first try, if any.

    So what is stored already needs no secret any more, and outlives a change of the code.

    Raises
    ------
    ClaimError
        If another snapshot is asked for than the first try pinned.
    SettingsError
        If it is the first try and the secret is missing.
    """
    if earlier is None:
        return snapshot_id, questions.secret_id(lake.read_secret()), None
    first: int | None = earlier.details.get("snapshot")
    if snapshot_id not in (None, first):
        raise ClaimError(
            f"run {earlier.run_id} was allocated on snapshot {first}, not {snapshot_id}; "
            f"take a new run id"
        )
    asked = json.loads(earlier.details.get("question", "{}"))
    return first, str(asked.get("secret", "")), asked.get("code_version")


def next_name(ledger: Ledger, fingerprint: str) -> str:
    """Name a run that was given no name: as its first try here, unless that came to nothing."""
    for number in itertools.count(1):
        name = f"{fingerprint[:32]}-{number}"
        claim = ledger.find(name)
        if claim is None or (claim.may_still_serve and claim.region == ledger.region):
            break
    return name


def require_readable(question: Question, today: date) -> None:
    """Refuse what may not or cannot be read, before anything is spent on it."""
    question.require_retained(today)
    question.require_columns()
    tables.verify(question.snapshot)


def demand(
    ledger: Ledger, question: Question, budget: Budget, run_id: str, begun: Allocation | None
) -> tuple[Loss, Mapping[str, RenyiCurve]]:
    """Say what a run takes of the account and of each block: what its first try took, if any."""
    if begun is None or begun.state == "given_back":
        price, blocks = accounts.price(question, budget.terms), _blocks(ledger, question)
        begun = ledger.find(run_id)  # again: a faster copy of this run may have published by now
        if begun is None or begun.state == "given_back":
            return price, blocks
    return begun.reserve, begun.blocks


def allocate(
    ledger: Ledger,
    question: Question,
    budget: Budget,
    run_id: str,
    price: Loss,
    blocks: Mapping[str, RenyiCurve],
) -> Allocation:
    """Take the reserve, or find the claim that an earlier try of the same run took."""
    details = {
        "question": question.canonical,
        "snapshot": question.snapshot.snapshot_id,
        "dataset_name": question.dataset.name,
        "label": question.label,
        "unit_weight": accounts.unit_weight(question, budget.terms),
    }
    claim = ledger.allocate(
        run_id,
        analyst=budget.analyst,
        dataset=question.account,
        units=price.units,
        calls=price.calls,
        blocks=blocks,
        fingerprint=question.fingerprint(budget.analyst),
        details=details,
    )
    if claim.state == "expired":
        raise ClaimError(f"run {run_id}: its claim has expired and was charged; take a new run id")
    return claim


def verify_or_expire(ledger: Ledger, claim: Allocation, snapshot: Snapshot) -> None:
    """Charge the whole reserve of a claim whose snapshot is gone: it may have been read before."""
    try:
        tables.verify(snapshot)
    except ClaimError as error:
        if claim.is_open:
            ledger.expire(claim.run_id, f"snapshot {snapshot.snapshot_id} is gone")
        raise ClaimError(f"run {claim.run_id} is closed and charged in full: {error}") from None


def _blocks(ledger: Ledger, question: Question) -> Mapping[str, RenyiCurve]:
    """Say what is taken of each privacy block: nothing for an answer that is out already."""
    slices.require_settings(question, ledger.blocks(question.account))
    published = {p.label for p in ledger.released_labels(dataset=question.account)}
    if question.dataset.blocks is None or question.label in published:
        return {}
    slices.open_blocks(ledger, question.dataset, slices.openings(question))
    return slices.demands(question)
