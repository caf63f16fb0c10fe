"""Why a demand is refused: what is short, what it has, what was asked, and what used it up.

An analyst reads of their own claims what each is charged. What others took of a block is one sum,
and of reserves: those tell nothing about answers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dp_udfs.budget import NOTHING, Loss, RenyiCurve
from dp_udfs.errors import BudgetExhaustedError
from jobs.lake.allocations import Allocation
from jobs.lake.budgets import PURE, Account, Block, Mode

NAMED = 3  # claims that a message names, the largest first; and places that are short

Spenders = Callable[[str, str], Sequence[Allocation]]  # the claims of an analyst on a dataset


@dataclass(frozen=True)
class ShortAccount:
    """An account with less left than is asked."""

    account: Account
    error: BudgetExhaustedError  # says what was asked and what is left

    @property
    def mode(self) -> Mode:
        """Whether being short matters."""
        return self.account.mode

    def explain(self, claims: Iterable[Allocation], name: str | None) -> BudgetExhaustedError:
        """Say whose it is, what used it up and when there is more."""
        account = self.account
        spent = [c for c in claims if c.account_key == account.key and c.charge != NOTHING]
        spent.sort(key=lambda claim: (claim.units, claim.calls), reverse=True)
        used_by = [_named(claim, str(claim.charge)) for claim in spent]
        end = account.period_end
        resets = f"on {end} ({account.zone})" if end else "when the next period is opened"
        return type(self.error)(
            f"{account.analyst} on {name or account.dataset}, period {account.period_start}: "
            f"{self.error}{_used_by(used_by)}; resets {resets}",
            **self.error.facts,
            analyst=account.analyst,
            dataset=account.dataset,
            capacity=account.filter.capacity,
            period_start=account.period_start,
            resets_at=end,
            used_by=tuple(used_by),
        )

    def __str__(self) -> str:
        return str(self.error)


@dataclass(frozen=True)
class ShortBlock:
    """A block with less left than is asked, at every order."""

    block: Block
    demand: RenyiCurve

    @property
    def mode(self) -> Mode:
        """Whether being short matters."""
        return self.block.mode

    def explain(self, claims: Iterable[Allocation], name: str | None) -> BudgetExhaustedError:
        """Say which block it is and what used it up."""
        block = self.block
        taken = [(claim, claim.taken_of(block.block_id)) for claim in claims]
        own = [(claim, curve) for claim, curve in taken if curve is not None]
        own.sort(key=lambda pair: pair[1].nano, reverse=True)
        used_by = [_named(claim, str(curve)) for claim, curve in own]
        others = block.filter.used
        for _, curve in own:
            others = others - curve
        if any(others.nano):
            used_by.append(f"others ({others})")
        return BudgetExhaustedError(
            f"{self}{_used_by(used_by)}; dataset {name or block.dataset}, for good: ask for less, "
            f"or for other blocks",
            block_id=block.block_id,
            dataset=block.dataset,
            demand=self.demand,
            left=block.filter.left,
            capacity=block.filter.capacity,
            used_by=tuple(used_by),
        )

    def __str__(self) -> str:
        block = self.block
        orders = "" if block.alphas == (PURE,) else f" at alpha ({', '.join(block.alphas)})"
        return (
            f"block {block.block_id}: asked for epsilon {self.demand}, left {block.filter.left} "
            f"of {block.filter.capacity}{orders}"
        )


Shortage = ShortAccount | ShortBlock


def shortages(
    account: Account | None, loss: Loss, blocks: Iterable[tuple[Block, RenyiCurve]]
) -> list[Shortage]:
    """Find what has less left than is asked of it: nothing is taken from anything then."""
    short: list[Shortage] = []
    if account is not None:
        try:
            account.filter.admit(loss)
        except BudgetExhaustedError as error:
            short.append(ShortAccount(account, error))
    return short + [
        ShortBlock(block, demand) for block, demand in blocks if not block.filter.admits(demand)
    ]


def explain(
    short: Sequence[Shortage], analyst: str, spenders: Spenders, details: Mapping[str, Any]
) -> BudgetExhaustedError:
    """Make one refusal of all that is short; its kind and facts are those of the first."""
    enforced = [each for each in short if each.mode != "track"]
    name = details.get("dataset_name")
    explained = []
    for each in enforced[:NAMED]:
        owner = each.account if isinstance(each, ShortAccount) else each.block
        claims = spenders(analyst, owner.dataset) if analyst else ()
        explained.append(each.explain(claims, name))
    if len(explained) == 1:
        return explained[0]
    first = explained[0]
    return type(first)(_joined(explained, len(enforced)), **first.facts)


def note(short: Sequence[Shortage]) -> str | None:
    """Say what mode "track" let pass; None where nothing was short."""
    return f"would have been refused: {_joined(short[:NAMED], len(short))}" if short else None


def _joined(said: Sequence[object], short: int) -> str:
    """Put what is said of the first few places on one line, and how many more are short."""
    more = [f"{short - len(said)} more are short"] if short > len(said) else []
    return "; and ".join([*map(str, said), *more])


def _named(claim: Allocation, amount: str) -> str:
    return f"{claim.run_id} ({amount}{', open' if claim.is_open else ''})"


def _used_by(named: Sequence[str]) -> str:
    if not named:
        return ""
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return f", used by {', '.join(named[:NAMED])}{more}"
