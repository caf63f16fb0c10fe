"""Does the ledger still say what was written? Every check from the entries alone, with no trust.

The checks build on each other: the chain of every region shows what was changed, taken out, put in
twice or moved; on whole chains the fold shows what cannot have been decided; on a sound fold sums,
charges and published answers are compared. Each step stops the next, so one act of tampering is one
line and not a hundred. A chain cannot show that its end was cut off: heads kept elsewhere can.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from dp_udfs.budget import NOTHING, Loss, RenyiCurve
from dp_udfs.errors import ClaimError, LedgerConflictError
from jobs.lake import carries, rounds, views
from jobs.lake.allocations import Allocation
from jobs.lake.balances import Balances
from jobs.lake.budgets import read_curves
from jobs.lake.claims import due
from jobs.lake.entries import GENESIS, Entry, from_table
from jobs.lake.entry_log import EntryLog
from jobs.lake.releases import Release

_NEED_REASON = ("expire", "give_back", "reject", "time_out", "cancel", "retire_block")


class Placed(NamedTuple):
    """An entry, and where it stands in its table."""

    position: int
    segment: int
    entry: Entry


class Finding(NamedTuple):
    """Something wrong: with which entry, if it is one, and what."""

    region: str | None
    entry_no: int | None
    entry_id: str | None
    finding: str


class Audit(NamedTuple):
    """What a ledger holds, and what is wrong with it."""

    findings: list[Finding]
    entries: list[Entry]
    balances: Balances | None  # None where the chains or the fold are broken

    def heads(self) -> dict[str, str]:
        """Return the hash of each region's last entry, to be kept elsewhere."""
        last = {entry.region: entry for entry in sorted(self.entries, key=lambda e: e.entry_no)}
        return {region: last[region].hash for region in sorted(last)}


def audit(
    log: EntryLog,
    *,
    heads: Collection[str] = (),
    region: str = "",
    answers: Mapping[str, Release | ClaimError] | None = None,
) -> Audit:
    """Check a ledger from its first entry to its last.

    Parameters
    ----------
    log : EntryLog
        The table.
    heads : collection of str
        Hashes of entries that must be there, from receipts and reports.
    region : str
        The region whose published answers are `answers`.
    answers : mapping of str to Release or ClaimError, optional
        All stored answers, from `releases.find_all`; without them releases are not looked up.

    Raises
    ------
    SettingsError
        If there is no ledger, or its table cannot be read.
    """
    rows = log.query("SELECT * FROM ledger ORDER BY position, entry_no")
    places = zip(rows["position"].to_pylist(), rows["segment"].to_pylist(), strict=True)
    entries = from_table(rows)
    placed = [Placed(*place, entry) for place, entry in zip(places, entries, strict=True)]
    protection = [Finding(None, None, None, gap) for gap in log.protection_gaps()]
    broken = check_chains(placed) or check_places(placed)
    findings = [*protection, *broken, *check_heads(entries, heads)]
    if broken:
        return Audit(findings, entries, None)
    wrong, balances = refold(placed)
    if balances is not None:
        wrong += check_sums(balances, views.left(log.query)) + check_blocks(balances)
        if answers is not None:
            wrong += check_releases(entries, balances, region, answers)
    return Audit([*findings, *wrong], entries, balances)


def check_chains(placed: Sequence[Placed]) -> list[Finding]:
    """Find entries that were changed, taken out, put in twice or moved."""
    regions: dict[str, list[Entry]] = defaultdict(list)
    for place in placed:
        regions[place.entry.region].append(place.entry)
    return [finding for entries in regions.values() for finding in _check_chain(entries)]


def check_places(placed: Sequence[Placed]) -> list[Finding]:
    """Find rows that do not stand where they were put: positions and segments without gaps."""
    findings = []
    before = Placed(-1, 0, placed[0].entry) if placed else None
    for place in placed:
        assert before is not None
        if place.position != before.position + 1:
            findings.append(_of(place.entry, f"stands at {place.position}, a place not its own"))
        begins = place.segment == before.segment + 1 and place.entry.kind == "carry"
        if place.segment != before.segment and not begins:
            findings.append(_of(place.entry, f"is in segment {place.segment}, not its own"))
        before = place
    return findings


