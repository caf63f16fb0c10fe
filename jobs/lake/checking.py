"""What may enter an engagement table: every row becomes exactly what the dataset file declares.

The release path never refuses because of a row (a refusal would be a free answer about it), so rows
are checked here, once, by fixed rules. A row that breaks one goes to the quarantine table with the
reasons; a value in doubt is never bent into another one.
"""

from datetime import date, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    NullType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from dp_udfs.errors import SettingsError
from jobs.lake import schemas
from jobs.lake.settings import Column as Declared
from jobs.lake.settings import DatasetSettings

MANY_SEPARATOR = "|"  # between the values of one field, where a format has no arrays
MALFORMED = "_malformed"  # the line of a text file that does not have the fields of its header
LONGEST_TEXT = 4096  # bytes; a few long ones of one person would break the questions that read them
LARGEST_EXACT_FLOAT = 2**53  # from here on neighbouring integers share one floating-point number

_DAY = r"^\d{4}-\d{2}-\d{2}$"
_INSTANT = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}"

_REASONS, _ROW = "_reasons", "_row"


def check_columns(rows: DataFrame, dataset: DatasetSettings, *, ignore_undeclared: bool) -> None:
    """Refuse an input whose columns are not those of the dataset file.

    Raises
    ------
    SettingsError
        If a declared column is missing or cannot have its declared type, or one is not declared.
    """
    declared = schemas.engagements(dataset)
    found = {field.name: field.dataType for field in rows.schema if field.name != MALFORMED}
    missing = [name for name in declared if name not in found]
    if missing:
        raise SettingsError(
            f"input: no column {missing[0]!r}, which dataset {dataset.name} declares "
            f"(columns: {', '.join(found)})"
        )
    undeclared = [name for name in found if name not in declared]
    if undeclared and not ignore_undeclared:
        raise SettingsError(
            f"input: column {undeclared[0]!r} is not declared by dataset {dataset.name}; "
            f"declare it or leave it out with --ignore-undeclared"
        )
    for name, wanted in declared.items():
        if not _may_become(found[name], wanted):
            raise SettingsError(
                f"input: column {name!r} is {found[name].simpleString()}, "
                f"which cannot be read as {wanted} without changing values"
            )


def user_ids(rows: DataFrame, dataset: DatasetSettings) -> Column:
    """Read the users of a batch in their declared type; NULL where that cannot be done."""
    name = dataset.table.user_id
    return _read(F.col(f"`{name}`"), rows.schema[name].dataType, dataset.table.user_id_type)


def accepted(rows: DataFrame, dataset: DatasetSettings, as_of: date) -> DataFrame:
    """Rows that keep every rule, with the columns and types of the engagement table.

    Text dates and instants are read in the session's time zone: set it to the dataset's.
    """
    checked = _with_reasons(rows, dataset, as_of).where(F.size(_REASONS) == 0)
    return checked.select(*(F.col(f"`{name}`") for name in schemas.engagements(dataset)))


def rejected(rows: DataFrame, dataset: DatasetSettings, as_of: date, batch_id: str) -> DataFrame:
    """Rows that break a rule, as `schemas.QUARANTINE`."""
    odd = _with_reasons(rows, dataset, as_of).where(F.size(_REASONS) > 0)
    return odd.select(
        F.lit(batch_id).alias("batch_id"),
        F.lit(as_of).alias("as_of"),
        F.array_join(_REASONS, "; ").alias("reason"),
        F.col(_ROW).alias("row"),
    )


def _with_reasons(rows: DataFrame, dataset: DatasetSettings, as_of: date) -> DataFrame:
    """Add the declared columns in their types, what is wrong with each row, and the row as JSON."""
    types = {field.name: field.dataType for field in rows.schema}
    declared = schemas.engagements(dataset)
    values = {
        name: _read(F.col(f"_input.`{name}`"), types[name], wanted)
        for name, wanted in declared.items()
    }
    packed = rows.select(F.struct(*(F.col(f"`{name}`") for name in rows.columns)).alias("_input"))
    typed = packed.select("_input", *(value.alias(name) for name, value in values.items()))
    reasons = [
        *_reasons_of_dates(dataset, as_of),
        *_reasons_of_user_ids(dataset),
        *(_not_readable(name, wanted) for name, wanted in declared.items()),
        *(_too_long(name, wanted) for name, wanted in declared.items() if "string" in wanted),
        *_reasons_of_domains(dataset),
    ]
    if MALFORMED in types:
        reasons.append(
            _when(F.col(f"_input.{MALFORMED}").isNotNull(), "not the fields of the header")
        )
    return typed.select(
        *(F.col(f"`{name}`") for name in declared),
        F.array_compact(F.array(*reasons)).alias(_REASONS),
        F.to_json("_input", {"ignoreNullFields": "false"}).alias(_ROW),
    )


def _when(broken: Column, reason: str) -> Column:
    """Give the reason where a rule is broken, else NULL."""
    return F.when(F.coalesce(broken, F.lit(False)), F.lit(reason))


