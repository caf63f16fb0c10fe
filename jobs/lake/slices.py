"""Privacy blocks of a dataset: slices of its days, each with one budget for everybody, for good.

A block is what came in during so many days, counted from 1 January 1970. A release takes what it
can cost at most from each block that its window touches, in the entry that takes it from the
analyst's account.
"""

from collections.abc import Sequence
from datetime import date, timedelta

from dp_udfs import curves
from dp_udfs.budget import RenyiCurve
from dp_udfs.errors import SettingsError
from jobs.lake.block_settings import BlockSettings
from jobs.lake.budgets import Block
from jobs.lake.decisions import BlockOpening
from jobs.lake.ledger import Ledger
from jobs.lake.questions import Question
from jobs.lake.settings import DatasetSettings

FIRST_DAY = date(1970, 1, 1)
MOST_BLOCKS = 1000  # of one question; an entry of the ledger names them all


def openings(question: Question) -> list[BlockOpening]:
    """List the blocks that a question's window touches, as they are opened; none where not set.

    Raises
    ------
    SettingsError
        If there are too many.

    Notes
    -----
    Privacy: a person with rows in some blocks loses at most the sum of their capacities, to all
    analysts and models together: a claim that reads any of the person's rows is paid in full on at
    least one of these blocks, and what it pays bounds what it tells of all the person's rows.
    The deltas of calls come on top: `dp_udfs.curves.guarantee_over_blocks`.
    """
    return openings_of(question.dataset, question.account, question.start, question.end)


def openings_of(
    dataset: DatasetSettings, account: str, start: date, end: date
) -> list[BlockOpening]:
    """List the blocks that a stretch of days touches, as `openings` does."""
    blocks = dataset.blocks
    if blocks is None:
        return []
    first = (start - FIRST_DAY).days // blocks.days
    last = (end - FIRST_DAY - timedelta(days=1)).days // blocks.days
    if last - first >= MOST_BLOCKS:
        raise SettingsError(
            f"question: window: touches {last - first + 1} privacy blocks of {blocks.days} days, "
            f"more than {MOST_BLOCKS}; ask for fewer days"
        )
    capacity = _capacity(dataset, blocks)
    return [
        _opening(dataset, account, blocks, number, capacity) for number in range(first, last + 1)
    ]


def open_blocks(ledger: Ledger, dataset: DatasetSettings, asked: Sequence[BlockOpening]) -> None:
    """Open blocks that are not open yet, and before the first of them their queue.

    Raises
    ------
    SettingsError
        If the table has blocks of other days or numbers, or served otherwise, in the ledger.
    """
    if dataset.blocks and dataset.blocks.queue and asked:
        ledger.open_queue(asked[0].dataset, dataset.blocks.queue.read())
    ledger.open_blocks(asked)


def demands(question: Question) -> dict[str, RenyiCurve]:
    """Say what a question takes of each block: its reserve, whatever it will have cost."""
    opened = openings(question)
    if not opened:
        return {}
    mechanism = question.mechanism
    loss = curves.units_curve(
        question.reserve.units,
        mechanism.epsilon,
        opened[0].alphas,
        gaussian=mechanism.name == "fixed_gaussian",
    )
    demand = RenyiCurve.demand(loss)
    return {block.block_id: demand for block in opened}


def require_settings(question: Question, opened: Sequence[Block]) -> None:
    """Refuse a dataset file without blocks for a table that has some: none may go round them.

    Raises
    ------
    SettingsError
        If such blocks are open; a second file over the same table must state them too.
    """
    dataset = question.dataset
    if dataset.blocks is None and any("days" in block.details for block in opened):
        raise SettingsError(
            f"dataset {dataset.name}: blocks: missing, but its table has privacy blocks in the "
            f"ledger, which bound what everybody learns from it; write them into this file too"
        )


def _capacity(dataset: DatasetSettings, blocks: BlockSettings) -> RenyiCurve:
    """Make a block's capacity; of a region with shares, its share of it."""
    whole = RenyiCurve.capacity(curves.block_capacity(blocks.epsilon, blocks.delta, blocks.alphas))
    if dataset.regions is None:
        return whole
    return RenyiCurve(
        tuple(dataset.regions.share_of(dataset.region, value) for value in whole.nano)
    )


def _opening(
    dataset: DatasetSettings, account: str, blocks: BlockSettings, number: int, capacity: RenyiCurve
) -> BlockOpening:
    start = FIRST_DAY + timedelta(days=number * blocks.days)
    shared = f"@{dataset.region}" if dataset.regions else ""
    return BlockOpening(
        block_id=f"{account}:{start}+{blocks.days}{shared}",
        dataset=account,
        capacity=capacity,
        alphas=blocks.alphas,
        mode=blocks.mode,
        details={
            "days": blocks.days,
            "from": start.isoformat(),
            "to": (start + timedelta(days=blocks.days)).isoformat(),
            "epsilon": blocks.epsilon,
            "delta": blocks.delta,
        },
    )