def check_heads(entries: Iterable[Entry], heads: Collection[str]) -> list[Finding]:
    """Look for heads that were noted elsewhere."""
    known = {GENESIS, *(entry.hash for entry in entries)}
    return [
        Finding(None, None, None, f"head {head} is in no chain: an end was cut off, or rewritten")
        for head in heads
        if head not in known
    ]


def refold(placed: Sequence[Placed]) -> tuple[list[Finding], Balances | None]:
    """Fold everything again; compare each carry of this table with what it stands for.

    Returns
    -------
    (list of Finding, Balances or None)
        No balances where an entry cannot follow the ones before it.
    """
    balances, findings, segment = Balances(), [], 0
    for place in placed:
        entry = place.entry
        if place.segment > segment and not _carries_all(entry, balances):
            findings.append(_of(entry, "carries other balances than the entries before it give"))
        segment = place.segment
        try:
            balances.apply(entry)
        except (LedgerConflictError, ValueError, KeyError) as error:
            return [*findings, _of(entry, f"cannot be folded: {error}")], None
        if entry.kind == "allocate" and _is_overspent(balances, entry):
            findings.append(_of(entry, f"takes more than was left to {entry.analyst}"))
        if entry.kind == "allocate" and rounds.is_ahead_of_queue(balances, entry):
            findings.append(_of(entry, "takes more of a block than was unlocked"))
        if entry.kind in _NEED_REASON and not entry.reason:
            findings.append(_of(entry, "closes a claim and gives no reason"))
    return findings, balances


def check_blocks(balances: Balances) -> list[Finding]:
    """Compare the parts of each block with what all claims together hold of it."""
    sums: dict[tuple[str, str], RenyiCurve] = {}
    for claim in balances.claims.values():
        for part, curves in claim.held:
            for block_id, curve in curves.items():
                before = sums.get((part, block_id), curve.zero)
                sums[part, block_id] = before + curve
    return [
        Finding(None, None, None, f"block {block.block_id}: {part} differs from its claims")
        for block in balances.blocks.values()
        for part in ("allocated", "consumed")
        if getattr(block.filter, part)
        != sums.get((part, block.block_id), block.filter.capacity.zero)
    ]


def check_sums(balances: Balances, left: pa.Table) -> list[Finding]:
    """Compare what is used and allowed with sums that SQL makes of the same entries."""
    folded = {
        (*account.key, share): (owned.capacity, owned.used)
        for of_analyst in balances.accounts.values()
        for account in of_analyst.values()
        for share, owned in account.filters()
    }
    summed = {
        (row["analyst"], row["dataset"], row["period_start"], row["share"]): (
            Loss(row["allowed_units"], row["allowed_calls"]),
            Loss(row["used_units"], row["used_calls"]),
        )
        for row in left.to_pylist()
    }
    return [
        Finding(None, None, None, f"account {key}: fold and sums differ")
        for key in folded.keys() | summed.keys()
        if folded.get(key) != summed.get(key)
    ]


def check_releases(
    entries: Sequence[Entry],
    balances: Balances,
    region: str,
    answers: Mapping[str, Release | ClaimError],
) -> list[Finding]:
    """Compare publications with stored answers, their numbers and their cost, and the reverse."""
    findings = []
    claims = {claim.claim_id: claim for claim in balances.claims.values()}
    paid: set[tuple[str, str, str]] = set()  # the same answer again is free for the same analyst
    published = [entry for entry in entries if entry.kind == "release"]
    for entry in published:
        answer = answers.get(entry.label or "")
        claim = claims[entry.claim_id or ""]
        if entry.region != region:
            pass  # its answer is stored there
        elif answer is None:
            findings.append(_of(entry, "has no manifest among the releases"))
        elif isinstance(answer, ClaimError):
            findings.append(_of(entry, f"was published with other numbers: {answer}"))
        elif answer.digest != entry.digest:
            findings.append(_of(entry, "was published with other numbers: the digests differ"))
        elif not claim.charge.covers(due(claim, answer)) and _owner(claim) not in paid:
            findings.append(
                _of(entry, f"is charged {claim.charge}, and costs {due(claim, answer)}")
            )
        paid.add(_owner(claim))
    claimed = claimed_labels(entries)
    return findings + [
        Finding(None, None, None, f"stored answer {label} has no claim: an end was cut off")
        for label in answers
        if label not in claimed
    ]


