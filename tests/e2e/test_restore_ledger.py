"""Backups, restored ledgers, torn commits: nothing that a receipt knows is forgotten."""

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from dp_udfs.errors import LedgerConflictError, SettingsError
from jobs import doctor, release_counts
from jobs.lake import backups, evidence, releases, torn, witnesses
from jobs.lake.accounts import account_of
from jobs.lake.entries import SCHEMA_VERSION
from jobs.lake.entry_log import EntryLog
from jobs.lake.ledger import Ledger
from jobs.lake.ledger_reader import LedgerReader
from tests import drills, lakes, release_drill
from tests.drills import Drill, check_books
from tests.lakes import NOON, SmallLake
from tests.programs import Ended, run_here

WEEK: dict[str, Any] = {"question": {"window": {"days": 7}}}


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    with drills.drill_in(tmp_path_factory.mktemp("told")) as drill:
        yield drill


@pytest.fixture(scope="module")
def asked(drill: Drill, tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    """A lake with one answer, a claim that is open, and a backup of both."""
    folder = tmp_path_factory.mktemp("asked")
    small = drills.drill_lake(folder / "lake", bytes(range(32)))
    drill.run(small, run_id="first")
    drill.killed(small, at="after Ledger.allocate", run_id="open", **WEEK)
    backups.take(small.lake, folder / "lake" / "backup", NOON)
    return small


@pytest.fixture
def small(asked: SmallLake, tmp_path: Path) -> SmallLake:
    return drills.copy(asked, tmp_path / "lake")


Run = Callable[..., Ended]


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, small: SmallLake
) -> Run:
    """Run a program at the time of the small lake."""
    monkeypatch.setattr("jobs.lake.ledger.utc_now", lambda: NOON)
    monkeypatch.setattr(LedgerReader.__init__, "__defaults__", ("local", lambda: NOON))

    def here(program: str, *options: object) -> Ended:
        conf = ("--conf", small.lake.source, "--format", "json")
        return run_here(capsys, program, *conf, *map(str, options))

    return here


def lose(small: SmallLake, *tables: str) -> None:
    for name in tables or ("ledger", "releases", "snapshots"):
        shutil.rmtree(getattr(small.lake.tables, name))


def left(small: SmallLake, analyst: str) -> int:
    account = account_of(small.lake, small.dataset)
    budget = small.ledger(NOON).find_budget(analyst, account)
    return 3000 if budget is None else budget.units_left


def wrong(small: SmallLake) -> list[evidence.Finding]:
    answers = releases.find_all(small.lake.tables.releases)
    log = EntryLog(small.lake.tables.ledger)
    return evidence.audit(log, region="local", answers=answers).findings


def complete(small: SmallLake, *receipts: dict[str, Any], at: datetime = NOON) -> list[Any]:
    return witnesses.complete(small.lake, small.ledger(at), "there is no other", receipts, at)


# --- backups --------------------------------------------------------------------------------------


def test_what_was_lost_altogether_comes_back(drill: Drill, small: SmallLake, run: Run) -> None:
    undisturbed = drill.run(
        drills.copy(small, small.root.with_name("other")), run_id="open", **WEEK
    )
    heads = json.loads(run("verify_ledger").out)["heads"]
    first = drill.run(small).rows
    said = json.loads(run("back_up_ledger", small.root / "second").out)
    assert said["heads"] == heads
    lose(small)
    assert json.loads(run("restore_ledger", "--from", small.root / "second").out)["grants"] is False
    refused = drill.run(small, run_id="new", question={"window": {"days": 3}})
    assert "may have forgotten charges" in refused.answer["message"]
    asked = run("check_budget", "--dataset", "clips", "--analyst", "marketing", "--units", "1")
    assert (asked.code, "may have forgotten charges" in asked.error) == (1, True)
    assert drill.run(small).rows == first  # what was paid for is still served
    alone = run("restore_ledger", "--alone", "there is no other region")
    assert json.loads(alone.out) == {"grants": True, "rows": []}
    assert json.loads(run("verify_ledger", "--head", heads["local"]).out)["rows"] == []
    assert drill.run(small, run_id="open", **WEEK).answer == undisturbed.answer
    assert drill.run(small, run_id="new", question={"window": {"days": 3}}).rows
    assert check_books(small)["restore"] == 1


