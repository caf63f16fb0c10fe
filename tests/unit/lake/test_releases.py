"""An answer is stored whole and once, and nobody reads it before the ledger says so."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dp_udfs import pandas_udfs
from dp_udfs.budget import Loss
from dp_udfs.errors import ClaimError
from jobs.lake import claims, commits, releases, settings
from jobs.lake.ledger import Ledger
from jobs.lake.question_settings import QuestionSettings
from jobs.lake.questions import Question, resolve
from jobs.lake.releases import Release
from jobs.lake.tables import Snapshot, TableState
from jobs.lake.toml_files import build

CONF = Path(__file__).parents[3] / "conf"


def a_question(k: int = 3, **more: object) -> Question:
    dataset = settings.load_dataset("movielens", settings.load_lake(CONF / "local.toml"))
    state = TableState(location="/lake/t", table_id="t1", version=3, digest="d1")
    snapshot = Snapshot(
        snapshot_id=7,
        as_of=date(1998, 4, 23),
        published_at=datetime(1998, 4, 23, tzinfo=UTC),
        tables={"engagements": state},
    )
    content = {"dataset": "movielens", "element": "film", "measure": "users", "k": k}
    content |= {"max_candidates": 200, "window": {"days": 30}} | more
    return resolve(build("a", QuestionSettings, content), dataset, snapshot)


def an_answer(*counts: int, cohort: str = "all", stopped: bool = True) -> pa.Table:
    """Rows as they come from the mechanism."""
    rows: list[dict[str, object]] = [
        {"row_kind": "element", "cohort": cohort, "rank": i, "element": f"e{i}", "noisy_count": n}
        for i, n in enumerate(counts, start=1)
    ]
    units = 2 * len(counts) + (2 if stopped else 1)
    rows.append(
        {"row_kind": "stop", "cohort": cohort, "stopped": stopped, "units": units, "calls": 1}
    )
    return pa.Table.from_pylist(rows, schema=pandas_udfs.ARROW_ANSWER_SCHEMA)


def a_release(question: Question, *counts: int) -> Release:
    return releases.from_answer(question, an_answer(*counts))


def elements(release: Release, k: int | None = None) -> list[tuple[str | None, bool | None]]:
    rows = release.first(k).to_pylist()
    return [(row["element"], row["stopped"]) for row in rows]


def test_what_is_stored_is_what_was_written(tmp_path: Path) -> None:
    question = a_question()
    written = releases.write(tmp_path / "r", question, a_release(question, 90, 80))
    found = releases.find(tmp_path / "r", question.label)
    assert found is not None
    assert found.rows.equals(written.rows)
    assert found.loss == Loss(6, 1)
    assert found.digest == written.digest
    assert releases.find(tmp_path / "r", "0" * 64) is None
    assert releases.find(tmp_path / "none", question.label) is None


def test_rows_show_their_noise() -> None:
    question = a_question()
    row = a_release(question, 90).rows.to_pylist()[0]
    assert (row["low"], row["high"]) == (78, 102)
    assert row["noise_scale"] == pytest.approx(5.642, abs=0.001)


def test_a_label_is_written_once(tmp_path: Path) -> None:
    question = a_question()
    for _ in range(2):
        releases.write(tmp_path / "r", question, a_release(question, 90, 80))
    assert DeltaTable(tmp_path / "r").version() == 1


def test_other_numbers_under_one_label_are_refused(tmp_path: Path) -> None:
    question = a_question()
    releases.write(tmp_path / "r", question, a_release(question, 90, 80))
    with pytest.raises(ClaimError, match="other numbers"):
        releases.write(tmp_path / "r", question, a_release(question, 91, 80))


def test_writers_of_many_labels_at_once_lose_nothing(tmp_path: Path) -> None:
    questions = [a_question(k) for k in range(1, 9)]
    commits.open_or_create(tmp_path / "r", releases.SCHEMA)
    threads = [
        Thread(target=releases.write, args=(tmp_path / "r", question, a_release(question, k)))
        for k, question in enumerate(questions, start=1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for question in questions:
        assert releases.find(tmp_path / "r", question.label) is not None


def test_a_changed_row_is_noticed(tmp_path: Path) -> None:
    question = a_question()
    stored = releases.write(tmp_path / "r", question, a_release(question, 90, 80))
    extra = stored.rows.slice(0, 1).append_column("label", pa.array([question.label]))
    write_deltalake(
        tmp_path / "r",
        pa.Table.from_pylist(extra.to_pylist(), schema=releases.SCHEMA),
        mode="append",
    )
    with pytest.raises(ClaimError, match="does not match its manifest"):
        releases.find(tmp_path / "r", question.label)


@pytest.mark.parametrize("cohorts", [(), ("all", "all"), ("other",)])
def test_an_answer_without_each_cohort_once_is_not_released(cohorts: Sequence[str]) -> None:
    parts = [an_answer(5, cohort=cohort) for cohort in cohorts]
    answer = pa.concat_tables(parts) if parts else an_answer(5).slice(0, 0)
    with pytest.raises(ClaimError, match="each cohort exactly once"):
        releases.from_answer(a_question(), answer)


def test_a_smaller_k_is_the_beginning_of_a_larger_one(tmp_path: Path) -> None:
    large = a_question(k=5)
    stored = releases.write(tmp_path / "r", large, a_release(large, 90, 80, 70))
    assert elements(stored, 2) == [("e1", None), ("e2", None), (None, False)]
    assert elements(stored, 3) == [("e1", None), ("e2", None), ("e3", None), (None, False)]
    assert elements(stored, 4)[-1] == (None, True)
    assert elements(stored) == elements(stored, 5)

    owned = {large.label}
    for k in (1, 4):
        found = releases.find_owned(tmp_path / "r", a_question(k), owned)
        assert found is not None
        assert found.label == large.label
    assert releases.find_owned(tmp_path / "r", a_question(6), owned) is None
    assert releases.find_owned(tmp_path / "r", a_question(4), set()) is None
    assert releases.find_owned(tmp_path / "r", a_question(4, with_counts=False), owned) is None


def test_receipts_list_only_what_was_published(tmp_path: Path) -> None:
    now = datetime(2024, 5, 5, tzinfo=UTC)
    ledger = Ledger(tmp_path / "ledger", clock=lambda: now)
    ledger.open_account("marketing", "t1", date(2024, 5, 1), 100, 10, period_end=date(2024, 6, 1))
    published, unpublished, replaced = a_question(3), a_question(4), a_question(5)
    for run, question in (("r1", published), ("r2", unpublished), ("r3", replaced)):
        ledger.allocate(run, analyst="marketing", dataset="t1", units=21, calls=1)
        releases.write(tmp_path / "r", question, a_release(question, 90, 80))
    stored = releases.find(tmp_path / "r", published.label)
    assert stored is not None
    ledger.settle("r3", units=6, calls=1, publish=(replaced.label, "0" * 64))  # other numbers
    ledger.settle("r1", units=6, calls=1, publish=(stored.label, stored.digest))
    (row,) = releases.receipts(tmp_path / "r", DeltaTable(tmp_path / "ledger")).to_pylist()
    assert (row["analyst"], row["run_id"], row["charged_units"]) == ("marketing", "r1", 6)
    assert (row["label"], row["cohorts"], row["stopped_cohorts"]) == (published.label, 1, 1)
    assert row["question"] == published.canonical
    assert row["ledger_head"] == ledger.head()


def test_a_claim_that_was_settled_without_its_answer_publishes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", clock=lambda: datetime(2024, 5, 5, tzinfo=UTC))
    ledger.open_account("marketing", "t1", date(2024, 5, 1), 100, 10, period_end=date(2024, 6, 1))
    claim = ledger.allocate("r1", analyst="marketing", dataset="t1", units=21, calls=1)
    ledger.settle("r1", units=0, calls=1)
    with pytest.raises(ClaimError, match="is settled"):
        claims.publish(ledger, claim, a_release(a_question(), 90, 80))
    assert ledger.released_labels() == []


def test_all_answers_are_read_at_once_and_a_changed_one_is_an_error(tmp_path: Path) -> None:
    first, second, third = a_question(3), a_question(4), a_question(5)
    assert releases.find_all(tmp_path / "r") == {}
    for question in (first, second, third):
        releases.write(tmp_path / "r", question, a_release(question, 90, 80))
    table = DeltaTable(tmp_path / "r")
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table.update(updates={"noisy_count": "91"}, predicate=f"label = '{second.label}' AND rank = 1")
    table.delete(f"label = '{third.label}' AND row_kind = 'manifest'")
    found = releases.find_all(tmp_path / "r")
    assert found[first.label] == releases.find(tmp_path / "r", first.label)
    assert isinstance(found[second.label], ClaimError)
    assert isinstance(found[third.label], ClaimError)
    assert len(found) == 3


def test_the_cost_of_a_grouped_answer_is_read_from_its_stops() -> None:
    question = replace(a_question(), cohorts=("a", "b"), cohorts_per_user=1)
    answer = pa.concat_tables([an_answer(5, 4, cohort="a"), an_answer(cohort="b")])
    assert releases.from_answer(question, answer).loss == Loss(6, 1)
    open_ended = replace(question, cohorts_per_user=None)
    assert releases.from_answer(open_ended, answer).loss == Loss(8, 2)