def claimed_labels(entries: Iterable[Entry]) -> set[str]:
    """List the answers that some granted claim asked for, or a restore has written down as lost."""
    labels: set[str] = set()
    asked: dict[str, str] = {}  # by claim: one that waits has said it before it is granted
    for entry in entries:
        said = json.loads(entry.details or "{}") if entry.kind != "carry" else {}
        if entry.claim_id and "label" in said:
            asked[entry.claim_id] = said["label"]
        if entry.kind == "allocate" and entry.claim_id in asked:
            labels.add(asked[entry.claim_id])
        if entry.label:
            labels.add(entry.label)
        if entry.kind == "restore":
            labels |= {each["label"] for each in said.get("lost", ())}
    return labels


def summary(audited: Audit) -> dict[str, Any]:
    """Count what the ledger holds: how claims ended, what they are charged."""
    facts: dict[str, Any] = {"entries": len(audited.entries), "heads": audited.heads()}
    if audited.balances is None:
        return facts
    claims = list(audited.balances.claims.values())
    ends = {"published": 0, "settled": 0, "expired": 0, "given_back": 0, "open": 0}
    for claim in claims:
        end = "published" if claim.label else "open" if claim.is_open else claim.state
        ends[end] = ends.get(end, 0) + 1
    charged = sum((claim.charge for claim in claims), NOTHING)
    return facts | {"claims": ends, "charged": str(charged)}


def _check_chain(entries: Iterable[Entry]) -> list[Finding]:
    """Check one region's entries, given in the order of the table."""
    copies: dict[int, list[Entry]] = defaultdict(list)
    findings: dict[str, Finding] = {}
    for entry in entries:
        if entry.entry_no in copies:
            findings[f"twice {entry.entry_no}"] = _of(entry, "is there more than once")
        elif copies and entry.entry_no < max(copies):
            findings[entry.entry_id] = _of(entry, f"stands behind entry {max(copies)}")
        copies[entry.entry_no].append(entry)
    numbers = sorted(copies)
    for before, after in pairwise([0, *numbers]):
        if after != before + 1:
            findings[f"missing {after}"] = _missing(copies[after][0], before + 1, after - 1)
        elif not _linked(copies.get(before, ()), copies[after]):
            culprit = _culprit(copies, before)
            findings.setdefault(culprit.entry_id, _of(culprit, "was changed after it was written"))
    return list(findings.values())


def _linked(before: Collection[Entry], after: Collection[Entry]) -> bool:
    """Whether some copy of an entry follows some copy of the one before it."""
    hashes = {entry.hash for entry in before} or {GENESIS}
    return any(entry.previous_hash in hashes for entry in after)


def _culprit(copies: Mapping[int, Sequence[Entry]], number: int) -> Entry:
    """Which side of a broken link was changed: the later one if the right link mends what follows.

    A change of the last entry but one's link alone cannot be told from one of its predecessor.
    """
    before, after = copies.get(number, ()), copies[number + 1]
    if not before:
        return after[0]
    mended = [replace(entry, previous_hash=before[0].hash) for entry in after]
    follows = copies.get(number + 2, ())
    return after[0] if follows and _linked(mended, follows) else before[0]


def _carries_all(carry: Entry, balances: Balances) -> bool:
    try:
        said = carries.read(carry.details or "")
    except (ValueError, KeyError, TypeError):
        return False
    return said == carries.read(carries.write(balances, carry.recorded_at))


def _is_overspent(balances: Balances, entry: Entry) -> bool:
    """Whether an allocation took what was not there; in mode "track" it may."""
    blocks = (balances.blocks[block_id] for block_id in read_curves(entry.blocks))
    if any(block.mode == "enforce" and block.filter.is_overspent for block in blocks):
        return True
    if entry.period_start is None:
        return False
    account = balances.accounts[entry.analyst or "", entry.dataset or ""][entry.period_start]
    account = account.seen_from(entry.region)
    return account.mode == "enforce" and not account.filter.capacity.covers(account.filter.used)


def _owner(claim: Allocation) -> tuple[str, str, str]:
    return claim.analyst, claim.dataset, claim.label or ""


def _of(entry: Entry, what: str) -> Finding:
    return Finding(entry.region, entry.entry_no, entry.entry_id, f"{entry.kind} {what}")


def _missing(after: Entry, first: int, last: int) -> Finding:
    what = (
        f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"
    )
    return Finding(after.region, first, None, what)
