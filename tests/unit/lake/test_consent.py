"""People who were purged are known by a hash that tells nothing to who has not the secret."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from dp_udfs import rng
from jobs.lake import consent
from jobs.lake.settings import DatasetSettings
from tests import lakes
from tests.conftest import TEST_SECRET

USERS = ["u1", "u2", "U1", ""]


class Users:
    """Stands for a DataFrame of ids."""

    def mapInArrow(self, function: Any, _: str) -> list[str]:  # noqa: N802 (Spark's name)
        batch = pa.record_batch({"user_id": pa.array(USERS)})
        return [text for part in function([batch]) for text in part["user_hash"].to_pylist()]


def hashes(dataset: DatasetSettings, secret: bytes = TEST_SECRET) -> list[str]:
    found: Any = consent._hashed(None, dataset, Users(), secret)  # type: ignore[arg-type]
    return list(found)


def make_table(dataset: DatasetSettings) -> None:
    assert dataset.table.purged is not None
    shutil.rmtree(dataset.table.purged, ignore_errors=True)
    empty = pa.array([], pa.string())
    write_deltalake(dataset.table.purged, pa.table({"user_hash": empty, "secret_id": empty}))


def test_a_hash_needs_the_secret_and_belongs_to_one_table(tmp_path: Path) -> None:
    dataset = lakes.make(tmp_path, TEST_SECRET).dataset
    make_table(dataset)
    first = hashes(dataset)
    assert hashes(dataset) == first
    other_secret = hashes(dataset, TEST_SECRET[::-1])
    make_table(dataset)
    other_table = hashes(dataset)
    plain = [hashlib.sha256(text).hexdigest() for user in USERS for text in spellings(user)]
    assert all(len(text) == 64 for text in first)
    assert len({*first, *other_secret, *other_table, *plain}) == 3 * len(USERS) + len(plain)


def spellings(user: str) -> tuple[bytes, bytes]:
    return user.encode(), rng.encode_label(user)
