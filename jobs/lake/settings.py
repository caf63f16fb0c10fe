"""Settings: plain TOML read by strict, frozen models; an error names file, table and key.

Three kinds of file: the lake (`conf/local.toml`), one per engagement table (`conf/datasets/`), one
per recurring release (`conf/releases/`). What moves privacy has no default.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from datetime import date, timedelta
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
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from dp_udfs import checks
from dp_udfs.budget import LARGEST
from dp_udfs.curves import block_capacity
from dp_udfs.errors import SettingsError
from jobs.lake.budgets import grid
from jobs.lake.queue_settings import QueueSettings
from jobs.lake.user_settings import UserSettings

COHORT_SEPARATOR = " | "
ALL = "all"  # the one cohort of a question without cohorts
SECRET_BYTES = 32
LARGEST_DOMAIN = 100_000
LARGEST_TAU = 1_000_000

MechanismName = Literal[
    "known_laplace",
    "known_gumbel",
    "unknown_laplace",
    "unknown_gumbel",
    "fixed_gaussian",
]


def is_table_name(location: str) -> bool:
    """Whether a location is `schema.table` or `catalog.schema.table` rather than a path."""
    return bool(re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}", location))


def _valid_name(name: str) -> str:
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


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("must be a number")
    if not 0 < value <= 1:
        raise ValueError("must be above 0 and at most 1")
    return float(value)


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{name!r} is not a time zone such as 'UTC' or 'Europe/Berlin'") from None
    return name


Value = Annotated[str | int, PlainValidator(_value)]
Name = Annotated[StrictStr, AfterValidator(_valid_name)]
Epsilon = Annotated[str, BeforeValidator(_decimal_text), AfterValidator(_epsilon)]
Delta = Annotated[str, BeforeValidator(_decimal_text), AfterValidator(_delta)]
Share = Annotated[float, BeforeValidator(_share)]
Zone = Annotated[StrictStr, AfterValidator(_zone)]
PositiveInt = Annotated[StrictInt, Field(ge=1, le=LARGEST)]
Days = Annotated[StrictInt, Field(ge=1, le=36_525)]  # a century, so that dates stay dates
Int64 = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
Text = Annotated[StrictStr, Field(min_length=1)]


class Table(BaseModel):
    """A TOML table: unknown keys are errors, values never change after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


# --- the lake -------------------------------------------------------------------------------------


class LakeTables(Table):
    """Where the tables that belong to no single dataset lie."""

    ledger: Text
    releases: Text
    snapshots: Text


class Secret(Table):
    """Where the key of the noise comes from: an environment variable or a file, never a value."""

    environment: Text | None = None
    file: Text | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "Secret":
        if (self.environment is None) == (self.file is None):
            raise ValueError("give exactly one of 'environment' and 'file'")
        return self

    def read(self, root: str) -> bytes:
        """Return the secret's bytes; see `LakeSettings.read_secret`."""
        advice = "make one with `openssl rand -hex 32`"
        if self.environment is not None:
            where = f"environment variable {self.environment}"
            text = os.environ.get(self.environment, "")
        else:
            where = f"secret file {self.file}"
            try:
                text = (Path(root) / str(self.file)).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                text = ""
        if not text.strip():
            raise SettingsError(f"secret: {where} is missing or empty; {advice}")
        try:
            secret = bytes.fromhex(text.strip())
        except ValueError:
            raise SettingsError(f"secret: {where} is not hexadecimal; {advice}") from None
        if len(secret) < SECRET_BYTES or len(set(secret)) < SECRET_BYTES // 4:
            raise SettingsError(f"secret: {where} is too short or too regular; {advice}")
        return secret


class Regions(Table):
    """The ledgers of other data centres, and how one allowance is kept in all of them.

    In mode "eventual" each region spends what it can see is left: while links are cut, each can
    spend the whole allowance. In mode "escrow" each has its `shares` of every allowance and spends
    no more, whoever is out of reach. The same in the files of all regions.
    """

    mode: Literal["eventual", "escrow"]
    ledgers: Mapping[Name, Text]
    shares: Mapping[Name, PositiveInt] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _shared(self) -> "Regions":
        if (self.mode == "escrow") != bool(self.shares):
            raise ValueError("shares: needed in mode 'escrow', and only there")
        if self.shares and not set(self.ledgers) < set(self.shares):
            raise ValueError("shares: one for each of 'ledgers', and one for this region")
        return self

    def share_of(self, region: str, amount: int) -> int:
        """Return what a region may spend of an amount, rounded down: never more in all."""
        if self.mode == "eventual":
            return amount
        return amount * self.shares[region] // sum(self.shares.values())


