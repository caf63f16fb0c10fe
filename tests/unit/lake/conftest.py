"""A ledger in which one analyst has an account for the month."""

from pathlib import Path

import pytest

from jobs.lake.ledger import Ledger
from tests.ledgers import DECEMBER, FILMS, NOVEMBER, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Ledger:
    opened = Ledger(tmp_path / "ledger", clock=clock)
    opened.open_account("research", FILMS, NOVEMBER, 100, 10, period_end=DECEMBER)
    return opened
