"""The programs of a queue: claim, wait, consume, give back; rounds; exit code 3 for "not yet"."""

import json
from pathlib import Path
from typing import Any

import pytest

from dp_udfs.errors import SettingsError
from jobs.lake.block_settings import BlockSettings
from jobs.lake.ledger import Ledger
from jobs.lake.toml_files import build
from tests import lakes
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake
from tests.programs import Ended, run_here

BLOCKS = """
[blocks]
mode = "enforce"
days = 7
epsilon = 1
delta = 1e-7
alphas = ["inf"]

[blocks.queue]
"""
BY_ARRIVALS = 'policy = "dpf_by_arrivals"\nn = 2\n'
BY_TIME = 'policy = "dpf_by_time"\nlifetime = 4\ntick = 1\n'
ONE_WEEK = ("--from", "2024-02-01", "--to", "2024-02-08")


@pytest.fixture
def clips(tmp_path: Path, request: pytest.FixtureRequest) -> SmallLake:
    content = lakes.CLIPS.replace("gaussian = true", "gaussian = false")
    made = lakes.make(tmp_path, TEST_SECRET, content + BLOCKS + request.param)
    made.publish()
    return made


class Shell:
    def __init__(self, capsys: pytest.CaptureFixture[str], clips: SmallLake) -> None:
        self.capsys, self.conf = capsys, str(clips.lake.source)

    def claim(self, action: str, run_id: str, *rest: str) -> Ended:
        named = "--dataset", "clips", "--run-id", run_id
        given = ("--conf", self.conf, "--format", "json")
        return run_here(self.capsys, "claim_budget", action, *given, *named, *rest)

    def submit(
        self, run_id: str, epsilon: str, *rest: str, days: tuple[str, ...] = ONE_WEEK
    ) -> Any:
        asked = "--analyst", "research", "--epsilon", epsilon
        return self.claim("submit", run_id, *asked, *days, *rest)

    def round(self) -> dict[str, Any]:
        given = "--conf", self.conf, "--format", "json"
        said: dict[str, Any] = json.loads(run_here(self.capsys, "schedule_claims", *given).out)
        return said


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], clips: SmallLake) -> Shell:
    return Shell(capsys, clips)


@pytest.mark.parametrize("clips", [BY_ARRIVALS], indirect=True)
def test_a_claim_goes_from_not_yet_to_granted_consumed_and_given_back(shell: Shell) -> None:
    waits = shell.submit("large", "0.8")
    assert waits.code == 3
    said = json.loads(waits.out)
    assert said["state"] == "waiting"
    assert "has unlocked 0.5, needed 0.8; ask again under the same run id" in said["why"]
    fair = shell.submit("fair", "0.5")
    assert (fair.code, json.loads(fair.out)["state"]) == (0, "allocated")

    part = shell.claim("consume", "fair", "--request-id", "epoch 1", "--epsilon", "0.1")
    again = shell.claim("consume", "fair", "--request-id", "epoch 1", "--epsilon", "0.1")
    assert part.out == again.out
    assert json.loads(part.out)["rows"][0]["consumed"] == "0.1"
    assert shell.claim("give-back", "fair").error == (
        "error: --reason is missing: it stands there for good"
    )
    back = shell.claim("give-back", "fair", "--reason", "converged")
    assert json.loads(back.out)["state"] == "given_back"

    granted = shell.submit("large", "0.8")  # the same command: it has kept its place
    assert (granted.code, json.loads(granted.out)["state"]) == (0, "allocated")
    spent = json.loads(shell.claim("consume", "large", "--request-id", "all").out)
    assert spent["state"] == "settled"


@pytest.mark.parametrize("clips", [BY_ARRIVALS], indirect=True)
def test_a_claim_on_another_dataset_is_left_alone(shell: Shell, clips: SmallLake) -> None:
    ledger = clips.ledger()
    ledger.open_block("d1", "another", 1.0)
    ledger.allocate("theirs", blocks={"d1": 0.5}, details={"dataset_name": "films"})
    refused = shell.claim("give-back", "theirs", "--reason", "a slip")
    assert (refused.code, len(ledger.open_claims())) == (2, 1)
    assert "is a claim on dataset films, not on clips" in refused.error


@pytest.mark.parametrize("clips", [BY_TIME], indirect=True)
def test_a_command_waits_as_long_as_it_is_told(shell: Shell, clips: SmallLake) -> None:
    assert shell.submit("r1", "0.25", "--dry-run").code == 2  # no block is open, and none is opened
    assert not Ledger(clips.lake.tables.ledger).exists()
    waited = shell.submit("r1", "0.25", "--wait", "10")
    assert (waited.code, json.loads(waited.out)["state"]) == (0, "allocated")
    assert shell.submit("r2", "1", "--dry-run").code == 3
    assert shell.submit("r2", "1", "--timeout", "0").code == 3
    (decided,) = shell.round()["rows"]
    assert (decided["run_id"], decided["state"]) == ("r2", "timed_out")
    assert decided["reason"] == "was not served within 0 s"
    late = shell.submit("r2", "1", "--timeout", "0")
    assert late.code == 3
    assert "was timed out" in json.loads(late.out)["why"]
    assert shell.submit("r3", "1").code == 3
    assert (
        json.loads(shell.claim("cancel", "r3", "--reason", "no more").out)["state"] == "cancelled"
    )


@pytest.mark.parametrize("clips", [BY_ARRIVALS], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--analyst is missing"),
        (("--analyst", "sales", *ONE_WEEK, "--epsilon", "1"), "'sales' is not declared"),
        (("--analyst", "research", "--epsilon", "1"), "give either --block, or --from and --to"),
        (("--analyst", "research", *ONE_WEEK), "give one of --epsilon, --rho and --loss"),
        (("--analyst", "research", *ONE_WEEK, "--rho", "1"), "knows no zCDP"),
        (("--analyst", "research", *ONE_WEEK, "--loss", "1,2"), "one value"),
        (("--analyst", "research", "--block", "d9", "--epsilon", "1"), "there is no ledger at"),
        (
            (
                "--analyst",
                "research",
                "--epsilon",
                "1",
                "--from",
                "2024-02-01",
                "--to",
                "2100-01-01",
            ),
            "these days are not over yet",
        ),
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(
    shell: Shell, arguments: tuple[str, ...], message: str
) -> None:
    ended = shell.claim("submit", "r1", *arguments)
    assert ended.code == 2
    assert message in ended.error


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        ({"policy": "dpf_by_arrivals"}, "n: missing"),
        ({"policy": "dpf_by_time", "lifetime": 10}, "tick: missing"),
        ({"policy": "dpf_by_arrivals", "n": 0}, "queue.n"),
        (
            {"policy": "dpf_by_arrivals", "n": 3, "tick": 1},
            "tick: policy 'dpf_by_arrivals' has none",
        ),
        ({"policy": "dpf_by_arrivals", "n": 3, "slack": "0.4"}, "even number of steps"),
        ({"policy": "round_robin_by_arrivals", "n": 3}, "queue.policy"),
        ({"policy": "first_come_first_served", "extra": 1}, "extra"),
    ],
)
def test_a_queue_says_all_that_it_needs_and_nothing_else(
    queue: dict[str, Any], message: str
) -> None:
    blocks = {"mode": "enforce", "days": 7, "epsilon": 1, "delta": 1e-7, "alphas": ["inf"]}
    with pytest.raises(SettingsError, match=message):
        build("a.toml", BlockSettings, {**blocks, "queue": queue})