def test_a_backup_is_refused_unless_it_is_whole_and_as_it_was(small: SmallLake) -> None:
    folder = small.root / "backup"
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    with pytest.raises(SettingsError, match="is not empty"):
        backups.take(small.lake, folder, NOON)
    secret = small.lake.read_secret()
    for path in folder.iterdir():
        assert secret not in path.read_bytes()
        assert secret.hex().encode() not in path.read_bytes()

    said = json.loads((folder / "backup.json").read_text())
    newer = said | {"schema_version": SCHEMA_VERSION + 1}
    other = said | {"heads": {"local": "0" * 64}}
    for changed, why in ((newer, "newer version"), (other, "do not end at the heads")):
        (folder / "backup.json").write_text(json.dumps(changed))
        with pytest.raises(SettingsError, match=why):
            backups.read(folder)
    (folder / "backup.json").write_text(json.dumps(said))
    part = folder / "releases.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(SettingsError, match=r"releases\.parquet is missing or was changed"):
        backups.read(folder)
    (folder / "backup.json").unlink()
    with pytest.raises(SettingsError, match="no finished backup"):
        backups.read(folder)


def test_an_answer_that_came_after_the_ledger_was_read_is_left_to_the_next_backup(
    drill: Drill, small: SmallLake
) -> None:
    (known,) = {answer["label"] for answer in drills.stored(small)}
    other = drills.copy(small, small.root.with_name("other"))
    drill.run(other, question={"window": {"days": 3}})
    lose(small, "releases")
    Path(other.lake.tables.releases).rename(small.lake.tables.releases)
    assert len(drills.stored(small)) == 2
    backup = backups.take(small.lake, small.root / "another", NOON)
    assert set(backup.tables["releases"]["label"].to_pylist()) == {known}


def test_a_ledger_that_does_not_hold_is_not_backed_up(small: SmallLake) -> None:
    DeltaTable(small.lake.tables.ledger).alter.set_table_properties({"delta.appendOnly": "false"})
    with pytest.raises(LedgerConflictError, match="does not hold"):
        backups.take(small.lake, small.root / "another", NOON)
    assert not (small.root / "another").exists()


def test_a_ledger_that_is_there_is_not_restored_over(small: SmallLake, run: Run) -> None:
    assert "there is a ledger" in run("restore_ledger", "--from", small.root / "backup").error
    assert "was not restored" in run("restore_ledger", "--alone", "because").error
    assert "nothing to do" in run("restore_ledger").error


def test_a_restore_that_was_stopped_goes_on(small: SmallLake) -> None:
    backup, ledger = backups.read(small.root / "backup"), small.ledger(NOON)
    whole = ledger.head()
    lose(small, "ledger")
    again = small.ledger(NOON)
    assert backups.restore(small.lake, again, [backup.entries[:1]]) == 1
    assert backups.restore(small.lake, again, [backup.entries, backup.entries]) == 4
    assert again.head() == whole
    assert again.is_restored()


# --- what the backup did not know -----------------------------------------------------------------


def test_a_charge_that_only_a_stored_answer_knows_is_charged_to_all_who_may_have_it(
    drill: Drill, small: SmallLake, run: Run
) -> None:
    later = {"window": {"days": 3}}
    rows = drill.run(small, question=later).rows
    before = left(small, "marketing")
    lose(small, "ledger")
    run("restore_ledger", "--from", small.root / "backup")
    assert left(small, "marketing") == before + 6
    charged = complete(small)
    assert {(each.analyst, str(each.charged)) for each in charged} == {
        ("marketing", "6 units and 1 call"),
        ("research", "6 units and 1 call"),
    }
    assert left(small, "marketing") == before
    assert left(small, "research") == 3000 - 6
    assert wrong(small) == []
    assert complete(small) == []
    for analyst in ("marketing", "research"):
        again = drill.run(small, analyst, question=later)
        assert (again.rows, again.answer["charged"]) == (rows, [0, 0])


