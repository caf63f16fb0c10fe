"""A question in canonical form: what is asked, of which data, at what price.

Two settings files that mean the same give the same `Question`, hence the same label, noise and
stored answer. The label names the data exactly: table ids and file digests, never "last 30 days".
"""

import hashlib
import hmac
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, timedelta
from functools import cached_property
from typing import Any

from dp_udfs import prices, rng
from dp_udfs.budget import Loss
from dp_udfs.errors import ClaimError, SettingsError, UnboundedContributionError
from dp_udfs.pandas_udfs import Mechanism
from jobs.lake import schemas, snapshots
from jobs.lake.conditions import Clauses, in_words, normal_form
from jobs.lake.question_settings import QuestionSettings, Window
from jobs.lake.settings import ALL, COHORT_SEPARATOR, Column, DatasetSettings, LakeSettings
from jobs.lake.tables import Snapshot

CODE_VERSION = 2  # raise it whenever bounding, a mechanism or a sampler gives other numbers
LARGEST_MAX_CANDIDATES = 100_000
LARGEST_COHORTS = 100_000

_PLACES = {
    "engagements",
    "opt_outs",
    "quarantine",
}  # tables are named by id and digest instead


@dataclass(frozen=True)
class Question:
    """Everything that decides an answer.

    Attributes
    ----------
    mechanism : Mechanism
        The mechanism and all its parameters.
    cohorts : tuple of str
        Public labels, sorted; `("all",)` without cohorts.
    cohorts_per_user : int or None
        Enforced number of cohorts one user may be counted in; None when nothing bounds it.
    start, end : date
        Absolute window, `end` exclusive.
    show : int or None
        Rows to show of each cohort: a cut after the noise, so no part of the label.
    secret_id : str
        Public name of the secret that keys the noise: under another secret it is another question,
        with other numbers and a charge of its own. Empty where only a price is wanted.
    code_version : int
        Version of the code that gives these numbers: another one for a run that began before.
    """

    dataset: DatasetSettings
    snapshot: Snapshot
    element: str
    measure: str
    mechanism: Mechanism
    cohort_columns: tuple[str, ...]
    cohorts: tuple[str, ...]
    cohorts_per_user: int | None
    start: date
    end: date
    filters: Clauses
    show: int | None
    secret_id: str = ""
    code_version: int = field(default_factory=lambda: CODE_VERSION)

    @cached_property
    def canonical(self) -> str:
        """The question as JSON with sorted keys: equal if and only if the answers are."""
        return self._encode(asdict(self.mechanism))

    @cached_property
    def family_label(self) -> str:
        """Label without `k`: in a family, the answer for a smaller k begins that for a larger."""
        canonical = self._encode(asdict(self.mechanism) | {"k": None})
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _encode(self, mechanism: Mapping[str, Any]) -> str:
        content = {
            "code_version": self.code_version,
            "dataset": self.dataset.name,
            "table": self.dataset.table.model_dump(mode="json", exclude=_PLACES),
            "columns": {name: column.model_dump(mode="json") for name, column in self._columns()},
            "data": {
                role: [state.table_id, state.version, state.digest]
                for role, state in self.snapshot.tables.items()
            },
            "snapshot": self.snapshot.snapshot_id,
            "element": self.element,
            "measure": self.measure,
            "mechanism": mechanism,
            "cohort_columns": self.cohort_columns,
            "cohorts": self.cohorts,
            "cohorts_per_user": self.cohorts_per_user,
            "window": [self.start.isoformat(), self.end.isoformat()],
            "filters": self.filters,
            "secret": self.secret_id,
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    def _columns(self) -> list[tuple[str, Column]]:
        """List the declared columns that the question touches."""
        filtered = {test[0] for clause in self.filters for test in clause}
        used = {self.element, *self.cohort_columns} | filtered
        return [(name, self.dataset.columns[name]) for name in sorted(used)]

    @cached_property
    def label(self) -> str:
        """SHA-256 of the canonical form: the name of the one answer this question has."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def account(self) -> str:
        """The account's dataset: the table's id, so that two files over one table share it."""
        return self.snapshot.tables["engagements"].table_id

    @cached_property
    def noise(self) -> prices.NoiseSummary:
        """Public numbers of one cohort's answer: noise, threshold offset, reserve."""
        mechanism = self.mechanism
        return prices.noise_summary(
            mechanism.name,
            linf=mechanism.tau,
            epsilon=mechanism.epsilon,
            delta=mechanism.delta,
            k=mechanism.k,
            l0=mechanism.l0,
            max_candidates=mechanism.max_candidates,
            with_counts=mechanism.with_counts,
            optimise_threshold=mechanism.optimise_threshold,
            domain_size=None if mechanism.domain is None else len(mechanism.domain),
        )

    @property
    def reserve(self) -> Loss:
        """The most this question can cost: what is allocated before any row is read."""
        return self.charge([self.noise.units] * len(self.cohorts))

    def charge(self, units: Sequence[int]) -> Loss:
        """Price a release, given the units that each of its cohorts cost.

        A user counted in at most m cohorts meets at most m times the largest; where nothing bounds
        the cohorts of a user, the sum.
        """
        most = max(units) * self.cohorts_met
        return Loss(min(sum(units), most), self.noise.calls * self.cohorts_met)

    @property
    def cohorts_met(self) -> int:
        """Cohorts that one user can be counted in: all of them where nothing bounds it."""
        return len(self.cohorts) if self.cohorts_per_user is None else self.cohorts_per_user

    def noise_key(self, secret: bytes) -> bytes:
        """Derive the key of this one question: all that executors ever see of the secret."""
        return derive_key(secret, "noise", self.canonical)

    def require_computable(self, secret: bytes) -> None:
        """Refuse what was pinned under other code or another secret: it would be other numbers."""
        if self.code_version != CODE_VERSION:
            raise ClaimError(
                "the code was replaced since this run was allocated, and no answer was stored: "
                "take a new run id and let jobs.settle_claims close this run"
            )
        if secret_id(secret) != self.secret_id:
            raise ClaimError(
                "the secret was replaced since this run was allocated, and no answer was stored: "
                "put the old one back, or take a new run id and let jobs.settle_claims close this "
                "run"
            )

    def require_retained(self, today: date) -> None:
        """Refuse a window that begins before what may still be read on a day.

        Without it an old snapshot would let rows be read in one period after another, for ever.
        """
        oldest = self.dataset.table.oldest_readable(today)
        if self.start < oldest:
            raise SettingsError(
                f"question: window: begins on {self.start}, but rows of dataset "
                f"{self.dataset.name} from before {oldest} may not be read any more "
                f"(retention_days + purge_lag_days before {today})"
            )

    def require_columns(self) -> None:
        """Refuse tables that are not as declared: Spark would fail when the budget is spent."""
        schemas.require(self.dataset, self.snapshot, [name for name, _ in self._columns()])

    def fingerprint(self, analyst: str) -> str:
        """Bind a claim to who asks what of which data under which secret and reserve."""
        content = rng.encode_label(analyst, self.canonical, self.reserve.units, self.reserve.calls)
        return hashlib.sha256(content).hexdigest()

    def describe(self) -> str:
        """One line for people."""
        what = "users" if self.measure == "users" else f"rows (at most {self.mechanism.tau} a user)"
        where = "" if not self.cohort_columns else f" by {' x '.join(self.cohort_columns)}"
        top = f"top {self.show} " if self.show else ""
        window = f"{self.start} to {self.end} (exclusive)"
        rows = f", where {in_words(self.filters)}" if self.filters else ""
        return f"{top}{self.element} by {what}{where}, {window}{rows}"


def secret_id(secret: bytes) -> str:
    """Name a secret in public: tells two apart, tells nothing else."""
    return derive_key(secret, "id").hex()[:16]


def derive_key(secret: bytes, *label: str) -> bytes:
    """Derive a key for one use, from which the secret cannot be found."""
    return hmac.digest(secret, rng.encode_label("discreet", *label), "sha256")


def pin(
    lake: LakeSettings,
    dataset: DatasetSettings,
    settings: QuestionSettings,
    snapshot: int | None,
    secret_id: str = "",
    code_version: int | None = None,
) -> Question:
    """Resolve a question on a snapshot and under a version of the code, the newest by default."""
    if snapshot is None:
        question = resolve(settings, dataset, snapshots.latest(lake, dataset), secret_id)
    else:
        question = resolve(settings, dataset, snapshots.get(lake, dataset, snapshot), secret_id)
    return question if code_version is None else replace(question, code_version=code_version)


def resolve(
    settings: QuestionSettings, dataset: DatasetSettings, snapshot: Snapshot, secret_id: str = ""
) -> Question:
    """Turn what somebody wrote into the one question it means.

    Raises
    ------
    SettingsError
        If a column, value, date or parameter does not fit the dataset file.
    UnboundedContributionError
        If the mechanism asked for needs a bound that the dataset file does not declare.
    """
    try:
        return _resolved(settings, dataset, snapshot, secret_id)
    except (SettingsError, UnboundedContributionError) as error:
        raise type(error)(f"{settings.source}: {error}") from None


def _resolved(
    settings: QuestionSettings, dataset: DatasetSettings, snapshot: Snapshot, secret_id: str
) -> Question:
    """Resolve a question; errors begin with the key, and who asked us adds the file."""
    start, end = _window(settings.window, dataset, snapshot)
    element = dataset.column(settings.element, "element", "element")
    mechanism, show = _mechanism(settings, dataset, element)
    cohorts, cohorts_per_user = _cohorts(settings, dataset)
    return Question(
        dataset=dataset,
        snapshot=snapshot,
        element=settings.element,
        measure=settings.measure,
        mechanism=mechanism,
        cohort_columns=tuple(sorted(settings.cohorts)),
        cohorts=cohorts,
        cohorts_per_user=cohorts_per_user,
        start=start,
        end=end,
        filters=normal_form(settings.filters, dataset),
        show=show,
        secret_id=secret_id,
    )


def _window(window: Window, dataset: DatasetSettings, snapshot: Snapshot) -> tuple[date, date]:
    """Absolute dates inside what is retained at the snapshot's date."""
    oldest = snapshot.as_of - timedelta(days=dataset.table.retention_days)
    if window.days is not None:
        start, end = snapshot.as_of - timedelta(days=window.days), snapshot.as_of
    else:
        assert window.start is not None  # Window checks both
        assert window.end is not None
        start, end = window.start, window.end
    if start < oldest or end > snapshot.as_of:
        raise SettingsError(
            f"window: {start} to {end} leaves what snapshot {snapshot.snapshot_id} "
            f"holds: {oldest} to {snapshot.as_of} (retention {dataset.table.retention_days} days)"
        )
    return start, end


def _mechanism(
    settings: QuestionSettings, dataset: DatasetSettings, column: Column
) -> tuple[Mechanism, int | None]:
    """Look the mechanism up from the declared facts, or check the one asked for against them."""
    name = settings.mechanism or _default_mechanism(column)
    known, ranked = name.startswith("known"), name.endswith("gumbel")
    _check_facts(name, settings.element, column, dataset)
    _check_parameters(name, settings)
    domain = None
    if known:
        assert column.domain != "unknown"  # _check_facts refused it
        domain = tuple(sorted(column.domain, key=lambda value: (str(type(value)), value)))
    k = settings.k if ranked else None
    if k is not None and domain is not None:
        k = min(k, len(domain))
    mechanism = Mechanism(
        name=name,
        k=k,
        l0=None if name == "known_gumbel" else column.l0,
        tau=settings.tau or 1,
        max_candidates=settings.max_candidates,
        epsilon=dataset.budget.epsilon,
        delta=dataset.budget.delta,
        with_counts=settings.with_counts,
        optimise_threshold=settings.optimise_threshold and name == "unknown_gumbel",
        domain=domain,
    )
    return mechanism, settings.k


def _default_mechanism(column: Column) -> str:
    """Known or unknown domain, bounded elements per user or any number: four settings."""
    domain = "unknown" if column.domain == "unknown" else "known"
    return f"{domain}_{'gumbel' if column.l0 is None else 'laplace'}"


def _check_facts(name: str, element: str, column: Column, dataset: DatasetSettings) -> None:
    """Refuse a mechanism whose guarantee needs a fact that is not declared."""
    if name.startswith("known") and column.domain == "unknown":
        raise SettingsError(f"mechanism: {name} needs a public domain for column {element!r}")
    if not name.endswith("gumbel") and column.l0 is None:
        raise UnboundedContributionError(
            f"mechanism: {name} needs l0 declared for column {element!r}"
        )
    if name == "fixed_gaussian" and not dataset.budget.gaussian:
        raise SettingsError(
            f"mechanism: fixed_gaussian needs gaussian = true under [budget] of dataset "
            f"{dataset.name}"
        )


def _check_parameters(name: str, settings: QuestionSettings) -> None:
    """Refuse a parameter that is missing, out of range, or without effect."""
    ranked, cut = name.endswith("gumbel"), name in ("unknown_laplace", "unknown_gumbel")
    _need(settings.k, "k", ranked, name, optional=True)
    _need(settings.max_candidates, "max_candidates", cut, name)
    k, most = settings.k, settings.max_candidates
    if most is not None and most > LARGEST_MAX_CANDIDATES:
        raise SettingsError(f"max_candidates: at most {LARGEST_MAX_CANDIDATES}")
    if ranked and k is not None and most is not None and k > most:
        raise SettingsError(f"k: {k} is above max_candidates = {most}")
    if not ranked and not settings.with_counts:
        raise SettingsError(f"with_counts: {name} always releases counts")
    if name != "unknown_gumbel" and not settings.optimise_threshold:
        raise SettingsError(f"optimise_threshold: {name} has no such step")


def _need(value: int | None, key: str, needed: bool, name: str, optional: bool = False) -> None:
    """Refuse a parameter that is missing where it matters, or given where it would be ignored."""
    if needed and value is None:
        raise SettingsError(f"{key}: missing; {name} needs it")
    if not needed and value is not None and not optional:
        raise SettingsError(f"{key}: {name} does not use it; leave it out")


def _cohorts(
    settings: QuestionSettings, dataset: DatasetSettings
) -> tuple[tuple[str, ...], int | None]:
    """List the public cohorts, and say in how many of them one user may be counted."""
    lists, per_user = [], 1
    bounded = dataset.table.privacy_unit == "user"
    for name in sorted(settings.cohorts):
        column = dataset.column(name, "cohort", "cohorts")
        assert column.domain != "unknown"  # Column checks it
        lists.append([str(value) for value in column.domain])
        if column.max_per_user is None:
            bounded = False
        else:
            per_user *= column.max_per_user
    if not lists:
        return (ALL,), None
    if math.prod(map(len, lists)) > LARGEST_COHORTS:
        raise SettingsError(f"cohorts: more than {LARGEST_COHORTS} of them")
    cohorts = tuple(sorted(COHORT_SEPARATOR.join(parts) for parts in itertools.product(*lists)))
    return cohorts, min(per_user, len(cohorts)) if bounded else None
