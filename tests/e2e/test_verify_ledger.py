"""The verifier over a real lake: quiet when all is well, one line and exit code 1 when not."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from jobs.lake import releases
from tests import lakes, programs
from tests.lakes import SmallLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def small(tmp_path: Path, secret: bytes) -> SmallLake:
    made = lakes.make(tmp_path / "lake", secret)
    made.append(lakes.many_rows())
    made.publish()
    return made


def test_every_receipt_names_a_head_that_the_verifier_finds(
    small: SmallLake, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(*options: str) -> programs.Ended:
        return programs.run_here(capsys, "verify_ledger", "--conf", small.lake.source, *options)

    shown = [
        small.release(spark, analyst, k=5, max_candidates=12).ledger_head
        for analyst in ("marketing", "research", "marketing")
    ]
    ledger = DeltaTable(small.lake.tables.ledger)
    receipts = releases.receipts(small.lake.tables.releases, ledger)["ledger_head"].to_pylist()
    heads = [option for head in (*shown, *receipts) for option in ("--head", head)]
    told = verify("--format", "json", *heads)
    assert (told.code, json.loads(told.out)["rows"]) == (0, [])
    assert json.loads(told.out)["claims"]["published"] == 2
    assert "result: nothing is wrong" in verify().out

    unknown = verify("--head", "f" * 64)
    assert unknown.code == 1
    assert f"head {'f' * 64} is in no chain" in unknown.out
    cut = verify("--head", shown[0][:16])
    assert cut.code == 2, "half a head says nothing about the ledger"
    assert f"--head {shown[0][:16]}: is not whole" in cut.err

    answers = DeltaTable(small.lake.tables.releases)
    answers.alter.set_table_properties({"delta.appendOnly": "false"})
    answers.update(updates={"noisy_count": "noisy_count + 1"}, predicate="rank = 1")
    changed = verify("--format", "json")
    assert changed.code == 1
    rows = json.loads(changed.out)["rows"]
    assert [row["finding"].partition(":")[0] for row in rows] == [
        "release was published with other numbers"
    ] * 2
    assert {row["entry_id"] for row in rows} == {
        entry["entry_id"] for entry in small.entries("release")
    }


def test_a_ledger_that_is_not_there_is_bad_input(
    small: SmallLake, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = programs.run_here(
        capsys, "verify_ledger", "--conf", small.lake.source, "--ledger", "/nowhere/ledger"
    )
    assert ended.code == 2
    assert "there is no ledger at" in ended.error