class LakeSettings(Table):
    """`conf/local.toml`: where the lake is and where the secret comes from.

    Relative paths in all settings start at `root`, never at the folder a command runs in: a second
    ledger, hence a second allowance, must not appear because somebody changed folder.
    """

    source: Text  # the file itself: filled in by `load_lake`, which also makes `root` absolute
    root: Text
    tables: LakeTables
    secret: Secret
    opt_out_secret: Secret | None = None  # `secret` before its first rotation; see `consent`
    region: Name
    regions: Regions | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "LakeSettings":
        if self.regions and self.region in self.regions.ledgers:
            raise ValueError(f"regions.ledgers.{self.region}: this region's is tables.ledger")
        if self.regions and self.regions.shares and self.region not in self.regions.shares:
            raise ValueError(f"regions.shares.{self.region}: missing")
        return self

    def locate(self, location: str) -> str:
        """Make a table's path absolute; catalog names and URLs stay as they are."""
        if "://" in location or is_table_name(location):
            return location
        return str(Path(self.root) / location)

    @property
    def secret_path(self) -> Path:
        """Where the secret file lies."""
        return Path(self.root) / str(self.secret.file)

    def read_secret(self) -> bytes:
        """Return the secret's bytes.

        Raises
        ------
        SettingsError
            If it is missing or shorter than 256 bits; the message never shows any part of it.
        """
        return self.secret.read(self.root)

    def read_opt_out_secret(self) -> bytes:
        """Return the secret by which people who were purged are known: it outlives a rotation."""
        return (self.opt_out_secret or self.secret).read(self.root)


# --- a dataset ------------------------------------------------------------------------------------


class EngagementTable(Table):
    """The engagement table itself: where it is, who is protected, how long rows live."""

    engagements: Text
    opt_outs: Text | None = None
    quarantine: Text
    privacy_unit: Literal["user", "user_day", "event"]
    user_id: Name
    user_id_type: Literal["string", "bigint"]
    event_date: Name
    time_zone: Zone = "UTC"
    retention_days: Days
    purge_lag_days: Annotated[StrictInt, Field(ge=0, le=36_525)]
    bounding_salt: Text

    @property
    def numbers(self) -> str:
        """Where the numbers of users are kept, in the order of joining: beside the engagements."""
        return f"{self.engagements.rstrip('/')}_users"

    @property
    def purged(self) -> str | None:
        """Where hashes of people whose rows were purged are kept: beside the opt-outs."""
        return None if self.opt_outs is None else f"{self.opt_outs.rstrip('/')}_purged"

    def oldest_readable(self, today: date) -> date:
        """First date of which rows may still be read, and still be anywhere, on a day."""
        return today - timedelta(days=self.retention_days + self.purge_lag_days)


