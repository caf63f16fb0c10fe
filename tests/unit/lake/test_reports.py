"""Results for people (aligned, safe on a terminal) and for programs (JSON)."""

import argparse
import json
from datetime import date
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from jobs.lake import reports

TEXT = argparse.Namespace(format="text")
JSON = argparse.Namespace(format="json")


def test_numbers_go_right_and_text_left() -> None:
    rows = [{"film": "Fargo", "noisy_count": 1234}, {"film": "M", "noisy_count": 5}]
    assert reports.table(rows).splitlines() == [
        "film   noisy count",
        "-----  -----------",
        "Fargo         1234",
        "M                5",
    ]


def test_wide_and_combining_characters_keep_columns_straight() -> None:
    rows = [{"film": "七人の侍", "n": 1}, {"film": "Ame\u0301lie", "n": 2}]
    lines = reports.table(rows).splitlines()
    assert lines[1:] == ["--------  -", "七人の侍  1", "Ame\u0301lie    2"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "yes"),
        (0.0123456, "0.01235"),
        (7e-9, "7e-09"),
        (12345.678, "12,345.7"),
        (Fraction(3, 20), "3/20"),
        (date(2026, 11, 1), "2026-11-01"),
        (np.int64(5), "5"),
        (("a", "b"), "a, b"),
        ({"units": 3, "calls": 1}, "units 3, calls 1"),
        ("two\nlines\x1b[31m", r"two\nlines\x1b[31m"),
    ],
)
def test_cells_are_one_safe_line(value: object, text: str) -> None:
    assert reports.cell(value) == text


def test_tables_of_arrow_and_rows_with_gaps() -> None:
    assert "NULL" in reports.table([{"a": 1}, {"b": 2}])
    assert reports.table(pa.table({"a": [1]})).splitlines() == ["a", "-", "1"]


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"element": 'quote " and \n', "n": np.int64(1), "share": Decimal("0.15")}]
    reports.show(JSON, rows, {"as_of": date(2026, 11, 1), "charged": {"units": 3}})
    assert json.loads(capsys.readouterr().out) == {
        "as_of": "2026-11-01",
        "charged": {"units": 3},
        "rows": [{"element": 'quote " and \n', "n": 1, "share": "0.15"}],
    }


def test_text_shows_facts_below_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    reports.show(TEXT, [{"n": 1}], {"run_id": None, "units_left": 2990})
    assert capsys.readouterr().out == "n\n-\n1\n\nunits left: 2990\n"


def test_no_rows_is_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    reports.show(TEXT, [], {"result": "nothing"})
    assert capsys.readouterr().out == "result: nothing\n"


def test_a_table_without_rows_is_a_line() -> None:
    assert reports.table([]) == "(nothing to show)"
