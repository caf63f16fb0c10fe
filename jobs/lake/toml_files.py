"""TOML files read by strict, frozen models: what a key may hold, and errors that name file and key.

What moves privacy has no default; a number stays the decimal that its author wrote.
"""

import re
import tomllib
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictInt,
    StrictStr,
    ValidationError,
)

from dp_udfs import checks
from dp_udfs.budget import LARGEST
from dp_udfs.errors import SettingsError
from jobs.lake.budgets import grid

LONGEST = 36_525  # days: a century, so that dates stay dates


def valid_name(name: str) -> str:
    """Names become parts of file names and messages, so they stay simple."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", name):
        raise ValueError(
            "must be 1 to 64 of a-z, 0-9, '-' and '_', and start with a letter or digit"
        )
    return name


def _decimal_text(value: object) -> str:
    """Keep a number as the decimal its author wrote."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError("must be a number")
    try:
        return f"{Decimal(str(value)).normalize():g}"
    except ArithmeticError:
        raise ValueError("must be a number") from None


def _epsilon(text: str) -> str:
    checks.exact_epsilon(text)
    return text


def _delta(text: str) -> str:
    checks.exact_delta(text)
    return text


def _value(value: object) -> object:
    """Accept what a column can hold."""
    if isinstance(value, str) or (type(value) is int and -(2**63) <= value < 2**63):
        return value
    raise ValueError("must be a text or a whole number of 64 bits")


def _domain(value: object) -> object:
    if value == "unknown":
        return value
    if not isinstance(value, list | tuple):
        raise ValueError("must be 'unknown' or a public list that is written out here")
    return tuple(_value(each) for each in value)


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("must be a number")
    if not 0 < value <= 1:
        raise ValueError("must be above 0 and at most 1")
    return float(value)


def _period(value: object) -> object:
    if value == "month" or (type(value) is int and 1 <= value <= LONGEST):
        return value
    raise ValueError(f"must be 'month' or a number of days from 1 to {LONGEST}")


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{name!r} is not a time zone such as 'UTC' or 'Europe/Berlin'") from None
    return name


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Value = Annotated[str | int, PlainValidator(_value)]
Domain = Annotated[Literal["unknown"] | tuple[Value, ...], BeforeValidator(_domain)]
Name = Annotated[StrictStr, AfterValidator(valid_name)]
DecimalText = Annotated[str, BeforeValidator(_decimal_text)]
Epsilon = Annotated[str, BeforeValidator(_decimal_text), AfterValidator(_epsilon)]
Delta = Annotated[str, BeforeValidator(_decimal_text), AfterValidator(_delta)]
Share = Annotated[float, BeforeValidator(_share)]
Zone = Annotated[StrictStr, AfterValidator(_zone)]
PositiveInt = Annotated[StrictInt, Field(ge=1, le=LARGEST)]
Days = Annotated[StrictInt, Field(ge=1, le=LONGEST)]
Period = Annotated[Literal["month"] | Days, BeforeValidator(_period)]
Int64 = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
Text = Annotated[StrictStr, Field(min_length=1)]
FromList = BeforeValidator(_tuple)  # TOML has lists, and what was read never changes
Alphas = Annotated[tuple[Text, ...], FromList, AfterValidator(grid)]


class Table(BaseModel):
    """A TOML table: unknown keys are errors, values never change after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


Model = TypeVar("Model", bound=Table)


def read(path: str | Path, model: type[Model], overrides: Mapping[str, Any] | None = None) -> Model:
    """Read one TOML file into a model; options given on the command line win over the file.

    Raises
    ------
    SettingsError
        One line that names the file, the key and what is allowed.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"), parse_float=Decimal)
    except (FileNotFoundError, IsADirectoryError):
        raise SettingsError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:  # no text, no TOML, too long, too deep
        raise SettingsError(f"{path}: cannot be read as TOML: {error}") from None
    return build(str(path), model, content | dict(overrides or {}))


def build(source: str, model: type[Model], content: Mapping[str, Any]) -> Model:
    """Validate `content`, which came from `source`, as `model`."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise SettingsError(f"{source}: {_first_line(error)}") from None


def _first_line(error: ValidationError) -> str:
    """Put pydantic's first finding as `table.key: what is wrong`."""
    found = error.errors(include_url=False)
    # a key that is misspelled is the reason for one that is missing
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    key = ".".join(str(part) for part in first["loc"] if not _is_type_tag(part))
    if first["type"] == "extra_forbidden":
        return f"{key}: unknown key"
    if first["type"] == "missing":
        return f"{key}: missing"
    message = _in_words_of_toml(first["msg"])
    if key:
        message = f"{key}: {message}"
    given = first["input"]
    if not _is_plain(given):
        return message
    return f"{message} (got {given if isinstance(given, Decimal | date) else repr(given)})"


def _in_words_of_toml(message: str) -> str:
    """Name what a file holds rather than what Python makes of it."""
    message = message.removeprefix("Value error, ").replace("valid tuple", "valid list")
    return re.sub(r"valid dictionary or instance of \w+", "valid table", message)


def _is_type_tag(part: object) -> bool:
    """Pydantic adds the branch of a union to a location; readers do not need it."""
    return isinstance(part, str) and bool(re.search(r"[\[\]()]|^(str|int)$", part))


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | Decimal | date) and len(str(value)) <= 80
