"""What stored answers and receipts know of charges that a restored ledger has forgotten.

An answer is stored only after its claim was allocated, so an answer whose claim is nowhere in the
ledger was charged by an entry that is lost. Who got it is lost too: every analyst of its dataset
may have, so each is charged for it, and owns it from then on. A receipt that somebody kept names
its analyst. Where an account has less left than the charge, all of that is taken: nothing more can
be spent from it. From a period that is over nothing can be spent; what it lost is written down.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from dp_udfs.budget import NOTHING, Loss, RenyiCurve
from dp_udfs.errors import SettingsError
from dp_udfs.pandas_udfs import Mechanism
from jobs.lake import accounts, releases, slices
from jobs.lake.entries import Entry, from_table
from jobs.lake.evidence import claimed_labels
from jobs.lake.ledger import Ledger
from jobs.lake.periods import day_in, period_of
from jobs.lake.questions import Question
from jobs.lake.settings import DatasetSettings, LakeSettings, load_dataset
from jobs.lake.tables import Snapshot, TableState

_RUN = "restored:"  # begins the name of a run that stands for a lost charge


@dataclass(frozen=True)
class Lost:
    """A charge that the ledger does not know: of an answer, or of a receipt."""

    dataset: str  # its file's name
    account: str  # its table's id
    analysts: tuple[str, ...]  # who is charged
    label: str
    loss: Loss
    over: bool  # the period that bore it is over
    question: Question | None = None  # of an answer: its blocks are charged too
    digest: str | None = None


@dataclass(frozen=True)
class Charged:
    """What was done about one lost charge for one analyst."""

    label: str
    dataset: str
    analyst: str
    charged: Loss
    note: str


def lost(
    lake: LakeSettings, ledger: Ledger, receipts: Iterable[Mapping[str, Any]], now: datetime
) -> list[Lost]:
    """List the charges that answers and receipts know, and the ledger does not.

    Raises
    ------
    SettingsError
        If a receipt lacks what it must say.
    """
    entries = from_table(ledger.entries())
    before = [entry for entry in entries if not (entry.run_id or "").startswith(_RUN)]
    known = claimed_labels(before)  # what an earlier try has begun to charge is charged to the end
    found = [
        _of_answer(lake, entries, manifest, now)
        for manifest in releases.manifests(lake.tables.releases)
        if manifest["label"] not in known
    ]
    hashes = {entry.hash for entry in entries}
    return found + [
        _of_receipt(lake, receipt, now)
        for receipt in receipts
        if _said(receipt, "ledger_head") not in hashes and _said(receipt, "charged_units")
    ]


def charge(
    lake: LakeSettings, ledger: Ledger, losses: Iterable[Lost], now: datetime
) -> list[Charged]:
    """Charge what was lost, each once however often this is called."""
    with ledger.completing():
        return [done for each in losses for done in _charge(lake, ledger, each, now)]


def complete(
    lake: LakeSettings,
    ledger: Ledger,
    reason: str,
    receipts: Iterable[Mapping[str, Any]],
    now: datetime,
) -> list[Charged]:
    """Charge what a restored ledger has forgotten, and let it grant again."""
    losses = lost(lake, ledger, receipts, now)
    done = charge(lake, ledger, losses, now)
    details = {"lost": [{"label": e.label, **vars(e.loss)} for e in losses]}
    ledger.complete(reason, details)
    return done


def read_receipts(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Read receipts: what `release_counts --format json` printed, one object a line or file."""
    found: list[dict[str, Any]] = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
            found += [json.loads(line) for line in text.splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path}: cannot be read as receipts in JSON: {error}") from None
    return found


def _of_answer(
    lake: LakeSettings, entries: Iterable[Entry], manifest: Mapping[str, Any], now: datetime
) -> Lost:
    """Say what an answer without a claim has cost, at most, and whom."""
    dataset = load_dataset(manifest["dataset"], lake)
    question = _question(dataset, manifest["question"])
    terms = accounts.terms_of(dataset)
    seen = {
        e.analyst for e in entries if e.kind == "open_account" and e.dataset == question.account
    }
    return Lost(
        dataset=dataset.name,
        account=question.account,
        analysts=tuple(sorted({*dataset.analysts, *(name for name in seen if name)})),
        label=manifest["label"],
        loss=Loss(
            manifest["units"] * accounts.unit_weight(question, terms),
            accounts.price(question, terms).calls,
        ),
        over=_day(dataset, manifest["written_at"]) < _period(dataset, now),
        question=question,
        digest=manifest["digest"],
    )


