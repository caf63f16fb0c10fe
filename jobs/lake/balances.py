"""What the entries add up to: accounts, blocks and claims, folded one by one. No storage, no clock.

The fold is the only place that says what an entry means. The same entries always give the same
balances, whoever folds them, and an entry that cannot follow the ones before it is an error.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, NamedTuple

from dp_udfs.budget import NOTHING, Loss
from jobs.lake.allocations import Allocation, advance, broken, loss_of, said
from jobs.lake.budgets import Account, Block
from jobs.lake.entries import GENESIS, SCHEMA_VERSION, Entry
from jobs.lake.periods import day_in


class Head(NamedTuple):
    """Where the chain of one region ends."""

    entry_no: int
    hash: str
    recorded_at: datetime


class Transfer(NamedTuple):
    """Part of a share on its way to another region: what was sent and is not yet received."""

    sender: str
    receiver: str
    account_key: tuple[str, str, date]
    loss: Loss


@dataclass(frozen=True)
class BlockQueue:
    """The queue of one region for the blocks that it opens on a dataset.

    Attributes
    ----------
    policy : mapping
        As `jobs.lake.policies` writes it.
    at : datetime
        Up to when everything is decided.
    """

    region: str
    dataset: str
    policy: Mapping[str, Any]
    at: datetime

    @property
    def key(self) -> tuple[str, str]:
        """Whose it is, on what."""
        return self.region, self.dataset


@dataclass(frozen=True)
class UserCount:
    """What one region knows of the number of users of a dataset: noisy sums and a lower bound.

    Attributes
    ----------
    terms : mapping
        Of the counter; they never change.
    sums : tuple of int
        The noisy sum of each period so far.
    bound : int
        So many users exist, as sure as the terms say.
    """

    region: str
    dataset: str
    terms: Mapping[str, Any]
    sums: tuple[int, ...] = ()
    bound: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Who counted, and what."""
        return self.region, self.dataset


