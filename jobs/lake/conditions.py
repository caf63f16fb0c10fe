"""Filters in normal form: filters that mean the same become the same clauses.

Only declared columns and values; no SQL text. Two filters that are merged here always pass the same
rows; two that mean the same and are not merged only cost their analyst a second charge.
"""

from collections.abc import Iterable

from dp_udfs.errors import SettingsError
from jobs.lake.question_settings import Condition, Filters
from jobs.lake.settings import DatasetSettings
from jobs.lake.toml_files import Value

# One clause holds if any of its conditions does; a row passes if all clauses do. A condition is
# (column, sorted values) or (column, lowest, highest); no clause at all is "every row".
Test = tuple[str, tuple[Value, ...]] | tuple[str, int | None, int | None]
Clauses = tuple[tuple[Test, ...], ...]

MOST_SHOWN = 10  # values of one condition


def normal_form(filters: Filters, dataset: DatasetSettings) -> Clauses:
    """Sort filters into clauses, with all conditions on one column merged into one."""
    merged: dict[str, Test] = {}
    clauses: set[tuple[Test, ...]] = set()
    for condition in filters.all:
        test = _test(condition, dataset)
        merged[test[0]] = _both(merged[test[0]], test) if test[0] in merged else test
    for group in filters.any:
        if not group:
            raise SettingsError("filters.any: a group is empty")
        tests = tuple(sorted({_test(condition, dataset) for condition in group}, key=repr))
        if len(tests) == 1:
            test = tests[0]
            merged[test[0]] = _both(merged[test[0]], test) if test[0] in merged else test
        else:
            clauses.add(tests)
    clauses |= {(test,) for test in merged.values()}
    return tuple(sorted(clauses, key=repr))


def in_words(clauses: Clauses) -> str:
    """Say for people what a row has to be; empty for every row."""
    return " and ".join(
        f"({' or '.join(map(_test_in_words, clause))})" if clause[1:] else _test_in_words(clause[0])
        for clause in clauses
    )


def _test_in_words(test: Test) -> str:
    if len(test) == 3:
        name, low, high = test
        bounds = [(">=", low), ("<=", high)]
        return " and ".join(f"{name} {sign} {bound}" for sign, bound in bounds if bound is not None)
    name, values = test
    if len(values) == 1:
        return f"{name} = {values[0]}"
    more = ["..."] if len(values) > MOST_SHOWN else []
    return f"{name} in [{', '.join([*map(str, values[:MOST_SHOWN]), *more])}]"


def _test(condition: Condition, dataset: DatasetSettings) -> Test:
    """One condition on a declared column; a range over a public domain becomes a list of values."""
    name = condition.column
    column = dataset.column(name, "filter", "filters")
    wanted = str if column.type == "string" else int
    if condition.any_of is not None:
        values = condition.any_of
        if any(type(value) is not wanted for value in values):
            raise SettingsError(f"filters: column {name!r} holds values of type {column.type}")
        unknown = set(values) - set(column.domain) if column.domain != "unknown" else set()
        if unknown:
            strange = min(map(repr, unknown))
            raise SettingsError(f"filters: {strange} is not in the domain of {name!r}")
        return name, _sorted(values)
    if column.type != "bigint":
        raise SettingsError(f"filters: column {name!r} is text; use 'in'")
    low, high = condition.at_least, condition.at_most
    if column.domain == "unknown":
        return name, low, high
    return name, _sorted(value for value in column.domain if _inside(value, low, high))


def _both(one: Test, other: Test) -> Test:
    """Merge two conditions on one column into the one that holds where both do."""
    if len(one) == 3 and len(other) == 3:
        lows = [low for low in (one[1], other[1]) if low is not None]
        highs = [high for high in (one[2], other[2]) if high is not None]
        return one[0], max(lows, default=None), min(highs, default=None)
    if len(one) == 2 and len(other) == 2:
        return one[0], _sorted(set(one[1]) & set(other[1]))
    values, span = (one, other) if len(one) == 2 else (other, one)
    assert len(values) == 2
    assert len(span) == 3
    return one[0], _sorted(value for value in values[1] if _inside(value, span[1], span[2]))


def _inside(value: Value, low: int | None, high: int | None) -> bool:
    assert isinstance(value, int)
    return (low is None or value >= low) and (high is None or value <= high)


def _sorted(values: Iterable[Value]) -> tuple[Value, ...]:
    """Values of one type, each once, in order."""
    return tuple(sorted(set(values)))
