"""Simulations on the command line: a table, a picture, and clear refusals."""

import json
import sys
from pathlib import Path

import pytest

from tests.programs import run_here

SVG = b"<?xml"
PNG = b"\x89PNG"


def test_a_named_workload_is_a_table_and_a_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "curves.svg"
    options = ["single-block", "--n", "1", "--n", "150", "--picture", str(picture)]
    ended = run_here(capsys, "simulate_scheduling", *options, "--format", "json")
    assert ended.code == 0
    rows = {(row["policy"], row["n"]): row for row in json.loads(ended.out)["rows"]}
    assert list(dict.fromkeys(name for name, _ in rows)) == [
        "first_come_first_served",
        "dpf_by_arrivals",
        "dpf_by_time",
        "round_robin_by_arrivals",
        "round_robin_by_time",
    ]
    first, best = rows["first_come_first_served", None], rows["dpf_by_arrivals", 150]
    assert first["granted"] == rows["dpf_by_arrivals", 1]["granted"] < best["granted"] == 100
    assert first["longest_delay"] == 0 < best["mean_delay"] < best["longest_delay"]
    drawn = picture.read_bytes()
    assert drawn.startswith(SVG)
    assert all(f"<!-- {family}".encode() in drawn for family, _ in rows)


def test_a_file_is_simulated_claim_by_claim(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "workload.jsonl"
    lines = [{"block": "b", "created_at": 0, "capacity": 1.0}]
    lines += [
        {"claim": f"c{i}", "submitted_at": i, "demand": {"b": size}, "timeout": 5}
        for i, size in enumerate((0.6, 0.5, 0.4))
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    picture = tmp_path / "curves.png"
    options = [str(path), "--policy", "dpf_by_arrivals", "--n", "2", "--picture", str(picture)]
    ended = run_here(capsys, "simulate_scheduling", *options, "--format", "json")
    (row,) = json.loads(ended.out)["rows"]
    assert (row["granted"], row["timed_out"], row["waiting"]) == (2, 1, 0)
    assert row["longest_delay"] == 0  # 0.5 comes first where 1 is open; then 0.4
    assert picture.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["none-such"], "none-such: no such file, and none of single-block"),
        (["macro", "--mice", "0.5"], "workload macro has no mice to change"),
        (["single-block", "--mice", "1.5"], "mice = 1.5 must be a share from 0 to 1"),
        (["single-block", "--duration", "nan"], "duration = nan must be positive"),
        (["single-block", "--seed", "-1"], "seed = -1 must be a whole number of at least 0"),
        (["single-block", "--n", "0"], "n = 0 must be a whole number of at least 1"),
        (["single-block", "--picture", "curves.pdf"], "must end in .svg or .png"),
        (["single-block", "--picture", "none/such.svg"], "there is no folder none"),
        (
            ["renyi-multi-block", "--duration", "1", "--policy", "round_robin_by_arrivals"],
            "basic accounting",
        ),
    ],
)
def test_what_cannot_be_simulated_is_named(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    ended = run_here(capsys, "simulate_scheduling", *options)
    assert ended.code == 2
    assert message in ended.error


def test_pictures_need_matplotlib_and_tables_do_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = ["single-block", "--policy", "dpf_by_arrivals", "--n", "1000000000"]
    assert run_here(capsys, "simulate_scheduling", *options).code == 0
    ended = run_here(
        capsys, "simulate_scheduling", *options, "--picture", str(tmp_path / "curves.svg")
    )
    assert ended.code == 2
    assert "pip install 'discreet[pictures]'" in ended.error


def test_a_file_says_all_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "workload.jsonl"
    path.touch()
    ended = run_here(capsys, "simulate_scheduling", str(path), "--timeout", "3")
    assert "leave out timeout" in ended.error
    ended = run_here(capsys, "simulate_scheduling", str(path))
    assert "has no line about a claim" in ended.error
