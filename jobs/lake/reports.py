"""Results as text for people and as JSON for programs."""

import argparse
import dataclasses
import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

Rows: TypeAlias = "Sequence[Mapping[str, Any]] | pa.Table"


def show(arguments: argparse.Namespace, rows: Rows, facts: Mapping[str, Any] | None = None) -> None:
    """Print a result to stdout in the format that the options ask for.

    Parameters
    ----------
    arguments : Namespace
        Parsed options of `program.parser`; `format` is "text" or "json".
    rows : sequence of mappings, or pyarrow Table
        Printed as an aligned table, or as the list `rows` of one JSON object.
    facts : mapping of str to object, optional
        Printed below the table one a line, or as further keys of the JSON object; as text
        without those that are None.
    """
    facts = facts or {}
    if arguments.format == "json":
        text = json.dumps({**facts, "rows": _as_list(rows)}, default=_plain, ensure_ascii=False)
    else:
        said = {name: value for name, value in facts.items() if value is not None}
        lines = [f"{name.replace('_', ' ')}: {cell(value)}" for name, value in said.items()]
        text = "\n".join([*([table(rows), ""] if len(rows) else []), *lines]).rstrip()
    sys.stdout.write(f"{text}\n")


def table(rows: Rows) -> str:
    """Return rows as an aligned text table: numbers to the right, everything else to the left."""
    content = _as_list(rows)
    if not content:
        return "(nothing to show)"
    names = list(dict.fromkeys(name for row in content for name in row))
    columns = []
    for name in names:
        values = [row.get(name) for row in content]
        cells = [name.replace("_", " "), *(cell(value) for value in values)]
        width = max(_width(text) for text in cells)
        right = all(_is_number(value) for value in values if value is not None)
        columns.append([_pad(text, width, right=right) for text in cells])
    header, *body = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    rule = "  ".join("-" * _width(column[0]) for column in columns)
    return "\n".join([header, rule, *body])


def cell(value: object) -> str:
    """Return a value as text on one line, safe to show on a terminal."""
    value = _plain(value)
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {cell(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value)
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(value))


def _as_list(rows: Rows) -> list[Mapping[str, Any]]:
    return list(rows) if isinstance(rows, Sequence) else rows.to_pylist()


def _is_number(value: object) -> bool:
    return isinstance(_plain(value), int | float) and not isinstance(value, bool)


def _plain(value: object) -> object:
    """Return a value as one of JSON's own kinds where it is not yet."""
    if hasattr(value, "item"):  # a number of numpy's
        return value.item()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal | Fraction):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return (
        value if isinstance(value, str | int | float | list | tuple | dict | None) else str(value)
    )


def _width(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def _pad(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space
