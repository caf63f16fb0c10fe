"""Claim budget of privacy blocks for any job: wait for it, use it up, give the rest back.

    JOB="--dataset films --run-id train-7"
    DAYS="--from 2026-11-01 --to 2026-11-15"
    python -m jobs.claim_budget submit $JOB $DAYS --analyst research --epsilon 0.3 --wait 600
    python -m jobs.claim_budget consume $JOB --request-id epoch-1 --epsilon 0.1
    python -m jobs.claim_budget give-back $JOB --reason "converged early"

Exit code 0 of `submit` means: granted. Exit code 3: not yet, or not any more; while a claim waits,
run the same command again, now or tomorrow: it has kept its place. Consume before anything gets out
of the job: without an amount all that is left, and what was consumed never comes back. `cancel`
ends the waiting, `show` only looks. Every command may be repeated.
"""

import argparse
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from dp_udfs import curves
from dp_udfs.budget import RenyiCurve
from dp_udfs.errors import InvalidParameterError, SettingsError
from jobs.lake import accounts, claims, program, reports, slices
from jobs.lake.budgets import Block
from jobs.lake.ledger import Allocation, Ledger, utc_now
from jobs.lake.periods import day_in
from jobs.lake.settings import DatasetSettings, load_dataset, load_lake

LOOK_EVERY = 2.0  # seconds from one round to the next while a program waits

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wish:
    """What is asked of each block: a pure epsilon, a zCDP rho, or a value for each alpha."""

    epsilon: str | None = None
    rho: str | None = None
    loss: Sequence[str] | None = None

    def curve(self, alphas: Sequence[str]) -> RenyiCurve:
        """Return it as a curve on a block's orders, rounded up."""
        if self.epsilon is not None:
            return RenyiCurve.demand(curves.pure_curve(self.epsilon, alphas))
        if self.rho is not None:
            return RenyiCurve.demand(curves.zcdp_curve(self.rho, alphas))
        if self.loss is None:
            raise InvalidParameterError("give one of --epsilon, --rho and --loss")
        return RenyiCurve.demand(self.loss)


@dataclass(frozen=True)
class Desk:
    """Where a claim is dealt with: the options, the dataset, the ledger and the table's id."""

    options: argparse.Namespace
    dataset: DatasetSettings
    ledger: Ledger
    account: str

    def claim(self) -> Allocation:
        """Find the claim of the run."""
        claim = self.ledger.find(self.options.run_id)
        if claim is None:
            raise InvalidParameterError(
                f"--run-id {self.options.run_id}: has no claim; submit it first"
            )
        if claim.dataset != self.account:
            name = claim.details.get("dataset_name", claim.dataset)
            raise InvalidParameterError(
                f"--run-id {self.options.run_id}: is a claim on dataset {name}, "
                f"not on {self.dataset.name}"
            )
        return claim

    def need(self, name: str, why: str) -> str:
        """Read an option that the action cannot do without."""
        value = getattr(self.options, name)
        if not value:
            raise InvalidParameterError(f"--{name.replace('_', '-')} is missing: {why}")
        return str(value)

    def wish(self) -> Wish:
        """Read what is asked of each block."""
        loss = self.options.loss
        return Wish(self.options.epsilon, self.options.rho, loss and loss.split(","))


def main(options: argparse.Namespace) -> int:
    """Do one of the actions and print the claim."""
    lake = load_lake(options.conf)
    dataset = load_dataset(options.dataset, lake)
    ledger, account = claims.open_ledger(lake), accounts.account_of(lake, dataset)
    return ACTIONS[options.action](Desk(options, dataset, ledger, account))


def submit(desk: Desk) -> int:
    """Ask for budget, and wait for it as long as the caller likes."""
    options, ledger = desk.options, desk.ledger
    analyst = desk.need("analyst", "say who asks")
    desk.dataset.allowance(analyst)  # refuses names that are not declared
    chosen, wish = choose_blocks(desk), desk.wish()
    asked: dict[str, Any] = {
        "blocks": {block.block_id: wish.curve(block.alphas) for block in chosen},
        "analyst": analyst,
        "weight": options.weight,
        "any_of": options.any_of,
        "timeout": None if options.timeout is None else timedelta(seconds=options.timeout),
        "fingerprint": options.fingerprint,
        "details": {"dataset_name": desk.dataset.name},
    }
    if options.dry_run:
        check = ledger.check_budget(blocks=asked["blocks"])
        reports.show(options, [], {"fits": check.fits, "why": str(check.refusal or "")})
        return program.DONE if check.fits else program.REFUSED
    claim = waited(ledger, lambda: ledger.submit(options.run_id, **asked), options.wait)
    show(desk, claim)
    return program.DONE if claim.was_granted else program.REFUSED


def consume(desk: Desk) -> int:
    """Use a part of what the claim holds, or with no amount all that is left."""
    request_id = desk.need("request_id", "a repeat under it consumes nothing more")
    claim, wish, amounts = desk.claim(), desk.wish(), None
    if wish != Wish():
        alphas = {block.block_id: block.alphas for block in desk.ledger.blocks(desk.account)}
        named = desk.options.block or sorted(claim.blocks)
        amounts = {name: wish.curve(alphas.get(name, ("inf",))) for name in named}
    desk.ledger.consume(claim.run_id, amounts, request_id=request_id)
    show(desk, desk.claim())
    return program.DONE


def give_back(desk: Desk) -> int:
    """Return what the claim holds and provably did not use; others may be served by it."""
    desk.ledger.give_back(desk.claim().run_id, desk.need("reason", "it stands there for good"))
    show(desk, desk.claim())
    return program.DONE


