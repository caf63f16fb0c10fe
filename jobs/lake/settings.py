"""Settings of the lake (`conf/local.toml`) and of each engagement table (`conf/datasets/`).

Those of recurring releases are in `jobs.lake.question_settings`.
"""

import os
import re
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, model_validator

from dp_udfs.errors import SettingsError
from jobs.lake.block_settings import BlockSettings
from jobs.lake.toml_files import (
    Days,
    Delta,
    Domain,
    Epsilon,
    FromList,
    Name,
    Period,
    PositiveInt,
    Share,
    Table,
    Text,
    Zone,
    read,
    valid_name,
)
from jobs.lake.user_settings import UserSettings

COHORT_SEPARATOR = " | "
ALL = "all"  # the one cohort of a question without cohorts
SECRET_BYTES = 32
LARGEST_DOMAIN = 100_000


def is_table_name(location: str) -> bool:
    """Whether a location is `schema.table` or `catalog.schema.table` rather than a path."""
    return bool(re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}", location))


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
    use: Annotated[tuple[Literal["element", "cohort", "filter"], ...], FromList]
    many: StrictBool = False
    domain: Domain
    l0: PositiveInt | None = None
    max_per_user: PositiveInt | None = None
    keep_nulls: StrictBool = False

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
    period: Period
    gaussian: StrictBool
    warn_at: Share = 0.8


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
        named = "blocks" if self.blocks else "users" if self.users else None
        if named and self.table.privacy_unit != "user":
            raise ValueError(f"{named}: what a person loses is stated: privacy_unit must be 'user'")
        if self.blocks is None:
            return self
        queued = self.users is not None and (self.users.queue or self.blocks.queue)
        if self.users and queued and self.users.alphas != self.blocks.alphas:
            raise ValueError("users.alphas: one queue serves [blocks] too, so write the same there")
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


def _simple(name: str) -> str:
    try:
        return valid_name(name)
    except ValueError as error:
        raise SettingsError(f"dataset {name!r}: {error}") from None
