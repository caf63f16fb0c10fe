"""Tampering on real tables: each kind is found, and named in one line."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dp_udfs.budget import Loss
from dp_udfs.errors import BudgetExhaustedError, ClaimError
from jobs.lake import entry_log, evidence, views
from jobs.lake.entries import COLUMNS, GENESIS, SCHEMA_VERSION, Entry, Fact, from_table
from jobs.lake.entry_log import EntryLog
from jobs.lake.evidence import Audit, Placed
from jobs.lake.ledger import Ledger
from jobs.lake.releases import Release

NOVEMBER, DECEMBER = date(2026, 11, 1), date(2026, 12, 1)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
FILMS = "0b6a"  # a table's id

Rows = list[dict[str, Any]]
ANSWER = Release("l1", pa.table({}), Loss(14, 1), "d1")


@pytest.fixture(autouse=True, scope="module")
def short_segments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_log, "SEGMENT", 6)
        patch.setattr(entry_log, "COMPACT_EVERY", 4)
        yield


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ledger of three segments in which everything has happened once."""
    kept = Ledger(tmp_path_factory.mktemp("eventful") / "ledger", clock=lambda: NOON)
    for analyst in ("marketing", "research"):
        kept.open_account(analyst, FILMS, NOVEMBER, 100, 10, period_end=DECEMBER)
    ask(kept, "published")
    kept.settle("published", units=14, calls=1, publish=("l1", "d1"))
    ask(kept, "lost")
    kept.expire("lost", "not heard of for a day")
    ask(kept, "regretted", "marketing")
    kept.give_back("regretted", "the session did not start")
    ask(kept, "settled", "marketing")
    kept.settle("settled", units=3, calls=1)
    kept.open_account("marketing", FILMS, NOVEMBER, 50, 10, reason="a smaller study")
    with pytest.raises(BudgetExhaustedError):
        ask(kept, "refused", "marketing", units=51)
    ask(kept, "open")
    return kept.path


@pytest.fixture
def ledger(eventful: str, tmp_path: Path) -> Ledger:
    shutil.copytree(eventful, tmp_path / "ledger")
    return Ledger(tmp_path / "ledger", clock=lambda: NOON)


def ask(ledger: Ledger, run_id: str, analyst: str = "research", units: int = 21) -> None:
    ledger.allocate(run_id, analyst=analyst, dataset=FILMS, units=units, calls=1, fingerprint="f")


def audited(ledger: Ledger, *heads: str, **options: Any) -> Audit:
    answers = options.pop("answers", {"l1": ANSWER})
    log = EntryLog(ledger.path)
    return evidence.audit(log, heads=heads, region="local", answers=answers, **options)


def lines(audit: Audit) -> list[tuple[int | None, str]]:
    return [(finding.entry_no, finding.finding) for finding in audit.findings]


def tamper(ledger: Ledger, change: Callable[[Rows], object]) -> Rows:
    """Rewrite the table as somebody can who may write its files; return the new rows."""
    rows: Rows = ledger.entries().to_pylist()
    change(rows)
    table = DeltaTable(ledger.path)
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    write_deltalake(table, pa.Table.from_pylist(rows, schema=COLUMNS), mode="overwrite")
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    return rows


def rechained(rows: Rows) -> None:
    """Number and link rows anew, as a careful forger would."""
    names = list(Entry.__dataclass_fields__)
    previous = GENESIS
    for place, row in enumerate(rows):
        row |= {"position": place, "entry_no": place + 1, "previous_hash": previous}
        previous = Entry(**{name: row[name] for name in names}).hash


def test_a_ledger_that_nobody_touched_holds(ledger: Ledger) -> None:
    rows = ledger.entries()
    assert rows["segment"].to_pylist()[-1] == 2
    heads = [entry.hash for entry in from_table(rows)]
    audit = audited(ledger, *heads)
    assert audit.findings == []
    assert audit.heads() == {"local": ledger.head()}
    assert evidence.summary(audit) == {
        "entries": 16,
        "heads": {"local": ledger.head()},
        "claims": {"published": 1, "settled": 1, "expired": 1, "given_back": 1, "open": 1},
        "charged": "59 units and 4 calls",
    }


def test_an_empty_ledger_holds(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path / "ledger"))
    log.prepare(create=True)
    assert evidence.audit(log, heads=[GENESIS]).findings == []