def cancel(desk: Desk) -> int:
    """Wait no longer. A claim that was granted in the meantime is shown as such: give it back."""
    desk.ledger.cancel(desk.claim().run_id, desk.need("reason", "it stands there for good"))
    show(desk, desk.claim())
    return program.DONE


def show_claim(desk: Desk) -> int:
    """Show the claim as it stands; nothing is written."""
    show(desk, desk.claim())
    return program.DONE


ACTIONS: dict[str, Callable[[Desk], int]] = {
    "submit": submit,
    "consume": consume,
    "give-back": give_back,
    "cancel": cancel,
    "show": show_claim,
}


def choose_blocks(desk: Desk) -> list[Block]:
    """Resolve which blocks are meant, once and for all: named ones, or those of a window.

    Raises
    ------
    SettingsError
        If there is no such block, or the window is not over yet.
    """
    options = desk.options
    if bool(options.block) == bool(options.start or options.end):
        raise InvalidParameterError("give either --block, or --from and --to")
    names = options.block or _of_window(desk, options.start, options.end)
    if len(set(names)) < len(names):
        raise InvalidParameterError("--block: the same block is named twice")
    found = {block.block_id: block for block in desk.ledger.blocks(desk.account)}
    for name in names:
        if name not in found:
            raise SettingsError(
                f"dataset {desk.dataset.name} has no block {name} yet: the first submit or release "
                f"over its days opens it, or count_users if it is one of users"
            )
    return [found[name] for name in names]


def _of_window(desk: Desk, start: date | None, end: date | None) -> list[str]:
    """Open the blocks of days that are over."""
    dataset = desk.dataset
    if start is None or end is None or start >= end:
        raise InvalidParameterError("--from must be before --to ('to' is exclusive)")
    if end > day_in(dataset.table.time_zone, utc_now()):
        raise SettingsError(f"--to {end}: these days are not over yet")
    if dataset.blocks is None:
        raise SettingsError(f"dataset {dataset.name} has no [blocks] of days; name them: --block")
    asked = slices.openings_of(dataset, desk.account, start, end)
    if not desk.options.dry_run:
        slices.open_blocks(desk.ledger, dataset, asked)
    return [each.block_id for each in asked]


def waited(
    ledger: Ledger, ask: Callable[[], Allocation], patience: float, pause: float = LOOK_EVERY
) -> Allocation:
    """Ask until the claim is decided or patience ends; say on the way what it waits for.

    Asking again changes nothing but that the queue decides what is due: a round.
    """
    until = time.monotonic() + patience
    told = ""
    while True:
        claim = ask()
        why = ledger.why_not(claim)
        if claim.state != "waiting" or time.monotonic() >= until:
            return claim
        if str(why) != told:
            told = str(why)
            logger.info("%s", told)
        time.sleep(min(pause, max(0.0, until - time.monotonic())))


def show(desk: Desk, claim: Allocation) -> None:
    """Print a claim: its blocks as rows, and why it waits or was not served."""
    rows = [
        {
            "block": block_id,
            "asked": str(curve),
            "consumed": str(claim.consumed.get(block_id, curve.zero)),
        }
        for block_id, curve in sorted(claim.blocks.items())
    ]
    alphas = {block.block_id: block.alphas for block in desk.ledger.blocks(desk.account)}
    why = desk.ledger.why_not(claim)
    ticket = claim.ticket
    facts = {
        "run_id": claim.run_id,
        "analyst": claim.analyst,
        "state": claim.state,
        "alphas": next((alphas[name] for name in claim.blocks if name in alphas), None),
        **({"submitted_at": ticket.submitted_at} if ticket else {}),
        **({"decided_at": ticket.decided_at} if ticket and ticket.decided_at else {}),
        **({"why": str(why)} if why else {}),
    }
    reports.show(desk.options, rows, facts)


def _date(text: str) -> date:
    return date.fromisoformat(text)


if __name__ == "__main__":
    parser = program.parser(__doc__)
    parser.add_argument("action", choices=list(ACTIONS))
    parser.add_argument("--dataset", required=True, help="dataset file's name, without .toml")
    parser.add_argument("--run-id", required=True, help="your key for the claim")
    parser.add_argument("--analyst", help="of submit: who asks, declared in the dataset file")
    asked = parser.add_argument_group("of submit and consume: how much of each block")
    asked.add_argument("--epsilon", help="of a pure mechanism")
    asked.add_argument("--rho", help="of a zCDP mechanism: Gaussian noise has 1/(2 sigma^2)")
    asked.add_argument("--loss", metavar="A,B,...", help="one value for each alpha of the blocks")
    which = parser.add_argument_group("of submit: of which blocks")
    which.add_argument("--block", action="append", default=[], help="of consume too; repeatable")
    which.add_argument("--from", dest="start", type=_date, help="first day of the window")
    which.add_argument("--to", dest="end", type=_date, help="the day after its last")
    which.add_argument("--any-of", type=int, help="how many of them are needed (default: all)")
    terms = parser.add_argument_group("of submit: how to wait")
    terms.add_argument("--wait", type=float, default=0.0, help="seconds that this command waits")
    terms.add_argument("--timeout", type=float, help="seconds until the claim is given up")
    terms.add_argument("--weight", default="1", help="shares are divided by it")
    terms.add_argument("--fingerprint", default="", help="hash of what the claim is for")
    parser.add_argument("--request-id", help="of consume: your key for this part")
    parser.add_argument("--reason", help="of give-back and cancel")
    parser.add_argument("--dry-run", action="store_true", help="only say whether it would fit now")
    program.run(main, parser)