@dataclass
class Balances:
    """The fold so far. `apply` moves it on by one entry.

    The same entries of several regions give the same balances in any order that keeps each entry
    behind those that it depends on: `jobs.lake.merging` says why.
    """

    heads: dict[str, Head] = field(default_factory=dict)
    accounts: dict[tuple[str, str], dict[date, Account]] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    queues: dict[tuple[str, str], BlockQueue] = field(default_factory=dict)  # by region and dataset
    counts: dict[tuple[str, str], UserCount] = field(default_factory=dict)
    claims: dict[tuple[str, str], Allocation] = field(default_factory=dict)  # by region and run
    transfers: dict[str, Transfer] = field(default_factory=dict)  # on their way, by the debit's id
    refused: set[tuple[str, str, Loss, str | None]] = field(default_factory=set)
    here: str = field(default="", compare=False)  # the region that looks at them

    def apply(self, entry: Entry) -> None:
        """Fold one more entry.

        Raises
        ------
        LedgerConflictError
            If the entry breaks the chain, or says what cannot follow from the ones before it.
        """
        self._link(entry)
        if entry.kind in ("carry", "restore"):
            pass  # says again what the entries before it say, or that they are complete
        elif entry.kind in ("open_account", "override"):
            self._open(entry)
        elif entry.kind == "open_block":
            self._open_block(entry)
        elif entry.kind == "retire_block":
            self._retire_block(entry)
        elif entry.kind == "open_queue":
            self._open_queue(entry)
        elif entry.kind == "unlock":
            queue = self.queues[entry.region, said(entry.dataset)]
            self.queues[queue.key] = replace(queue, at=entry.recorded_at)
        elif entry.kind == "count_users":
            self._count_users(entry)
        elif entry.kind == "refuse":
            asked = said(entry.run_id), said(entry.fingerprint), loss_of(entry), entry.blocks
            self.refused.add(asked)
        elif entry.kind in ("debit", "credit"):
            self._transfer(entry)
        else:
            self._move_claim(entry)

    def copy(self) -> "Balances":
        """Return balances that can move on without these."""
        accounts = {key: dict(of_analyst) for key, of_analyst in self.accounts.items()}
        return Balances(
            dict(self.heads),
            accounts,
            dict(self.blocks),
            dict(self.queues),
            dict(self.counts),
            dict(self.claims),
            dict(self.transfers),
            set(self.refused),
            self.here,
        )

    def accounts_of(self, analyst: str, dataset: str) -> dict[date, Account]:
        """Find the accounts of an analyst by their first days, as they may be spent from here."""
        return {
            start: account.seen_from(self.here)
            for start, account in self.accounts.get((analyst, dataset), {}).items()
            if not account.shares or self.here in account.opened_by or not self.here
        }

    def account_on(self, analyst: str, dataset: str, moment: datetime | date) -> Account | None:
        """Find the account whose period holds a moment, as its own time zone has it."""
        of_analyst = self.accounts_of(analyst, dataset)
        for start in sorted(of_analyst, reverse=True):
            account = of_analyst[start]
            day = day_in(account.zone, moment) if isinstance(moment, datetime) else moment
            if start <= day:
                return account if account.covers(day) else None
        return None

    def open_claims(self, account: Account) -> tuple[Allocation, ...]:
        """List the claims of an account that are neither settled, expired nor given back."""
        return tuple(
            claim
            for claim in self.claims.values()
            if claim.is_open and claim.account_key == account.key
        )

    def waiting_in(self, queue: BlockQueue) -> list[Allocation]:
        """List the claims that wait in a queue, first come first."""
        waiting = [
            claim
            for claim in self.claims.values()
            if claim.state == "waiting" and (claim.region, claim.dataset) == queue.key
        ]
        return sorted(waiting, key=lambda claim: claim.ticket.number if claim.ticket else 0)

    def blocks_of(self, queue: BlockQueue) -> list[Block]:
        """List the blocks that a queue serves."""
        blocks = self.blocks.values()
        return [block for block in blocks if (block.queue, block.dataset) == queue.key]

    def _link(self, entry: Entry) -> None:
        if entry.schema_version > SCHEMA_VERSION:
            raise broken(entry, "was written by a newer version of this program; update it")
        head = self.heads.get(entry.region)
        if head is None:
            follows = (entry.entry_no, entry.previous_hash) == (1, GENESIS)
        else:
            follows = (entry.entry_no, entry.previous_hash) == (head.entry_no + 1, head.hash)
        if not follows:
            raise broken(entry, "does not follow the entry before it: the chain is broken")
        if head and entry.recorded_at < head.recorded_at:
            raise broken(entry, "is dated before the entry before it")
        self.heads[entry.region] = Head(entry.entry_no, entry.hash, entry.recorded_at)

    def _open(self, entry: Entry) -> None:
        key = said(entry.analyst), said(entry.dataset)
        start = said(entry.period_start)
        of_analyst = self.accounts.setdefault(key, {})
        known = of_analyst.get(start)
        opens = entry.kind == "open_account"
        if (not opens and not known) or (opens and known and entry.region in known.opened_by):
            raise broken(entry, "opens what is open, or overrides what is not")
        if not opens:
            of_analyst[start] = said(known).overridden(entry)
        else:
            account = Account.opened(entry)
            of_analyst[start] = known.joined(account) if known else account

    def _open_block(self, entry: Entry) -> None:
        block = Block.opened(entry)
        known = self.blocks.get(block.block_id)
        if known and (entry.region in known.opened_by or known.alphas != block.alphas):
            raise broken(entry, "opens a block that is open")
        self.blocks[block.block_id] = known.joined(block) if known else block

    def _retire_block(self, entry: Entry) -> None:
        block_id = json.loads(said(entry.details))["block"]
        block = self.blocks.get(block_id)
        if block is None:
            raise broken(entry, "retires a block that was never opened")
        self.blocks[block_id] = replace(block, retired=True)

    def _open_queue(self, entry: Entry) -> None:
        policy = json.loads(said(entry.details))["policy"]
        queue = BlockQueue(entry.region, said(entry.dataset), policy, entry.recorded_at)
        if queue.key in self.queues:
            raise broken(entry, "opens a queue that is open")
        self.queues[queue.key] = queue

    def _count_users(self, entry: Entry) -> None:
        told = json.loads(said(entry.details))
        key = entry.region, said(entry.dataset)
        before = self.counts.get(key) or UserCount(*key, told["terms"])
        fits = told["period"] == len(before.sums) + 1 and told["terms"] == before.terms
        if not fits or told["bound"] < before.bound:
            raise broken(entry, "counts a period out of turn, on other terms, or fewer users")
        sums = (*before.sums, told["sum"])
        self.counts[key] = replace(before, sums=sums, bound=told["bound"])

    def _transfer(self, entry: Entry) -> None:
        """Take what a debit sends out of a share; put what a credit receives into another."""
        key = said(entry.analyst), said(entry.dataset), said(entry.period_start)
        account, loss = self._account(entry, key), loss_of(entry)
        share = account.shares.get(entry.region)
        if share is None:
            raise broken(entry, "is about a share that was never opened")
        if entry.kind == "debit":
            if not share.filter.left.covers(loss):
                raise broken(entry, "sends more than is left of the share")
            receiver = json.loads(said(entry.details))["to"]
            self.transfers[entry.entry_id] = Transfer(entry.region, receiver, key, loss)
            capacity = share.filter.capacity - loss
        else:
            sent = self.transfers.pop(said(entry.claim_id), None)
            if sent is None or sent[1:] != (entry.region, key, loss):
                raise broken(entry, "receives what was not sent to it")
            capacity = share.filter.capacity + loss
        self._put(account.with_capacity(entry.region, capacity))

    def _move_claim(self, entry: Entry) -> None:
        key = entry.region, said(entry.run_id)
        before = self.claims.get(key)
        after = advance(before, entry)
        if after.period_start is not None:
            account = self._account(entry, (after.analyst, after.dataset, after.period_start))
            used = account.seen_from(entry.region).filter.used + after.charge
            used -= before.charge if before else NOTHING
            self._put(account.with_used(entry.region, used))
        elif after.charge != NOTHING:
            raise broken(entry, "names no period to charge")
        self._charge_blocks(entry, before, after)
        if after.ticket:
            self._move_queue(entry, after)
        self.claims[key] = after

    def _move_queue(self, entry: Entry, claim: Allocation) -> None:
        """Note up to when a queue has decided, and who entered it."""
        queue = self.queues.get((entry.region, claim.dataset))
        if queue is None:
            raise broken(entry, "waits in a queue that was never opened")
        if entry.kind != "release":  # which moves nothing, and asks the queue nothing
            self.queues[queue.key] = replace(queue, at=entry.recorded_at)
        if entry.kind == "submit" and claim.ticket:
            for block_id in claim.ticket.chosen or claim.blocks:
                block = self._block(entry, block_id)
                self.blocks[block_id] = replace(block, arrivals=block.arrivals + 1)

    def _account(self, entry: Entry, key: tuple[str, str, date]) -> Account:
        account = self.accounts.get(key[:2], {}).get(key[2])
        if account is None:
            raise broken(entry, "names an account that was never opened")
        return account

    def _put(self, account: Account) -> None:
        self.accounts[account.analyst, account.dataset][account.period_start] = account

    def _charge_blocks(self, entry: Entry, before: Allocation | None, after: Allocation) -> None:
        for sign, claim in ((-1, before), (1, after)):
            for part, curves in claim.held if claim else ():
                for block_id, curve in curves.items():
                    block = self._block(entry, block_id)
                    self.blocks[block_id] = block.moved(part, curve, sign)

    def _block(self, entry: Entry, block_id: str) -> Block:
        block = self.blocks.get(block_id)
        if block is None:
            raise broken(entry, f"names block {block_id}, which was never opened")
        return block
