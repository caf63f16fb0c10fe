"""One line of the ledger: what happened, and its link in the region's hash chain."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any, Literal, get_args

import pyarrow as pa

from dp_udfs.errors import InvalidParameterError
from jobs.lake.commits import to_rows

Kind = Literal[
    "open_account", "override", "open_block", "retire_block", "count_users", "open_queue", "unlock",
    "submit", "reject", "time_out", "cancel", "allocate", "refuse", "release", "consume", "settle",
    "give_back", "expire", "debit", "credit", "carry", "restore",
]  # fmt: skip

SCHEMA_VERSION = 2  # 2: queues
GENESIS = "0" * 64  # what the first entry of a region names as its predecessor


@dataclass(frozen=True, kw_only=True)
class Fact:
    """What an entry says: a kind, whom it is about, amounts and texts; None where not said."""

    kind: Kind
    analyst: str | None = None
    dataset: str | None = None
    period_start: date | None = None
    period_end: date | None = None
    units: int = 0
    calls: int = 0
    blocks: str | None = None
    claim_id: str | None = None
    run_id: str | None = None
    fingerprint: str | None = None
    label: str | None = None
    digest: str | None = None
    details: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Entry(Fact):
    """A fact at its place in the chain of one region."""

    region: str
    entry_no: int
    entry_id: str
    recorded_at: datetime
    schema_version: int
    previous_hash: str

    @property
    def hash(self) -> str:
        """SHA-256 over all that is said, the predecessor's hash included.

        What is None is left out, so that a column added later does not change old hashes.
        """
        said = {name: value for name, value in vars(self).items() if value is not None}
        text = json.dumps(said, sort_keys=True, separators=(",", ":"), default=_iso)
        return hashlib.sha256(text.encode()).hexdigest()


def canonical(details: Mapping[str, Any]) -> str:
    """Write details as JSON, the same for the same details."""
    try:
        return json.dumps(
            details, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"details cannot be written as JSON: {error}") from None


def credit_id(debit_id: str, receiver: str) -> str:
    """Name the entry that receives what another region's debit sent: there can be only one."""
    return f"{receiver}:credit:{hashlib.sha256(debit_id.encode()).hexdigest()[:32]}"


_COMMENTS = {
    "position": "place in this table; equals entry_no until entries of other regions are copied in",
    "segment": "stretch of entries; each but the first begins with a carry entry",
    "region": "data centre that wrote the entry",
    "entry_no": "1, 2, 3... within the region",
    "entry_id": "global name of the entry; begins with the region",
    "kind": ", ".join(get_args(Kind)),
    "analyst": "who asks",
    "dataset": "id of the table that is asked about, not the name of a settings file",
    "period_start": "first day of the account's period",
    "period_end": "first day after the period; null while no end is known",
    "units": "information units: the allowance, the reserve, what was asked or what it cost",
    "calls": "calls: likewise",
    "blocks": "privacy blocks and a curve for each, in billionths of epsilon, as JSON: the "
    "capacity, what was asked, or what is charged",
    "claim_id": "what was allocated; of a credit the id of its debit",
    "run_id": "the caller's key for one attempt at something",
    "fingerprint": "hash of question, snapshot and price that the claim is bound to",
    "label": "label of the published release",
    "digest": "digest of the published rows",
    "details": "question, snapshot and other facts, as JSON; under 'queue' how a claim waits and "
    "when it was decided; of a carry the balances so far",
    "reason": "why, in words",
    "recorded_at": "UTC; never before the region's previous entry",
    "schema_version": "version of this layout",
    "previous_hash": "hash of the region's previous entry",
}
_NOT_NULL = {
    "position", "segment", "region", "entry_no", "entry_id", "kind", "units", "calls",
    "recorded_at", "schema_version", "previous_hash",
}  # fmt: skip
_TYPES = {
    "position": pa.int64(),
    "segment": pa.int64(),
    "entry_no": pa.int64(),
    "units": pa.int64(),
    "calls": pa.int64(),
    "schema_version": pa.int32(),
    "period_start": pa.date32(),
    "period_end": pa.date32(),
    "recorded_at": pa.timestamp("us", "UTC"),
}

COLUMNS = pa.schema(
    [
        pa.field(name, _TYPES.get(name, pa.string()), name not in _NOT_NULL, {"comment": comment})
        for name, comment in _COMMENTS.items()
    ]
)
_ENTRY_FIELDS = [field.name for field in fields(Entry)]


def from_table(table: pa.Table) -> list[Entry]:
    """Read entries from rows of the ledger, in their order; columns that came later say nothing."""
    there = [name for name in _ENTRY_FIELDS if name in table.column_names]
    return [Entry(**row) for row in to_rows(table.select(there))]


def _iso(value: date | datetime) -> str:
    return value.isoformat()
