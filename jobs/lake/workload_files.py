"""Workloads for simulations in files: one block or claim a line, as JSON.

    {"block": "day 1", "created_at": 0, "capacity": 1.0}
    {"claim": "c1", "submitted_at": 0.5, "demand": {"day 1": 0.1}, "timeout": 300, "weight": 2}

A capacity and each demand is one number, or a list with one for each Rényi order. A claim may say
`any_of`, how many of its blocks it needs. Blocks stand before the claims that name them; times are
in any unit, and may go back from line to line. Empty lines are skipped.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from dp_udfs.errors import SettingsError
from dp_udfs.scheduling import BlockSpec, ClaimSpec
from dp_udfs.workloads import Workload
from jobs.lake.toml_files import PositiveInt, Table, Text, build


def _number(value: object) -> float:
    """Take a JSON number as it is: whole ones stay exact."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        raise ValueError(f"must be a number from -{LARGEST:g} to {LARGEST:g}")
    return value


def _numbers(value: object) -> tuple[float, ...]:
    """Take one number, or one for each order."""
    numbers = tuple(map(_number, value if isinstance(value, list) else [value]))
    if not numbers or max(numbers) <= 0:
        raise ValueError("must be positive, at one order at least")
    return numbers


def _not_negative(numbers: tuple[float, ...]) -> tuple[float, ...]:
    if min(numbers) < 0:
        raise ValueError("must not be negative at any order")
    return numbers


LARGEST = 1e12
Number = Annotated[float, PlainValidator(_number)]
Capacity = Annotated[tuple[float, ...], PlainValidator(_numbers)]
Demand = Annotated[Capacity, AfterValidator(_not_negative)]


class BlockLine(Table):
    """A line about a block; orders whose capacity is not positive are never used."""

    block: Text
    created_at: Number
    capacity: Capacity


class ClaimLine(Table):
    """A line about a claim."""

    claim: Text
    submitted_at: Number
    demand: Annotated[dict[Text, Demand], Field(min_length=1)]
    timeout: Annotated[Number, Field(ge=0)] | None = None
    weight: Annotated[Number, Field(gt=0)] = 1.0
    any_of: PositiveInt | None = None

    @model_validator(mode="after")
    def _enough_blocks(self) -> "ClaimLine":
        if self.any_of is not None and self.any_of > len(self.demand):
            raise ValueError(f"'any_of' is {self.any_of} of {len(self.demand)} blocks: too few")
        return self


def read_workload(path: Path) -> Workload:
    """Read a workload.

    Raises
    ------
    SettingsError
        If the file cannot be used; the message names line and key.
    """
    blocks: dict[str, BlockSpec] = {}
    claims: dict[str, ClaimSpec] = {}
    orders = 0
    for where, content in _lines(path):
        if "block" in content:
            block = build(where, BlockLine, content)
            _check_new(where, "block", block.block, blocks)
            blocks[block.block] = BlockSpec(block.block, block.created_at, block.capacity)
            curves = {block.block: block.capacity}
            orders = orders or len(block.capacity)
        else:
            claim = build(where, ClaimLine, content)
            _check_new(where, "claim", claim.claim, claims)
            _check_known(where, claim, blocks)
            claims[claim.claim] = ClaimSpec(
                claim.claim,
                claim.submitted_at,
                claim.demand,
                claim.timeout,
                claim.weight,
                claim.any_of,
            )
            curves = claim.demand
        for block_id, curve in curves.items():
            if len(curve) != orders:
                raise SettingsError(
                    f"{where}: {len(curve)} numbers on block {block_id}, where the first block has "
                    f"{orders}: give one for each order everywhere"
                )
    if not claims:
        raise SettingsError(f"{path}: has no line about a claim")
    return _workload(list(blocks.values()), list(claims.values()))


def _workload(blocks: list[BlockSpec], claims: list[ClaimSpec]) -> Workload:
    """Add the mean gap, and numbers of claims to share a block among up to the most there are."""
    times = [float(claim.submitted_at) for claim in claims]
    gap = (max(times) - min(times)) / max(1, len(times) - 1)
    arrivals = Counter(block_id for claim in claims for block_id in claim.demand)
    most = max(arrivals.values())
    ns = [factor * 10**digits for digits in range(len(str(most))) for factor in (1, 2, 5)]
    return Workload(blocks, claims, gap or 1.0, tuple(n for n in ns if n <= 2 * most))


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        raise SettingsError(f"{path}: cannot be read: {reason}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            content = json.loads(line, object_pairs_hook=_once, parse_constant=_no_number)
        except ValueError as error:
            raise SettingsError(f"{where}: {error}") from None
        if not isinstance(content, dict):
            raise SettingsError(f"{where}: must be an object, {{...}}")
        yield where, content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands there twice")
    return content


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def _check_new(where: str, kind: str, name: str, known: dict[str, Any]) -> None:
    if name in known:
        raise SettingsError(f"{where}: {kind} {name} stands in an earlier line, too")


def _check_known(where: str, claim: ClaimLine, blocks: dict[str, BlockSpec]) -> None:
    for block_id in claim.demand:
        if block_id not in blocks:
            raise SettingsError(f"{where}: no earlier line has the block {block_id}")
