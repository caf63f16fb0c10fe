"""What a queue decides: its scheduler, made anew from the balances and brought up to now.

Whoever adds to the ledger what a queue has to know of (a claim, budget given back) lets it decide
all that is due in the same commit. So between commits the queue has nothing left to do but what
time brings, and a process that dies has either added both or neither. Each event has its pass, and
what time has brought is decided as of when it was due, however late anybody looks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from dp_udfs.amounts import Curve as Amounts
from dp_udfs.blocks import Parts
from dp_udfs.budget import NOTHING, Loss, RenyiCurve
from dp_udfs.claims import Claim, ClaimState
from dp_udfs.errors import BudgetExhaustedError
from dp_udfs.policies import DPack, DpfByArrivals, FirstComeFirstServed, Optimal
from dp_udfs.resumption import BlockRecord, ClaimRecord, ResumedScheduler
from dp_udfs.scheduler import Decision, Shortage
from jobs.lake import policies
from jobs.lake.allocations import Allocation
from jobs.lake.balances import Balances, BlockQueue
from jobs.lake.budgets import Account, Block, write_curves
from jobs.lake.entries import Entry, Fact, Kind, canonical
from jobs.lake.policies import microseconds

ROUNDS = 32  # of a policy that packs: so many in vain are written down

_KINDS: Mapping[str, Kind] = {
    ClaimState.ALLOCATED: "allocate",
    ClaimState.REJECTED: "reject",
    ClaimState.TIMED_OUT: "time_out",
    ClaimState.CANCELLED: "cancel",
}


@dataclass(frozen=True)
class Waiting:
    """How a claim is to wait: for how long, with what weight, for how many of its blocks.

    The weight is written as a fraction, as `str` does.
    """

    timeout: timedelta | None = None
    weight: str = "1"
    any_of: int | None = None


class Round:
    """A queue brought up to now, and what it decides.

    Parameters
    ----------
    balances : Balances
        All that is known; nothing of it is changed.
    queue : BlockQueue
        One of this region.
    now : datetime
        Until when to decide.
    """

    def __init__(self, balances: Balances, queue: BlockQueue, now: datetime) -> None:
        self._balances = balances
        self._queue = queue
        self._now = now
        self._at = microseconds(max(now, queue.at))
        self._claims = {claim.run_id: claim for claim in balances.waiting_in(queue)}
        self._accounts: dict[str, Account] = {}
        self._reserved: dict[tuple[Any, ...], Loss] = {}
        self._objected: set[str] = set()
        self._told = 0
        self._scheduler = ResumedScheduler(policies.read(queue.policy), objection=self._objection)
        blocks = balances.blocks_of(queue)
        known = {block.block_id for block in blocks}
        lost = [claim for claim in self._claims.values() if not known.issuperset(claim.blocks)]
        waiting = [claim for claim in self._claims.values() if known.issuperset(claim.blocks)]
        self._lost = [self._reject_lost(claim, known) for claim in lost]
        self._scheduler.resume(
            map(_block_record, blocks), map(_claim_record, waiting), microseconds(queue.at)
        )
        self._scheduler.go_to(self._at)

    def decided(self) -> list[Fact]:
        """Write down what was decided since the last call."""
        decisions = self._scheduler.decisions[self._told :]
        self._told += len(decisions)
        lost, self._lost = self._lost, []
        return lost + [self._fact(decision) for decision in decisions]

    def note(self) -> list[Fact]:
        """Note that so many rounds served nobody, so that nobody has to hold them again."""
        policy = self._scheduler.policy
        if not self._claims or not isinstance(policy, DPack | Optimal):
            return []
        rounds = policy.step_at(microseconds(self._queue.at), self._at)
        return [Fact(kind="unlock", dataset=self._queue.dataset)] if rounds >= ROUNDS else []

    def submit(self, claim: Allocation, terms: Waiting) -> list[Fact]:
        """Let a new claim in; or reject it at once, if it can never be served.

        Raises
        ------
        InvalidParameterError
            If its amounts or terms make no sense.
        """
        before = self.decided()
        self._claims[claim.run_id] = claim
        entered = self._scheduler.submit(
            claim.run_id,
            {block_id: curve.nano for block_id, curve in claim.blocks.items()},
            self._at,
            timeout=None if terms.timeout is None else terms.timeout // timedelta(microseconds=1),
            weight=Fraction(terms.weight),
            any_of=terms.any_of,
        )
        queue = _said_of_queue(claim, terms, entered)
        details = {**claim.details, "queue": queue} if queue else claim.details
        told = _columns(claim) | {"details": canonical(details)}
        decided = self._scheduler.decisions[self._told :]
        if (
            decided
            and decided[0].claim_id == claim.run_id
            and decided[0].state == ClaimState.REJECTED
            and claim.run_id not in self._objected
        ):
            self._told += 1
            rejected = claim.fact("reject", reason=entered.reason, **told)
            return [*before, rejected, *self.decided()]
        return [*before, claim.fact("submit", **told), *self.decided()]

    def around(self, claim: Allocation, facts: Sequence[Fact]) -> list[Fact]:
        """Put what is decided before and after around facts on a claim that was granted."""
        before = self.decided()
        for fact in facts:
            if fact.kind == "give_back":
                self._scheduler.free(_nano(claim.left), self._at)
            elif fact.kind in ("settle", "expire"):
                self._scheduler.use(_nano(claim.left), self._at)
        return [*before, *facts, *self.decided()]

    def consume(self, amounts: Mapping[str, RenyiCurve], facts: Sequence[Fact]) -> list[Fact]:
        """Put what is decided before and after around a part that a claim consumes."""
        before = self.decided()
        self._scheduler.use(_nano(amounts), self._at)
        return [*before, *facts, *self.decided()]

    def cancel(self, claim: Allocation, reason: str) -> list[Fact]:
        """Let a claim wait no longer; unless by now it was decided."""
        before = self.decided()
        if self._scheduler.claims[claim.run_id].state is not ClaimState.WAITING:
            return before
        self._scheduler.cancel(claim.run_id, self._at)
        self._told += 1
        return [*before, claim.fact("cancel", reason=reason)]

    def retire(self, block_id: str, facts: Sequence[Fact]) -> list[Fact]:
        """Put what is decided before and after around the retirement of a block."""
        before = self.decided()
        self._scheduler.retire_block(block_id, self._at)
        return [*before, *facts, *self.decided()]

    def shortages(self, run_id: str) -> list[Shortage]:
        """Say what a claim waits for."""
        return self._scheduler.shortages(run_id)

    def order(self) -> list[str]:
        """List the runs that wait, first to be served first."""
        return [claim.claim_id for claim in self._scheduler.waiting()]

    def parts(self) -> dict[str, Parts]:
        """Show the four parts of each block, as they are once what is due is decided."""
        self._scheduler.refresh()
        return {name: block.budget() for name, block in self._scheduler.blocks.items()}

    def _objection(self, granted: Claim) -> str:
        problem = self._without_account(self._claims[granted.claim_id])
        if problem:
            self._objected.add(granted.claim_id)
        return problem

    def _without_account(self, claim: Allocation) -> str:
        """Reserve what a grant takes from an account; or say why it cannot be taken."""
        if claim.reserve == NOTHING:
            return ""
        account = self._balances.account_on(claim.analyst, claim.dataset, self._now)
        if account is None:
            return f"{claim.analyst} has no account when blocks have room"
        if claim.period_start not in (None, account.period_start):
            return f"the period from {claim.period_start} is over when blocks have room"
        reserved = self._reserved.get(account.key, NOTHING)
        try:
            account.filter.after(reserved).admit(claim.reserve)
        except BudgetExhaustedError as error:
            if account.mode != "track":
                return f"the account is used up when blocks have room: {error}"
        self._reserved[account.key] = reserved + claim.reserve
        self._accounts[claim.run_id] = account
        return ""

    def _fact(self, decision: Decision) -> Fact:
        claim = self._claims[decision.claim_id]
        scheduled = self._scheduler.claims[decision.claim_id]
        assert decision.at is not None
        at = policies.moment(int(decision.at))
        queue = {"queue": {"at": at.isoformat()}}
        if decision.state != ClaimState.ALLOCATED:
            reason = scheduled.reason or _ended(claim)
            details = canonical(queue)
            return claim.fact(_KINDS[decision.state], reason=reason, details=details)
        account = self._accounts.get(claim.run_id)
        blocks = {block.block_id: claim.blocks[block.block_id] for block in scheduled.blocks}
        told = _columns(claim) | {
            "blocks": write_curves(blocks),
            "reason": self._note(account, claim),
            "details": canonical({**claim.details, **queue}),
        }
        if account is not None:
            claim = replace(claim, period_start=account.period_start)
            told["period_end"] = account.period_end
        return claim.fact("allocate", **told)

    def _note(self, account: Account | None, claim: Allocation) -> str | None:
        """Say what mode "track" let pass of an account."""
        if account is None or account.filter.left.covers(claim.reserve):
            return None
        return f"would have been refused: {account} has less left than {claim.reserve}"

    def _reject_lost(self, claim: Allocation, known: set[str]) -> Fact:
        """Reject a claim on blocks that another region turned out to serve."""
        lost = next(block_id for block_id in claim.blocks if block_id not in known)
        return claim.fact("reject", reason=f"block {lost} is served in another region")


def is_ahead_of_queue(balances: Balances, granted: Entry) -> bool:
    """Whether a grant that is folded already took more of a block than was unlocked by then."""
    claim = balances.claims[granted.region, granted.run_id or ""]
    queue = balances.queues.get((claim.region, claim.dataset))
    ticket = claim.ticket
    if queue is None or ticket is None or ticket.decided_at is None:
        return False
    policy, at = policies.read(queue.policy), microseconds(ticket.decided_at)
    opening = policy.opening()
    for block in map(balances.blocks.__getitem__, claim.blocks):
        if isinstance(policy, FirstComeFirstServed):
            opened = opening.parts
        elif isinstance(policy, DpfByArrivals):
            opened = opening.opened(block.arrivals)
        else:
            opened = opening.opened(policy.step_at(_block_record(block).created_at, at))
        pairs = zip(block.filter.used.nano, block.filter.capacity.nano, strict=True)
        if not any(used * opening.parts <= total * opened for used, total in pairs if total > 0):
            return True
    return False


def _columns(claim: Allocation) -> dict[str, Any]:
    return {
        "units": claim.units,
        "calls": claim.calls,
        "blocks": write_curves(claim.blocks),
    }


def _said_of_queue(claim: Allocation, terms: Waiting, entered: Claim) -> dict[str, Any]:
    """Write down the terms on which a claim waits, as far as they are not the usual ones."""
    said: dict[str, Any] = {}
    if terms.timeout is not None:
        said["until"] = (claim.recorded_at + terms.timeout).isoformat()
    if entered.weight != 1:
        said["weight"] = str(entered.weight)
    if terms.any_of is not None:
        said["any_of"] = terms.any_of
        if entered.needs == len(entered.blocks):
            said["chosen"] = [block.block_id for block in entered.blocks]
    return said


def _ended(claim: Allocation) -> str:
    ticket = claim.ticket
    if ticket is None or ticket.until is None:
        return "its time is over"
    waited = (ticket.until - ticket.submitted_at).total_seconds()
    return f"was not served within {waited:g} s"


def _block_record(block: Block) -> BlockRecord:
    assert block.opened_at is not None
    return BlockRecord(
        block.block_id,
        block.filter.capacity.nano,
        microseconds(block.opened_at),
        block.arrivals,
        block.filter.used.nano,
        block.filter.consumed.nano,
        block.retired,
    )


def _claim_record(claim: Allocation) -> ClaimRecord:
    ticket = claim.ticket
    assert ticket is not None
    names = ticket.chosen or tuple(claim.blocks)
    weight = Fraction(ticket.weight)
    return ClaimRecord(
        claim.run_id,
        microseconds(ticket.submitted_at),
        {block_id: claim.blocks[block_id].nano for block_id in names},
        ticket.any_of or len(names),
        microseconds(ticket.until) if ticket.until else None,
        int(weight) if weight.denominator == 1 else weight,
    )


def _nano(curves: Mapping[str, RenyiCurve]) -> dict[str, Amounts]:
    return {block_id: curve.nano for block_id, curve in curves.items()}
