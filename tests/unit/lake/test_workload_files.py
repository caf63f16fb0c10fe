"""Workload files are read exactly, and what is wrong in them is named with its line."""

from pathlib import Path

import pytest

from dp_udfs.errors import SettingsError
from dp_udfs.scheduling import BlockSpec, ClaimSpec
from jobs.lake.workload_files import read_workload

BLOCK = '{"block": "b1", "created_at": 0, "capacity": 1.0}'


def written(folder: Path, *lines: str) -> Path:
    path = folder / "workload.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def claim(keys: str = "", demand: str = '{"b1": 0.1}', name: str = "c1") -> str:
    return f'{{"claim": "{name}", "submitted_at": 2, "demand": {demand}{keys}}}'


def test_blocks_and_claims_are_read_as_they_stand(tmp_path: Path) -> None:
    workload = read_workload(
        written(
            tmp_path,
            '{"block": "b1", "created_at": 0, "capacity": [1, -2.5]}',
            "",
            claim(', "timeout": 3.5, "weight": 2, "any_of": 1', '{"b1": [0.1, 0]}'),
            '{"claim": "c2", "submitted_at": 8, "demand": {"b1": [0.1, 0.2]}}',
        )
    )
    assert workload.blocks == [BlockSpec("b1", 0, (1, -2.5))]
    assert workload.claims == [
        ClaimSpec("c1", 2, {"b1": (0.1, 0)}, 3.5, 2, 1),
        ClaimSpec("c2", 8, {"b1": (0.1, 0.2)}),
    ]
    assert workload.mean_gap == 6
    assert workload.ns == (1, 2)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["block b1"], "line 1: Expecting value"),
        (["[1]"], "line 1: must be an object"),
        ([BLOCK, claim(', "wieght": 2')], "line 2: wieght: unknown key"),
        ([BLOCK, claim(', "claim": "c9"')], "line 2: a key stands there twice"),
        ([BLOCK, claim(demand='{"b1": NaN}')], "line 2: NaN is not a finite number"),
        ([BLOCK, claim(demand='{"b1": 1e999}')], "line 2: demand.b1: must be a number from"),
        ([BLOCK, claim(demand='{"b1": -0.1}')], "line 2: demand.b1: must be positive"),
        ([BLOCK, claim(demand='{"b1": [0.1, -1]}')], "line 2: demand.b1: must not be negative"),
        ([BLOCK, claim(demand='{"b1": 0}')], "line 2: demand.b1: must be positive"),
        ([BLOCK, claim(demand='{"b1": true}')], "line 2: demand.b1: must be a number from"),
        ([BLOCK, claim(demand='{"b1": "0.1"}')], "line 2: demand.b1: must be a number from"),
        ([BLOCK, claim(demand='{"b1": []}')], "line 2: demand.b1: must be positive"),
        ([BLOCK, claim(demand="{}")], "line 2: demand: "),
        ([BLOCK, claim(demand='{"b1": [0.1, 0.1]}')], "2 numbers on block b1, where the first"),
        ([BLOCK, claim(demand='{"b2": 0.1}')], "line 2: no earlier line has the block b2"),
        ([BLOCK, claim(', "timeout": -1')], "line 2: timeout: "),
        ([BLOCK, claim(', "weight": 0')], "line 2: weight: "),
        ([BLOCK, claim(', "any_of": 2')], "'any_of' is 2 of 1 blocks: too few"),
        ([BLOCK, claim(), "", claim()], "line 4: claim c1 stands in an earlier line"),
        ([BLOCK, BLOCK], "line 2: block b1 stands in an earlier line"),
        (['{"block": "b1", "created_at": 0, "capacity": 0}'], "line 1: capacity: must be positive"),
        (['{"block": "b1", "capacity": 1}'], "line 1: created_at: missing"),
        ([BLOCK], "has no line about a claim"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    with pytest.raises(SettingsError) as error:
        read_workload(written(tmp_path, *lines))
    assert message in str(error.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "workload.jsonl"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="cannot be read: not a text in UTF-8"):
        read_workload(path)
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        read_workload(tmp_path)