@pytest.mark.parametrize(
    "change",
    [
        {"units": 1},
        {"analyst": "somebody"},
        {"recorded_at": datetime(2026, 11, 15, 13, tzinfo=UTC)},
        {"fingerprint": "g"},
        {"entry_id": "local:other"},
        {"reason": "a reason of today"},
        {"previous_hash": "f" * 64},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("place", [0, 2, 9, 14])
def test_a_changed_entry_is_named(ledger: Ledger, place: int, change: dict[str, Any]) -> None:
    rows = tamper(ledger, lambda rows: rows[place].update(change))
    (found,) = audited(ledger).findings
    assert found.entry_no == place + 1
    assert found.entry_id == rows[place]["entry_id"]
    assert found.finding.endswith("was changed after it was written")


def test_a_missing_entry_is_named(ledger: Ledger) -> None:
    for place, line in ((3, "entry 4 is missing"), (0, "entry 1 is missing")):
        tamper(ledger, lambda rows, at=place: rows.pop(at))  # type: ignore[misc]
        assert (place + 1, line) in lines(audited(ledger))
    assert len(lines(audited(ledger))) == 2


def test_missing_entries_are_one_line(ledger: Ledger) -> None:
    def drop(rows: Rows) -> None:
        del rows[3:6]

    tamper(ledger, drop)
    assert lines(audited(ledger)) == [(4, "entries 4 to 6 are missing")]


def test_a_moved_entry_is_named(ledger: Ledger) -> None:
    def swap(rows: Rows) -> None:
        rows[3]["position"], rows[4]["position"] = 4, 3

    tamper(ledger, swap)
    assert lines(audited(ledger)) == [(4, "release stands behind entry 5")]


def test_entries_that_changed_places_and_numbers_are_named(ledger: Ledger) -> None:
    def swap(rows: Rows) -> None:
        for name in ("position", "entry_no"):
            rows[3][name], rows[4][name] = rows[4][name], rows[3][name]

    tamper(ledger, swap)
    assert {number for number, _ in lines(audited(ledger))} <= {3, 4, 5}
    assert lines(audited(ledger))


def test_a_duplicated_entry_is_named(ledger: Ledger) -> None:
    tamper(ledger, lambda rows: rows.append(rows[3] | {"position": 16}))
    assert lines(audited(ledger)) == [(4, "release is there more than once")]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"position": 40}, "allocate stands at 40, a place not its own"),
        ({"segment": 3}, "allocate is in segment 3, not its own"),
    ],
)
def test_an_entry_in_the_wrong_place_of_the_table_is_named(
    ledger: Ledger, change: dict[str, Any], line: str
) -> None:
    tamper(ledger, lambda rows: rows[-1].update(change))
    assert lines(audited(ledger)) == [(16, line)]


def test_a_cut_tail_shows_by_a_head_that_was_kept(ledger: Ledger) -> None:
    kept = ledger.head()
    tamper(ledger, lambda rows: rows.pop())
    assert audited(ledger).findings == []
    assert lines(audited(ledger, kept)) == [
        (None, f"head {kept} is in no chain: an end was cut off, or rewritten")
    ]


def test_commits_that_were_deleted_from_the_log_show_by_a_head(ledger: Ledger) -> None:
    before = DeltaTable(ledger.path).version()
    ask(ledger, "one more")
    last, kept = DeltaTable(ledger.path).version(), ledger.head()
    log = Path(ledger.path) / "_delta_log"
    for version in range(before + 1, last + 1):
        for file in log.glob(f"{version:020d}.*"):
            file.unlink()
    assert Ledger(ledger.path).find("one more") is None
    assert kept in lines(audited(ledger, kept))[0][1]


def test_a_cut_tail_shows_by_an_answer_without_a_claim(ledger: Ledger) -> None:
    orphan = Release("l2", pa.table({}), Loss(1, 1), "d2")
    found = lines(audited(ledger, answers={"l1": ANSWER, "l2": orphan}))
    assert found == [(None, "stored answer l2 has no claim: an end was cut off")]


def test_a_forger_who_links_everything_anew_is_caught_by_a_head(ledger: Ledger) -> None:
    kept = ledger.head()

    def forge(rows: Rows) -> None:
        rows[-1]["units"] = 0
        rechained(rows)

    tamper(ledger, forge)
    assert audited(ledger).findings == []
    assert len(audited(ledger, kept).findings) == 1


