"""The programs that show, check and change budgets, run as people run them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.lake import accounts
from tests import lakes, programs
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake


@pytest.fixture
def small(tmp_path: Path) -> SmallLake:
    """A published lake."""
    made = lakes.make(tmp_path, TEST_SECRET)
    made.publish()
    return made


@pytest.fixture
def run(small: SmallLake, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a program for marketing on that lake."""

    def run(program: str, *options: str) -> programs.Ended:
        who = "--conf", small.lake.source, "--dataset", "clips", "--analyst", "marketing"
        return programs.run_here(capsys, program, *who, *options)

    return run


def test_a_budget_is_shown_checked_and_changed(small: SmallLake, run: Any) -> None:
    said = json.loads(run("get_budget", "--format", "json").out)
    assert (said["units_left"], said["calls_left"], said["rows"]) == (3000, 300, [])
    assert "-DP for the whole allowance" in said["guarantee"]
    assert "no epsilon is stated for what has been used so far" in said["so_far"]
    assert run("check_budget", "--units", "3001").code == 3
    changed = run("update_budget", "--units", "3001", "--reason", "one more")
    assert changed.code == 0
    assert "units left: 3001" in changed.out
    fits = run("check_budget", "--units", "3001", "--format", "json")
    assert (fits.code, json.loads(fits.out)["fits"]) == (0, True)
    assert small.entries("override")[0]["reason"] == "one more"


def test_a_balance_is_shown_without_loading_what_takes_long(small: SmallLake) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "jobs.get_budget", "--dataset", "clips"]
    command += ["--analyst", "marketing", "--conf", small.lake.source]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "jobs.lake.ledger" in loaded
    assert not {"pyspark", "py4j", "pandas", "scipy", "dp_accounting"} & loaded


def test_a_dry_run_changes_nothing(small: SmallLake, run: Any) -> None:
    said = run("update_budget", "--mode", "track", "--reason", "a trial", "--dry-run").out
    assert "guarantee: none" in said
    assert small.entries("override") == []


def test_claims_and_blocks_are_shown(small: SmallLake, run: Any) -> None:
    ledger, account = small.ledger(), accounts.account_of(small.lake, small.dataset)
    run("update_budget", "--calls", "7", "--reason", "fewer")
    ledger.open_block("2024", account, 1.0)
    ledger.allocate(
        "r1", analyst="marketing", dataset=account, units=21, calls=1, blocks={"2024": 0.75}
    )
    said = json.loads(run("get_budget", "--format", "json").out)
    assert (said["left_of_blocks"], said["alphas"]) == ({"2024": "0.25"}, ["inf"])
    assert [(row["run_id"], row["units"]) for row in said["rows"]] == [("r1", 21)]
    refused = run("check_budget", "--block", "2024=0.5")
    assert refused.code == 3
    assert "block 2024: asked for epsilon 0.5, left 0.25 of 1, used by r1" in refused.out
    assert run("check_budget", "--block", "2024=0.25").code == 0


def test_a_warning_is_a_line_on_stderr_and_a_field(small: SmallLake, run: Any) -> None:
    assert run("get_budget").err == ""
    run("update_budget", "--units", "26", "--reason", "few")
    account = accounts.account_of(small.lake, small.dataset)
    small.ledger().allocate("r1", analyst="marketing", dataset=account, units=21, calls=1)
    ended = run("get_budget", "--format", "json")
    assert ended.err == "warning: 21 of 26 units are used or reserved (warn_at = 0.8)\n"
    assert json.loads(ended.out)["warning"] in ended.err


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        ("update_budget", ["--reason", "why"], "nothing to change"),
        ("update_budget", ["--units", "5", "--reason", ""], "reason"),
        ("update_budget", ["--units", "-5", "--reason", "why"], "units = -5"),
        ("check_budget", ["--units", "-5"], "units = -5"),
        ("check_budget", ["--block", "2024=0.5"], "there is no ledger"),
        ("get_budget", ["--analyst", "stranger"], "'stranger' is not declared"),
    ],
)
def test_nonsense_gets_one_line(run: Any, program: str, options: list[str], words: str) -> None:
    ended = run(program, *options)
    assert ended.code == 2
    assert words in ended.error
