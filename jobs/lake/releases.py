"""Released answers: written once under their label, seen only once published in the ledger.

The rows of an answer, one stop row per cohort and the manifest are one Delta commit, so an answer
is complete or absent. The manifest carries what the answer cost; claims settle from it.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from dp_udfs.budget import Loss
from dp_udfs.errors import ClaimError
from dp_udfs.prices import NoiseSummary
from jobs.lake import commits, entries, torn
from jobs.lake.questions import Question

SCHEMA = pa.schema(
    [
        ("label", pa.string()),
        ("row_kind", pa.string()),  # element, stop or manifest
        ("cohort", pa.string()),
        ("rank", pa.int32()),
        ("element", pa.string()),
        ("noisy_count", pa.int64()),
        ("noise_scale", pa.float64()),  # standard deviation of the count's noise
        ("low", pa.int64()),  # 95 % interval of the noise around the noisy count
        ("high", pa.int64()),
        ("stopped", pa.bool_()),  # the threshold ended this cohort's list
        ("units", pa.int64()),
        ("calls", pa.int64()),
        ("row_count", pa.int64()),
        ("digest", pa.string()),
        ("dataset", pa.string()),
        ("snapshot_id", pa.int64()),
        ("question", pa.string()),
        ("family", pa.string()),  # label of the question without its k
        ("k", pa.int64()),
        ("written_at", pa.timestamp("us", "UTC")),
    ]
)
ANSWER_COLUMNS = SCHEMA.names[1:10]


@dataclass(frozen=True)
class Release:
    """One stored answer: its rows (elements and stops), what it cost, and its digest."""

    label: str
    rows: pa.Table
    loss: Loss
    digest: str

    def first(self, k: int | None) -> pa.Table:
        """Cut the rows to the first `k` elements of each cohort; a cut cohort did not stop."""
        if k is None:
            return self.rows
        kept = [row for row in self.rows.to_pylist() if row["rank"] is None or row["rank"] <= k]
        full = _cohorts_with_rank(kept, k)
        for row in kept:
            if row["row_kind"] == "stop" and row["cohort"] in full:
                row["stopped"] = False
        return pa.Table.from_pylist(kept, schema=self.rows.schema)


def _cohorts_with_rank(rows: Sequence[dict[str, Any]], rank: int) -> set[str]:
    return {row["cohort"] for row in rows if row["rank"] == rank}


def from_answer(question: Question, answer: pa.Table) -> Release:
    """Complete the noised rows of all cohorts with the public size of their noise.

    Parameters
    ----------
    answer : pyarrow.Table
        Columns of `dp_udfs.pandas_udfs.ANSWER_SCHEMA`: each cohort of the question exactly once.
    """
    stops = [row for row in answer.to_pylist() if row["row_kind"] == "stop"]
    if sorted(row["cohort"] for row in stops) != list(question.cohorts):
        raise ClaimError("the answer does not hold each cohort exactly once; nothing was released")
    rows = [_with_noise(row, question.noise) for row in answer.to_pylist()]
    rows.sort(key=lambda row: (row["cohort"], row["rank"] is None, row["rank"]))
    table = pa.Table.from_pylist(
        rows, schema=pa.schema([SCHEMA.field(name) for name in ANSWER_COLUMNS])
    )
    loss = question.charge([row["units"] for row in stops])
    return Release(question.label, table, loss, _digest(table))


def _with_noise(row: dict[str, Any], noise: NoiseSummary) -> dict[str, Any]:
    """One row with its noise scale and interval."""
    count = row["noisy_count"]
    if count is None:
        return row
    return row | {
        "noise_scale": noise.standard_deviation,
        "low": count - noise.half_width,
        "high": count + noise.half_width,
    }


def _digest(rows: pa.Table) -> str:
    """SHA-256 of the rows in their stored order."""
    lines = (json.dumps(row, sort_keys=True) for row in rows.to_pylist())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write(path: str | Path, question: Question, release: Release) -> Release:
    """Store an answer under its label, once; return what is stored.

    A label that is there already keeps its rows: with keyed noise they are the same.

    Raises
    ------
    ClaimError
        If other rows are stored under the label, which only changed code can cause.
    """
    while True:
        table = commits.open_or_create(path, SCHEMA)
        stored = _find(table, release.label)
        if stored is not None and stored.digest != release.digest:
            raise ClaimError(
                f"release {release.label[:12]} is stored with other numbers; not published: "
                f"CODE_VERSION must rise with every change of bounding, mechanism or sampler"
            )
        if stored is not None:
            return stored
        if commits.try_append(table, _commit(question, release)):
            return release


def find(path: str | Path, label: str) -> Release | None:
    """Return the stored answer of a label, or None; the ledger says whether it is published."""
    table = _open(path)
    return None if table is None else _find(table, label)


def find_all(path: str | Path) -> dict[str, Release | ClaimError]:
    """Return all stored answers by label, and the error where one is not what was stored."""
    table = _open(path)
    if table is None:
        return {}
    rows = _query(table, "select * from releases order by label, cohort, rank nulls last")
    rows = commits.widened(rows, SCHEMA)
    starts: dict[str, int] = {}
    for place, label in enumerate(rows["label"].to_pylist()):
        starts.setdefault(label, place)
    ends = [*starts.values(), rows.num_rows][1:]
    found: dict[str, Release | ClaimError] = {}
    for (label, start), end in zip(starts.items(), ends, strict=True):
        try:
            answer = _checked(label, rows.slice(start, end - start))
        except ClaimError as error:
            found[label] = error
        else:
            found[label] = answer or ClaimError(f"release {label[:12]} has no manifest")
    return found


def manifests(path: str | Path) -> list[dict[str, Any]]:
    """List the manifests of all stored answers, published or not, oldest first."""
    table = _open(path)
    if table is None:
        return []
    sql = "select * from releases where row_kind = 'manifest' order by written_at, label"
    return commits.to_rows(_query(table, sql))


def find_owned(path: str | Path, question: Question, owned: Collection[str]) -> Release | None:
    """Find the answer to a question among the labels an analyst owns: itself, or a larger k.

    The first `k` elements of a published answer are the answer for that `k`, at no further cost.
    """
    table = _open(path)
    if table is None:
        return None
    for label in (question.label, *_larger(table, question)):
        if label in owned:
            stored = _find(table, label)
            if stored is not None:
                return stored
    return None


def _open(path: str | Path) -> DeltaTable | None:
    """Open the table, its layout brought up to date; None where there is none."""
    table = commits.open_if_exists(path)
    if table is not None:
        commits.bring_up_to_date(table, SCHEMA)
    return table


def _larger(table: DeltaTable, question: Question) -> list[str]:
    """List labels of stored answers to the same question for a larger k, smallest k first."""
    if question.mechanism.k is None:
        return []
    rows = _query(
        table,
        f"select label from releases where row_kind = 'manifest' "  # noqa: S608 - our own label
        f"and family = '{question.family_label}' and k > {question.mechanism.k} order by k",
    )
    return [str(label) for label in rows["label"].to_pylist()]


def _query(table: DeltaTable, sql: str) -> pa.Table:
    try:
        return pa.table(QueryBuilder().register("releases", table).execute(sql))
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise torn.unusable(table.table_uri, error) from None


def _commit(question: Question, release: Release) -> pa.Table:
    """All rows of one commit: the answer and its manifest."""
    manifest = {
        "row_kind": "manifest",
        "units": release.loss.units,
        "calls": release.loss.calls,
        "row_count": release.rows.num_rows,
        "digest": release.digest,
        "dataset": question.dataset.name,
        "snapshot_id": question.snapshot.snapshot_id,
        "question": question.canonical,
        "family": question.family_label,
        "k": question.mechanism.k,
        "written_at": datetime.now(UTC),
    }
    rows = [row | {"label": release.label} for row in [*release.rows.to_pylist(), manifest]]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _find(table: DeltaTable, label: str) -> Release | None:
    """Read one label."""
    if not (len(label) == 64 and set(label) <= set("0123456789abcdef")):
        raise ClaimError("a label is 64 hexadecimal digits")
    rows = _query(
        table,
        f"select * from releases where label = '{label}' "  # noqa: S608 - 64 hexadecimal digits
        f"order by cohort, rank nulls last",
    )
    return _checked(label, commits.widened(rows, SCHEMA))


def _checked(label: str, rows: pa.Table) -> Release | None:
    """Make a release of its rows if they are what the manifest says; None without a manifest."""
    kinds = rows["row_kind"].to_pylist()
    if "manifest" not in kinds:
        return None
    manifest = rows.filter(pa.compute.equal(rows["row_kind"], "manifest")).to_pylist()[0]
    answer = rows.filter(pa.compute.not_equal(rows["row_kind"], "manifest")).select(ANSWER_COLUMNS)
    if answer.num_rows != manifest["row_count"] or _digest(answer) != manifest["digest"]:
        raise ClaimError(f"release {label[:12]} does not match its manifest: the table was changed")
    return Release(label, answer, Loss(manifest["units"], manifest["calls"]), manifest["digest"])


_RECEIPTS = """
select l.analyst, l.run_id, l.recorded_at as published_at, m.dataset, m.snapshot_id,
       s.units as charged_units, s.calls as charged_calls, stops.cohorts, stops.stopped_cohorts,
       m.label, m.digest, l.fingerprint, m.question, l.entry_id as ledger_entry,
       s.entry_id as charge