def _reasons_of_dates(dataset: DatasetSettings, as_of: date) -> list[Column]:
    name, day = dataset.table.event_date, F.col(f"`{dataset.table.event_date}`")
    oldest = as_of - timedelta(days=dataset.table.retention_days)
    return [
        _when(F.col(f"_input.`{name}`").isNull(), f"{name}: missing"),
        _when(day > F.lit(as_of), f"{name}: after the as-of date"),
        _when(day < F.lit(oldest), f"{name}: older than the retention"),
    ]


def _reasons_of_user_ids(dataset: DatasetSettings) -> list[Column]:
    name = dataset.table.user_id
    user = F.col(f"_input.`{name}`")
    return [_when(user.isNull() | (F.trim(user.cast("string")) == ""), f"{name}: missing")]


def _not_readable(name: str, wanted: str) -> Column:
    """There was a value, but none of the declared type."""
    given, value = F.col(f"_input.`{name}`"), F.col(f"`{name}`")
    return _when(given.isNotNull() & value.isNull(), f"{name}: not {wanted}")


def _too_long(name: str, wanted: str) -> Column:
    """Whether a text, or one of several, takes more memory than a question can count on."""

    def too_long(text: Column) -> Column:
        return F.octet_length(text) > LONGEST_TEXT

    value = F.col(f"`{name}`")
    broken = F.exists(value, too_long) if wanted.startswith("array") else too_long(value)
    return _when(broken, f"{name}: longer than {LONGEST_TEXT} bytes")


def _reasons_of_domains(dataset: DatasetSettings) -> list[Column]:
    return [
        _when(_outside(F.col(f"`{name}`"), column), f"{name}: outside the declared domain")
        for name, column in dataset.columns.items()
        if column.domain != "unknown"
    ]


def _outside(value: Column, column: Declared) -> Column:
    """Whether a value, or one of several, is not in the declared list; NULL passes."""

    def outside(item: Column) -> Column:
        return ~item.isin(list(column.domain))

    return F.exists(value, outside) if column.many else outside(value)


# --- types ----------------------------------------------------------------------------------------


def _may_become(given: DataType, wanted: str) -> bool:
    """Whether values of a type can be read as a declared type, each one exactly or not at all."""
    if isinstance(given, NullType | StringType):
        return True
    if wanted.startswith("array"):
        return isinstance(given, ArrayType) and _may_become(given.elementType, wanted[6:-1])
    readable: dict[str, tuple[type[DataType], ...]] = {
        "date": (DateType, TimestampType, TimestampNTZType),
        "bigint": (IntegralType, FractionalType),
        "string": (IntegralType, DecimalType, BooleanType, DateType),
    }
    return isinstance(given, readable[wanted])


def _read(given: Column, type_: DataType, wanted: str) -> Column:
    """Read a value as its declared type; NULL where that cannot be done exactly."""
    if isinstance(type_, NullType):
        return F.lit(None).cast(wanted)
    if wanted == "date":
        return _read_date(given, type_)
    if wanted == "bigint":
        return _read_bigint(given, type_)
    if wanted == "string":
        return _read_text(given)
    return _read_many(given, type_, wanted[6:-1])


def _read_text(given: Column) -> Column:
    """Read valid UTF-8: two other texts could be shown as one and the same."""
    text = given.cast("string")
    return F.when(F.is_valid_utf8(text), text)


def _read_date(given: Column, type_: DataType) -> Column:
    """Read a date, or the date of an instant; text such as `2024` or `12:30` is not one."""
    if not isinstance(type_, StringType):
        return given.cast("date")
    return F.when(given.rlike(_DAY), given.try_cast("date")).when(
        given.rlike(_INSTANT), given.try_cast("timestamp").cast("date")
    )


def _read_bigint(given: Column, type_: DataType) -> Column:
    """Read a whole number of 64 bits; floating-point ones only where they are exact."""
    value = given.try_cast("bigint")
    if isinstance(type_, DecimalType):
        return F.when(value.cast(type_) == given, value)
    if isinstance(type_, FractionalType):
        exact = (F.abs(given) < LARGEST_EXACT_FLOAT) & (F.floor(given) == given)
        return F.when(exact, value)
    return value


def _read_many(given: Column, type_: DataType, wanted: str) -> Column:
    """Read an array without repeats, or text with separators; NULL if one value cannot be read."""
    if isinstance(type_, StringType):
        parts = F.when(given == "", F.array().cast("array<string>")).otherwise(
            F.split(given, f"[{MANY_SEPARATOR}]")
        )
        return _read_many(parts, ArrayType(StringType()), wanted)
    assert isinstance(type_, ArrayType)
    inner = type_.elementType
    values = F.transform(given, lambda item: _read(item, inner, wanted))
    unreadable = F.exists(
        given, lambda item: item.isNotNull() & _read(item, inner, wanted).isNull()
    )
    return F.when(~unreadable, F.array_distinct(values))
