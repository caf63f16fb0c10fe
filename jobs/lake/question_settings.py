"""`conf/releases/<name>.toml`: a question as somebody writes it."""

import itertools
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, model_validator

from jobs.lake.toml_files import (
    Days,
    FromList,
    Int64,
    Name,
    PositiveInt,
    Table,
    Text,
    Value,
    read,
)

LARGEST_TAU = 1_000_000
MOST_CONDITIONS = 100  # Spark's plan is as deep as there are conditions: 1,000 overflow its stack
MOST_TEXT = 100_000  # characters of all values: the ledger keeps each question, refused ones too

MechanismName = Literal[
    "known_laplace",
    "known_gumbel",
    "unknown_laplace",
    "unknown_gumbel",
    "fixed_gaussian",
]


class Window(Table):
    """Absolute dates (`to` exclusive), or the last `days` days up to the snapshot's date."""

    days: Days | None = None
    start: date | None = Field(default=None, alias="from")
    end: date | None = Field(default=None, alias="to")

    @model_validator(mode="after")
    def _one_form(self) -> "Window":
        dated = self.days is None
        if (self.start is not None, self.end is not None) != (dated, dated):
            raise ValueError("give either 'days', or 'from' and 'to'")
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError("'from' must be before 'to' ('to' is exclusive)")
        return self


class Condition(Table):
    """One filter: a column that is one of some values, or lies in a closed range."""

    column: Name
    any_of: Annotated[tuple[Value, ...] | None, FromList] = Field(default=None, alias="in")
    at_least: Int64 | None = None
    at_most: Int64 | None = None

    @model_validator(mode="after")
    def _one_form(self) -> "Condition":
        has_range = self.at_least is not None or self.at_most is not None
        if (self.any_of is None) == (not has_range):
            raise ValueError("give either 'in', or 'at_least' and/or 'at_most'")
        if self.any_of is not None and not self.any_of:
            raise ValueError("'in' is empty")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("'at_least' is above 'at_most'")
        return self


Conditions = Annotated[tuple[Condition, ...], FromList]


class Filters(Table):
    """Conditions that must all hold, and groups of which at least one condition must hold."""

    all: Conditions = ()
    any: Annotated[tuple[Conditions, ...], FromList] = ()

    @model_validator(mode="after")
    def _short(self) -> "Filters":
        conditions = list(itertools.chain(self.all, *self.any))
        if len(conditions) > MOST_CONDITIONS:
            raise ValueError(f"more than {MOST_CONDITIONS} conditions")
        values = (str(value) for each in conditions for value in each.any_of or ())
        if sum(map(len, values)) > MOST_TEXT:
            raise ValueError(f"lists values of more than {MOST_TEXT} characters together")
        return self


class QuestionSettings(Table):
    """`conf/releases/<name>.toml`, or the same keys as options of a program."""

    source: Text = "question"  # where it is written: filled in by who reads it, for messages
    dataset: Name
    element: Name
    measure: Literal["users", "rows"]
    tau: Annotated[StrictInt, Field(ge=1, le=LARGEST_TAU)] | None = None
    k: PositiveInt | None = None
    max_candidates: PositiveInt | None = None
    cohorts: Annotated[tuple[Name, ...], FromList] = ()
    window: Window
    filters: Filters = Filters()
    mechanism: MechanismName | None = None
    with_counts: StrictBool = True
    optimise_threshold: StrictBool = True

    @model_validator(mode="after")
    def _fits(self) -> "QuestionSettings":
        if self.measure == "users" and self.tau not in (None, 1):
            raise ValueError("measure 'users' counts each user once, so leave 'tau' out")
        if self.measure == "rows" and self.tau is None:
            raise ValueError(
                "measure 'rows' needs 'tau', the most rows of a user counted per element"
            )
        if len(set(self.cohorts)) != len(self.cohorts):
            raise ValueError("'cohorts' names a column twice")
        return self


def load_question(path: str | Path, overrides: Mapping[str, Any] | None = None) -> QuestionSettings:
    """Read a release file; `overrides` are options of the command line."""
    return read(path, QuestionSettings, {**(overrides or {}), "source": str(path)})