class Column(Table):
    """One declared column: what it may be used for and which facts hold for it."""

    type: Literal["string", "bigint"]
    use: tuple[Literal["element", "cohort", "filter"], ...]
    many: StrictBool = False
    domain: Literal["unknown"] | tuple[Value, ...]
    l0: PositiveInt | None = None
    max_per_user: PositiveInt | None = None
    keep_nulls: StrictBool = False

    @field_validator("use", "domain", mode="before")
    @classmethod
    def _tuples(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _facts_fit(self) -> "Column":
        if not self.use:
            raise ValueError("'use' must name at least one of element, cohort, filter")
        if self.domain != "unknown":
            wanted = str if self.type == "string" else int
            if not self.domain or any(type(value) is not wanted for value in self.domain):
                raise ValueError(f"'domain' must list values of type {self.type}")
            if len(self.domain) > LARGEST_DOMAIN:
                raise ValueError(f"'domain' lists more than {LARGEST_DOMAIN} values")
            if len(set(self.domain)) != len(self.domain):
                raise ValueError("'domain' lists a value twice")
        if "filter" in self.use and self.many:
            raise ValueError("a filter column needs one value a row")
        if "cohort" in self.use:
            if self.domain == "unknown" or self.type != "string" or self.many:
                raise ValueError(
                    "a cohort column needs type string, one value a row and a public domain"
                )
            if any(COHORT_SEPARATOR in str(value) or not value for value in self.domain):
                raise ValueError(f"a cohort may be neither empty nor contain {COHORT_SEPARATOR!r}")
        return self


class Budget(Table):
    """What an analyst may learn in one period; no key that moves privacy has a default.

    `mode` is "enforce", or "track": then everything is recorded, nothing refused and nothing
    guaranteed. From the share `warn_at` of an allowance on (0.8 unless set), answers and balances
    come with a warning.
    """

    mode: Literal["enforce", "track"]
    epsilon: Epsilon
    delta: Delta
    delta_prime: Delta
    units: PositiveInt
    calls: PositiveInt
    period: Literal["month"] | Days
    gaussian: StrictBool
    warn_at: Share = 0.8


class BlockSettings(Table):
    """What all analysts and models together may learn from the rows of so many days, for good.

    `alphas` are the Rényi orders of the blocks' curves, rising from 2; "inf" alone is basic
    composition, where the losses themselves add up. With a `queue`, claims wait for their turn.
    """

    mode: Literal["enforce", "track"]
    days: Days
    epsilon: Epsilon
    delta: Delta
    alphas: tuple[Text, ...]
    queue: QueueSettings | None = None

    @field_validator("alphas", mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("alphas")
    @classmethod
    def _grid(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return grid(value)

    @model_validator(mode="after")
    def _usable(self) -> "BlockSettings":
        if self.queue and self.mode != "enforce":
            raise ValueError("queue: needs mode 'enforce': what is never refused never waits")
        if max(block_capacity(self.epsilon, self.delta, self.alphas)) <= 0:
            raise ValueError(
                f"alphas: epsilon {self.epsilon} leaves nothing at any of {', '.join(self.alphas)} "
                f"after ln(1/delta) / (alpha - 1); give a larger alpha or epsilon"
            )
        return self


class Analyst(Table):
    """An analyst's own allowance where it differs from the dataset's."""

    units: PositiveInt | None = None
    calls: PositiveInt | None = None


class DatasetSettings(Table):
    """`conf/datasets/<name>.toml`."""

    name: Name
    description: Text
    table: EngagementTable
    columns: Mapping[Name, Column]
    budget: Budget
    analysts: Mapping[Name, Analyst]
    blocks: BlockSettings | None = None
    users: UserSettings | None = None
    region: Text = "local"  # filled in by `load_dataset`, and so are the regions
    regions: Regions | None = None

    @model_validator(mode="after")
    def _sound(self) -> "DatasetSettings":
        reserved = {self.table.user_id, self.table.event_date} & set(self.columns)
        if reserved:
            raise ValueError(f"columns.{reserved.pop()}: already named in [table]")
        capped = [
            n for n, c in self.columns.items() if c.l0 is not None or c.max_per_user is not None
        ]
        if self.table.privacy_unit != "user" and capped:
            # threats: removing one row under a cap over the window can swap one element for another
            raise ValueError(
                f"columns.{capped[0]}: l0 and max_per_user range over all rows of a user, "
                f"so they need privacy_unit = 'user'"
            )
        return self

    @model_validator(mode="after")
    def _blocks_hold(self) -> "DatasetSettings":
        if self.blocks is None:
            return self
        if self.table.privacy_unit != "user":
            raise ValueError("blocks: they state what a person loses: privacy_unit must be 'user'")
        if self.budget.gaussian and self.blocks.alphas == ("inf",):
            raise ValueError("blocks.alphas: a Gaussian mechanism has no finite loss at 'inf'")
        if self.regions and (not self.in_escrow or len(self.blocks.alphas) > 1):
            raise ValueError(
                "blocks: with regions, they need mode 'escrow' and one alpha: several regions "
                "would each keep another order"
            )
        return self

    def column(self, name: str, use: str, key: str) -> Column:
        """Find a declared column that a question's `key` may use so."""
        column = self.columns.get(name)
        if column is None or use not in column.use:
            allowed = [n for n, c in self.columns.items() if use in c.use]
            raise SettingsError(
                f"{key}: {name!r} is not declared for use as {use} in dataset "
                f"{self.name} (declared: {', '.join(allowed) or 'none'})"
            )
        return column

    @property
    def in_escrow(self) -> bool:
        """Whether each region has a share of its own."""
        return self.regions is not None and self.regions.mode == "escrow"

    def allowance(self, analyst: str) -> tuple[int, int]:
        """Units and calls that one declared analyst may spend in one period, in this region."""
        units, calls = self.whole_allowance(analyst)
        if self.regions is None:
            return units, calls
        return self.regions.share_of(self.region, units), self.regions.share_of(self.region, calls)

    def whole_allowance(self, analyst: str) -> tuple[int, int]:
        """Units and calls of one declared analyst in one period, in all regions together."""
        try:
            own = self.analysts[analyst]
        except KeyError:
            known = ", ".join(sorted(self.analysts)) or "none"
            raise SettingsError(
                f"dataset {self.name}: analyst {analyst!r} is not declared under [analysts] "
                f"(declared: {known})"
            ) from None
        return own.units or self.budget.units, own.calls or self.budget.calls


# --- a question -----------------------------------------------------------------------------------


class Window(Table):
    """Absolute dates (`to` exclusive), or the last `days` days up to the snapshot's date."""

    days: Days | None = None
    start: date | None = Field(default=None, alias="from")
    end: date | None = Field(default=None, alias="to")

    @model_validator(mode="after")
    def _one_form(self) -> "Window":
        if (self.days is None) == (self.start is None and self.end is None):
            raise ValueError("give either 'days', or 'from' and 'to'")
        if self.days is None and (self.start is None or self.end is None or self.start >= self.end):
            raise ValueError("'from' must be before 'to' ('to' is exclusive)")
        return self


class Condition(Table):
    """One filter: a column that is one of some values, or lies in a closed range."""

    column: Name
    any_of: tuple[Value, ...] | None = Field(default=None, alias="in")
    at_least: Int64 | None = None
    at_most: Int64 | None = None

    @field_validator("any_of", mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

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


class Filters(Table):
    """Conditions that must all hold, and groups of which at least one condition must hold."""

    all: tuple[Condition, ...] = ()
    any: tuple[tuple[Condition, ...], ...] = ()

    @field_validator("all", mode="before")
    @classmethod
    def _all(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list | tuple) else value

    @field_validator("any", mode="before")
    @classmethod
    def _any(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            return value
        return tuple(tuple(group) if isinstance(group, list) else group for group in value)


class QuestionSettings(Table):
    """`conf/releases/<name>.toml`, or the same keys as options of a program."""

    source: Text = "question"  # where it is written: filled in by who reads it, for messages
    dataset: Name
    element: Name
    measure: Literal["users", "rows"]
    tau: Annotated[StrictInt, Field(ge=1, le=LARGEST_TAU)] | None = None
    k: PositiveInt | None = None
    max_candidates: PositiveInt | None = None
    cohorts: tuple[Name, ...] = ()
    window: Window
    filters: Filters = Filters()
    mechanism: MechanismName | None = None
    with_counts: StrictBool = True
    optimise_threshold: StrictBool = True

    @field_validator("cohorts", mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

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


# --- reading --------------------------------------------------------------------------------------

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
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
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
    key = ".".join(str(part) for part in first["loc"] if not _is_type_tag(part)) or "file"
    if first["type"] == "extra_forbidden":
        return f"{key}: unknown key"
    if first["type"] == "missing":
        return f"{key}: missing"
    message = first["msg"].removeprefix("Value error, ")
    return (
        f"{key}: {message} (got {first['input']!r})"
        if _is_plain(first["input"])
        else f"{key}: {message}"
    )


def _is_type_tag(part: object) -> bool:
    """Pydantic adds the branch of a union to a location; readers do not need it."""
    return isinstance(part, str) and bool(re.search(r"[\[\]()]|^(str|int)$", part))


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | Decimal | date) and len(str(value)) <= 80


def load_lake(path: str | Path) -> LakeSettings:
    """Read `conf/local.toml` or its like."""
    source = Path(path).resolve()
    lake = read(path, LakeSettings, {"source": str(source)})
    lake = lake.model_copy(update={"root": str((source.parent / lake.root).resolve())})
    tables = {name: lake.locate(where) for name, where in lake.tables.model_dump().items()}
    regions = lake.regions
    if regions:
        others = {name: lake.locate(where) for name, where in regions.ledgers.items()}
        regions = regions.model_copy(update={"ledgers": others})
    return lake.model_copy(update={"tables": LakeTables(**tables), "regions": regions})


def load_dataset(name: str, lake: LakeSettings) -> DatasetSettings:
    """Read `datasets/<name>.toml` beside the lake file; its table paths come back absolute."""
    path = Path(lake.source).parent / "datasets" / f"{_simple(name)}.toml"
    dataset = read(path, DatasetSettings)
    if dataset.name != name:
        raise SettingsError(f"{path}: name: is {dataset.name!r}, but the file is called {name!r}")
    places = {
        key: where and lake.locate(where)
        for key, where in dataset.table.model_dump(
            include={"engagements", "opt_outs", "quarantine"}
        ).items()
    }
    table = dataset.table.model_copy(update=places)
    where = {"region": lake.region, "regions": lake.regions}
    return dataset.model_copy(update={"table": table, **where})


def load_question(path: str | Path, overrides: Mapping[str, Any] | None = None) -> QuestionSettings:
    """Read a release file; `overrides` are options of the command line."""
    return read(path, QuestionSettings, {**(overrides or {}), "source": str(path)})


def _simple(name: str) -> str:
    try:
        return _valid_name(name)
    except ValueError as error:
        raise SettingsError(f"dataset {name!r}: {error}") from None