def test_a_completion_that_was_stopped_goes_on(
    drill: Drill, small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill.run(small, question={"window": {"days": 3}})
    lose(small, "ledger")
    backups.restore(small.lake, small.ledger(NOON), [backups.read(small.root / "backup").entries])
    for step in ("settle", "complete"):  # of the first analyst; of all

        def dies(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Ledger, step, dies)
            with pytest.raises(KeyboardInterrupt):
                complete(small)
        assert small.ledger(NOON).is_restored()
    assert [each.analyst for each in complete(small)] == ["marketing", "research"]
    assert left(small, "research") == 3000 - 6
    assert left(small, "marketing") == 3000 - 6 - 7 - 6
    assert wrong(small) == complete(small) == []


def test_where_less_is_left_than_was_lost_all_of_it_is_taken(
    drill: Drill, tmp_path: Path, secret: bytes
) -> None:
    small = drills.drill_lake(tmp_path / "lake", secret, units="20")
    drill.run(small, "research", run_id="first")
    backups.take(small.lake, tmp_path / "backup", NOON)
    for days in (3, 4):
        drill.run(small, "marketing", question={"window": {"days": days}})
    lose(small, "ledger")
    backups.restore(small.lake, small.ledger(NOON), [backups.read(tmp_path / "backup").entries])
    assert [each.note for each in complete(small)] == ["charged"] * 4
    assert (left(small, "research"), left(small, "marketing")) == (2, 8)
    assert wrong(small) == []


def test_a_receipt_that_was_kept_is_charged_to_its_analyst(drill: Drill, small: SmallLake) -> None:
    drill.run(small, "research")  # the answer that marketing has: no new one is stored
    receipt = {
        "analyst": "research",
        "dataset": "clips",
        "label": small.ledger(NOON).released_labels()[0].label,
        "charged_units": 6,
        "charged_calls": 1,
        "ledger_head": small.ledger(NOON).head(),
        "resets_at": "2024-04-01",
    }
    lose(small, "ledger")
    backups.restore(small.lake, small.ledger(NOON), [backups.read(small.root / "backup").entries])
    known = receipt | {"ledger_head": small.ledger(NOON).head()}
    (charged,) = complete(small, receipt, known, receipt)[:1]
    assert charged.analyst == "research"
    assert left(small, "research") == 3000 - 6
    with pytest.raises(SettingsError, match="lacks 'ledger_head'"):
        complete(small, {"analyst": "research"})


def test_what_a_period_that_is_over_has_lost_is_written_down(
    drill: Drill, small: SmallLake
) -> None:
    drill.run(small, question={"window": {"days": 3}})
    lose(small, "ledger")
    backups.restore(small.lake, small.ledger(NOON), [backups.read(small.root / "backup").entries])
    (lost,) = complete(small, at=datetime(2099, 1, 1, tzinfo=UTC))
    assert "written down" in lost.note
    (entry,) = small.entries("restore")
    assert json.loads(entry["details"])["lost"][0]["units"] == 6
    assert wrong(small) == []


def test_a_ledger_that_is_gone_is_not_made_anew_beside_its_answers(
    drill: Drill, small: SmallLake, run: Run
) -> None:
    lose(small, "ledger")
    refused = drill.run(small, question={"window": {"days": 3}})
    assert "there is no ledger" in refused.answer["message"]
    assert "--from BACKUP" in refused.answer["message"]
    for balance in ("get_budget", "check_budget"):  # nobody is shown a full allowance
        ended = run(balance, "--dataset", "clips", "--analyst", "marketing")
        assert (ended.code, ended.out) == (2, "")
    conf = Path(small.lake.source)
    lost = [finding for finding in doctor.check_lake(conf) if finding.check == "ledger"]
    assert [finding.ok for finding in lost] == [False]
    said = json.loads(run("restore_ledger", "--alone", "there was no backup").out)
    assert [row["analyst"] for row in said["rows"]] == ["marketing", "research"]
    assert left(small, "marketing") == left(small, "research") == 3000 - 6
    assert wrong(small) == []
    assert drill.run(small, question={"window": {"days": 3}}).rows


BLOCKS = """
[blocks]
mode = "enforce"
days = 7
epsilon = {epsilon}
delta = 1e-7
alphas = ["inf"]
"""


@pytest.mark.parametrize(("epsilon", "left_over"), [("30", "19.5"), ("5", "0")])
def test_a_lost_answer_is_taken_from_its_blocks_once(
    tmp_path: Path, secret: bytes, monkeypatch: pytest.MonkeyPatch, epsilon: str, left_over: str
) -> None:
    monkeypatch.setattr(release_counts, "compute", release_drill.compute)
    text = lakes.changed(lakes.CLIPS, gaussian="false")
    small = lakes.make(tmp_path, secret, text + BLOCKS.format(epsilon="30"))
    small.publish()
    small.ledger(NOON).open_account(
        "marketing", account_of(small.lake, small.dataset), date(2024, 3, 1), 3000, 300
    )
    backups.take(small.lake, tmp_path / "backup", NOON)
    small.release(None, k=3, max_candidates=4)
    lose(small, "ledger")
    lakes.make(tmp_path, secret, text + BLOCKS.format(epsilon=epsilon))
    backups.restore(small.lake, small.ledger(NOON), [backups.read(tmp_path / "backup").entries])
    assert [each.analyst for each in complete(small)] == ["marketing", "research"]
    blocks = small.ledger(NOON).blocks()
    assert len(blocks) == 6
    assert {str(block.filter.left) for block in blocks} == {left_over}
    assert wrong(small) == []


# --- other regions --------------------------------------------------------------------------------


def test_a_restored_region_cannot_spend_before_it_has_replicated(
    small: SmallLake, drill: Drill, run: Run
) -> None:
    conf = Path(small.lake.source)
    east = small.root / "lake" / "east"
    text = f'[regions]\nmode = "eventual"\nledgers = {{ east = "{east}" }}\n'
    conf.write_text(conf.read_text() + text)
    Ledger(east, "east", lambda: NOON).restore([])  # an empty one
    Ledger(east, "east").complete("made anew", {})
    drill.run(small, question={"window": {"days": 3}})
    head = small.ledger(NOON).head()
    assert run("replicate_ledger").code == 0
    lose(small, "ledger")
    run("restore_ledger", "--from", small.root / "backup")
    assert "names east" in run("restore_ledger", "--alone", "none is left").error
    ending = drill.run(small, run_id="new", question={"window": {"days": 4}})
    assert "replicate_ledger" in ending.answer["message"]
    said = json.loads(run("replicate_ledger").out)
    assert said["complete"] == "replicated with east"
    assert said["charged"] == []
    assert json.loads(run("verify_ledger", "--head", head).out)["rows"] == []
    assert drill.run(small, run_id="new", question={"window": {"days": 4}}).rows
    assert run("replicate_ledger").code == 0  # no fork


# --- torn commits ---------------------------------------------------------------------------------

TEAR: dict[str, Callable[[Path, Path], object]] = {
    "an empty log file": lambda log, _: log.write_text(""),
    "half a log file": lambda log, _: log.write_text(log.read_text()[:700]),
    "no data file": lambda _, data: data.unlink(),
    "half a data file": lambda _, data: data.write_bytes(data.read_bytes()[:500]),
    "zeros": lambda _, data: data.write_bytes(bytes(data.stat().st_size)),
}


@pytest.mark.parametrize("how", TEAR)
def test_a_torn_last_commit_is_said_and_taken_off(small: SmallLake, run: Run, how: str) -> None:
    before = small.ledger(NOON).head()
    account = account_of(small.lake, small.dataset)
    small.ledger(NOON).allocate("last", analyst="marketing", dataset=account, units=9, calls=1)
    log = max(Path(small.lake.tables.ledger, "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (added,) = [action["add"]["path"] for action in actions if "add" in action]
    TEAR[how](log, Path(small.lake.tables.ledger, added))
    for attempt in ("find", "open_claims"):
        with pytest.raises(SettingsError, match=r"is torn, .*jobs\.restore_ledger --torn"):
            getattr(small.ledger(NOON), attempt)(*(["last"] if attempt == "find" else []))
    with pytest.raises(SettingsError, match="is torn"):
        small.ledger(NOON).allocate("next", analyst="marketing", dataset=account, units=9, calls=1)

    said = json.loads(run("restore_ledger", "--torn").out)
    kept = "log file" in how  # the data file still has what was allocated
    assert said["recovered"] == str(int(kept))
    assert said["grants"] is False
    assert (small.ledger(NOON).find("last") is not None) == kept
    with pytest.raises(LedgerConflictError, match="may have forgotten"):
        small.ledger(NOON).allocate("next", analyst="marketing", dataset=account, units=9, calls=1)
    assert json.loads(run("restore_ledger", "--alone", "a power cut").out)["grants"] is True
    assert json.loads(run("verify_ledger", "--head", before).out)["rows"] == []
    small.ledger(NOON).allocate("next", analyst="marketing", dataset=account, units=9, calls=1)
    check_books(small)


@pytest.mark.parametrize("how", ["an empty log file", "no data file"])
def test_an_answer_that_was_torn_comes_again_as_it_was(
    drill: Drill, small: SmallLake, run: Run, how: str
) -> None:
    asked: dict[str, Any] = {"question": {"window": {"days": 3}}, "run_id": "torn"}
    undisturbed = drill.run(drills.copy(small, small.root.with_name("other")), **asked)
    drill.killed(small, at="after releases.write", **asked)
    log = max(Path(small.lake.tables.releases, "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (added,) = [action["add"]["path"] for action in actions if "add" in action]
    TEAR[how](log, Path(small.lake.tables.releases, added))
    again = drill.run(small, **asked)
    assert "python -m jobs.restore_ledger --torn" in again.answer["message"]
    said = json.loads(run("restore_ledger", "--torn").out)
    assert list(said) == ["torn_releases", "grants", "rows"]
    assert said["grants"] is True
    assert drill.run(small, **asked).answer == undisturbed.answer
    check_books(small)


def test_a_commit_that_was_taken_off_is_remembered_by_whoever_comes_next(small: SmallLake) -> None:
    log = max(Path(small.lake.tables.ledger, "_delta_log").glob("*.json"))
    log.write_text("")
    found = torn.find(small.lake.tables.ledger)
    assert found is not None
    torn.take_off(found)  # and here everything died
    assert torn.find(small.lake.tables.ledger) is None
    assert small.ledger(NOON).is_restored()
    with pytest.raises(LedgerConflictError, match="may have forgotten"):
        small.ledger(NOON).allocate(
            "next",
            analyst="marketing",
            dataset=account_of(small.lake, small.dataset),
            units=9,
            calls=1,
        )
    assert small.ledger(NOON).recover() == 1
    complete(small)
    assert wrong(small) == []


def test_what_is_not_the_last_commit_is_not_taken_off(small: SmallLake) -> None:
    assert torn.find(small.lake.tables.ledger) is None
    first = min(Path(small.lake.tables.ledger, "_delta_log").glob("*.json"))
    first.write_text("")
    assert torn.find(small.lake.tables.ledger) is None
    assert torn.find("s3://nowhere/ledger") is None
