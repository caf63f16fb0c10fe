"""MovieLens-100k: real ratings of real people, for the demo and the tests.

GroupLens forbids passing the data on, so they are fetched once from where they are published: the
wheel of `recbole` on the Python package index, whose checksum stands here. It is opened as an
archive and never installed.
"""

import hashlib
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa

from dp_udfs.errors import SettingsError

REQUIREMENT = "recbole==1.2.1"
WHEEL = "recbole-1.2.1-py3-none-any.whl"
SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
AS_OF = date(1998, 4, 23)  # the day after the last rating

_INSIDE = "recbole/dataset_example/ml-100k/ml-100k."
_AGE_BANDS = {50: "50 and over", 35: "35 to 49", 25: "25 to 34", 0: "under 25"}
_SCHEMA = pa.schema(
    [
        ("user_id", pa.int64()),
        ("event_date", pa.date32()),
        ("film", pa.string()),
        ("area", pa.string()),
        ("occupation", pa.string()),
        ("genre", pa.list_(pa.string())),
        ("age_band", pa.string()),
        ("gender", pa.string()),
        ("rating", pa.int64()),
    ]
)


def fetch(folder: Path) -> Path:
    """Return the wheel in `folder`, downloaded if it is not there.

    Raises
    ------
    SettingsError
        If it cannot be had, or is not the file whose checksum stands here.
    """
    wheel = folder / WHEEL
    if not wheel.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", REQUIREMENT, "--no-deps", "--quiet"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", str(folder)]
        if subprocess.run(command, check=False).returncode != 0 or not wheel.is_file():
            raise SettingsError(
                f"{WHEEL} cannot be downloaded; put it into {folder} yourself, or make a lake "
                f"without it with --synthetic"
            )
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
        raise SettingsError(f"{wheel}: not the file that is expected; delete it and run this again")
    return wheel


def read(wheel: Path) -> pa.Table:
    """Return one row per rating, with what is known of the person and the film."""
    with zipfile.ZipFile(wheel) as archive:
        ratings, people, films = (
            list(_records(archive.read(f"{_INSIDE}{kind}").decode("utf-8")))
            for kind in ("inter", "user", "item")
        )
    labels = film_labels(films)
    genres = {film["item_id"]: film["class"].split(" ") for film in films}
    facts = {person["user_id"]: _facts(person) for person in people}
    rows = [
        {
            "user_id": int(rating["user_id"]),
            "event_date": datetime.fromtimestamp(int(rating["timestamp"]), UTC).date(),
            "film": labels[rating["item_id"]],
            "genre": genres[rating["item_id"]],
            "rating": int(rating["rating"]),
        }
        | facts[rating["user_id"]]
        for rating in ratings
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def film_labels(films: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return title and year of each film id; films that share both also show their id."""
    labels = {
        film["item_id"]: (
            f"{film['movie_title']} ({film['release_year']})"
            if film["release_year"].isdigit()
            else film["movie_title"]
        )
        for film in films
    }
    shared = Counter(labels.values())
    return {
        film: f"{label} #{film}" if shared[label] > 1 else label for film, label in labels.items()
    }


def _records(text: str) -> Iterable[dict[str, str]]:
    """Read tab-separated lines below a header of `name:type`."""
    header, *lines = text.splitlines()
    names = [field.partition(":")[0] for field in header.split("\t")]
    return (dict(zip(names, line.split("\t"), strict=True)) for line in lines)


def _facts(person: Mapping[str, str]) -> dict[str, str]:
    """Coarsen a person: age band instead of age, first digit instead of zip code."""
    first = person["zip_code"][0]
    return {
        "area": first if first.isdigit() else "Canada",  # all letters are Canadian districts
        "occupation": person["occupation"],
        "age_band": next(band for low, band in _AGE_BANDS.items() if int(person["age"]) >= low),
        "gender": person["gender"],
    }