def test_a_carry_that_says_other_balances_is_named(ledger: Ledger) -> None:
    def forge(rows: Rows) -> None:
        carry = next(row for row in rows if row["kind"] == "carry")
        carry["details"] = carry["details"].replace('"used":[35,2]', '"used":[5,2]')
        rechained(rows)

    before = ledger.entries().to_pylist()
    after = tamper(ledger, forge)
    assert [a["details"] for a in after] != [b["details"] for b in before]
    number, line = lines(audited(ledger))[0]
    assert (number, line) == (7, "carry carries other balances than the entries before it give")


@pytest.mark.parametrize(
    ("place", "change", "line"),
    [
        (4, {"units": 22}, "cannot be folded"),
        (2, {"units": 101}, "takes more than was left to research"),
        (7, {"reason": None}, "closes a claim and gives no reason"),
        (3, {"claim_id": "local:0"}, "cannot be folded"),
    ],
)
def test_what_cannot_have_been_decided_is_named_though_its_chain_is_whole(
    ledger: Ledger, place: int, change: dict[str, Any], line: str
) -> None:
    def forge(rows: Rows) -> None:
        rows[place] |= change
        rechained(rows)

    tamper(ledger, forge)
    number, said = lines(audited(ledger))[0]
    assert number == place + 1
    assert line in said


def test_a_weakened_table_is_named(ledger: Ledger) -> None:
    DeltaTable(ledger.path).alter.set_table_properties({"delta.appendOnly": "false"})
    (found,) = audited(ledger).findings
    assert "no longer protected: delta.appendOnly is 'false'" in found.finding


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        ({}, "has no manifest among the releases"),
        ({"l1": ClaimError("its rows differ")}, "with other numbers: its rows differ"),
        ({"l1": Release("l1", pa.table({}), Loss(14, 1), "d2")}, "the digests differ"),
        (
            {"l1": Release("l1", pa.table({}), Loss(15, 1), "d1")},
            "is charged 14 units and 1 call, and costs 15 units and 1 call",
        ),
    ],
)
def test_a_publication_without_its_numbers_or_charge_is_named(
    ledger: Ledger, answers: dict[str, Any], line: str
) -> None:
    (found,) = audited(ledger, answers=answers).findings
    assert found.entry_no == 4
    assert line in found.finding


def test_the_same_answer_again_is_free_for_its_owner_alone(ledger: Ledger) -> None:
    ask(ledger, "again")
    ledger.settle("again", units=0, calls=0, publish=("l1", "d1"))
    assert audited(ledger).findings == []
    ask(ledger, "theirs", "marketing")
    ledger.settle("theirs", units=0, calls=0, publish=("l1", "d1"))
    (found,) = audited(ledger).findings
    assert "is charged 0 units and 0 calls" in found.finding


def test_sums_that_differ_from_the_fold_are_named(ledger: Ledger) -> None:
    audit = audited(ledger)
    left = views.left(EntryLog(ledger.path).query)
    assert audit.balances is not None
    at = left.schema.get_field_index("used_units")
    wrong = left.set_column(at, "used_units", pa.array([0, 0]))
    assert len(evidence.check_sums(audit.balances, wrong)) == 2
    assert len(evidence.check_sums(audit.balances, left.slice(1))) == 1


def test_a_copy_of_the_files_holds_too(ledger: Ledger, tmp_path: Path) -> None:
    shutil.copytree(ledger.path, tmp_path / "copy")
    assert audited(Ledger(tmp_path / "copy"), ledger.head()).findings == []


def test_an_entry_before_the_one_it_is_dated_after_cannot_be_folded() -> None:
    first = Entry(
        kind="open_account",
        analyst="research",
        dataset=FILMS,
        period_start=NOVEMBER,
        units=1,
        calls=1,
        region="local",
        entry_no=1,
        entry_id="local:1",
        recorded_at=NOON,
        schema_version=SCHEMA_VERSION,
        previous_hash=GENESIS,
    )
    said = {name: getattr(first, name) for name in Fact.__dataclass_fields__}
    second = Entry(
        **said | {"kind": "override"},
        region="local",
        entry_no=2,
        entry_id="local:2",
        recorded_at=datetime(2026, 11, 1, tzinfo=UTC),
        schema_version=SCHEMA_VERSION,
        previous_hash=first.hash,
    )
    placed: Sequence[Placed] = [Placed(0, 0, first), Placed(1, 0, second)]
    (found,), balances = evidence.refold(placed)
    assert "is dated before" in found.finding
    assert balances is None