def _of_receipt(lake: LakeSettings, receipt: Mapping[str, Any], now: datetime) -> Lost:
    dataset = load_dataset(_said(receipt, "dataset"), lake)
    resets_at = date.fromisoformat(_said(receipt, "resets_at"))
    return Lost(
        dataset=dataset.name,
        account=accounts.account_of(lake, dataset),
        analysts=(_said(receipt, "analyst"),),
        label=_said(receipt, "label"),
        loss=Loss(_said(receipt, "charged_units"), _said(receipt, "charged_calls")),
        over=resets_at <= _day(dataset, now),
    )


def _charge(lake: LakeSettings, ledger: Ledger, lost: Lost, now: datetime) -> Iterator[Charged]:
    """Charge one loss to everybody who may have it; its blocks once."""
    if lost.over:
        yield Charged(lost.label, lost.dataset, "", NOTHING, "its period is over: written down")
        return
    dataset = load_dataset(lost.dataset, lake)
    blocks = _open_blocks(ledger, lost.question)
    for analyst in lost.analysts:
        budget = accounts.open_account(ledger, dataset, lost.account, analyst, now)
        left = Loss(budget.units_left, budget.calls_left)
        due = lost.loss if left.covers(lost.loss) else left
        run_id = f"{_RUN}{lost.label}:{analyst}"
        known = ledger.find(run_id)
        if known is None:
            ledger.allocate(
                run_id,
                analyst=analyst,
                dataset=lost.account,
                units=due.units,
                calls=due.calls,
                blocks=blocks,
                fingerprint=lost.label,
                details={"label": lost.label, "dataset_name": lost.dataset},
            )
        else:
            due = known.reserve
        publish = (lost.label, lost.digest) if lost.digest and due == lost.loss else None
        ledger.settle(run_id, units=due.units, calls=due.calls, publish=publish)
        note = "charged" if due == lost.loss else "all that was left is taken"
        yield Charged(lost.label, lost.dataset, analyst, due, note)
        blocks = {}


def _open_blocks(ledger: Ledger, question: Question | None) -> dict[str, RenyiCurve]:
    """Open the blocks of a question, and say what to take of each: at most what is left."""
    if question is None or question.dataset.blocks is None:
        return {}
    slices.open_blocks(ledger, question.dataset, slices.openings(question))
    left = {block.block_id: block.filter.left for block in ledger.blocks(question.account)}
    return {
        block_id: RenyiCurve(
            tuple(max(0, min(pair)) for pair in zip(curve.nano, left[block_id].nano, strict=True))
        )
        for block_id, curve in slices.demands(question).items()
    }


def _question(dataset: DatasetSettings, canonical: str) -> Question:
    """Read a question back from its canonical form, as far as its price depends on it."""
    said = json.loads(canonical)
    start, end = map(date.fromisoformat, said["window"])
    tables = {
        role: TableState("", table_id, version, digest)
        for role, (table_id, version, digest) in said["data"].items()
    }
    published = datetime.combine(end, time(), UTC)
    domain = said["mechanism"]["domain"]
    return Question(
        dataset=dataset,
        snapshot=Snapshot(said["snapshot"], end, published, tables),
        element=said["element"],
        measure=said["measure"],
        mechanism=Mechanism(**said["mechanism"] | {"domain": domain and tuple(domain)}),
        cohort_columns=tuple(said["cohort_columns"]),
        cohorts=tuple(said["cohorts"]),
        cohorts_per_user=said["cohorts_per_user"],
        start=start,
        end=end,
        filters=(),
        show=None,
        secret_id=said["secret"],
        code_version=said["code_version"],
    )


def _said(receipt: Mapping[str, Any], key: str) -> Any:
    try:
        return receipt[key]
    except (KeyError, TypeError):
        raise SettingsError(f"a receipt lacks {key!r}: give what release_counts printed") from None


def _day(dataset: DatasetSettings, moment: datetime) -> date:
    return day_in(dataset.table.time_zone, moment)


def _period(dataset: DatasetSettings, now: datetime) -> date:
    return period_of(now, dataset.table.time_zone, dataset.budget.period)[0]