from ledger l
join ledger s on s.kind = 'settle' and s.claim_id = l.claim_id
join releases m on m.row_kind = 'manifest' and m.label = l.label and m.digest = l.digest
join (select label, count(*) as cohorts, sum(case when stopped then 1 else 0 end) as stopped_cohorts
      from releases where row_kind = 'stop' group by label) stops on stops.label = l.label
where l.kind = 'release'
order by published_at, run_id
"""


def receipts(path: str | Path, ledger: DeltaTable) -> pa.Table:
    """List what was published: to whom, of which data, at what cost, under which ledger entry.

    Parameters
    ----------
    path : str or Path
        The table of releases.
    ledger : DeltaTable
        The ledger's table; only rows with a `release` entry there count as published.

    Returns
    -------
    pyarrow.Table
        One row per publication: analyst, run_id, published_at, dataset, snapshot_id,
        charged_units, charged_calls, cohorts, stopped_cohorts, label, digest, fingerprint,
        question (canonical JSON, all parameters), ledger_entry, and ledger_head: the hash of the
        entry that charged for it, on which all before it depend. `verify_ledger --head` finds it
        in every later state of the ledger.
    """
    table = commits.open_or_create(path, SCHEMA)
    builder = QueryBuilder().register("releases", table).register("ledger", ledger)
    found = pa.table(builder.execute(_RECEIPTS))
    settled = pa.table(builder.execute("select * from ledger where kind = 'settle'"))
    hashes = {entry.entry_id: entry.hash for entry in entries.from_table(settled)}
    heads = [hashes[charge] for charge in found["charge"].to_pylist()]
    return found.drop_columns(["charge"]).append_column("ledger_head", pa.array(heads, pa.string()))
