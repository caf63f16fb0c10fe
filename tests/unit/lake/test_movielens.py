"""Reading MovieLens out of its wheel: no download is needed to test the rules."""

import zipfile
from datetime import date
from pathlib import Path

import pytest

from dp_udfs.errors import SettingsError
from jobs.lake import movielens

FILES = {
    "inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "1\t7\t3\t881250949\n2\t8\t5\t893286638\n",
    "user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
    "1\t24\tM\twriter\t85711\n2\t50\tF\tother\tT8H1N\n",
    "item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    "7\tCérémonie, La\t1995\tDrama\n8\tToy Story\t1995\tAnimation Children's Comedy\n",
}


def film(item_id: str, title: str, year: str) -> dict[str, str]:
    return {"item_id": item_id, "movie_title": title, "release_year": year}


def test_ratings_are_joined_to_people_and_films(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for kind, text in FILES.items():
            archive.writestr(f"recbole/dataset_example/ml-100k/ml-100k.{kind}", text)
    assert movielens.read(wheel).to_pylist() == [
        {
            "user_id": 1,
            "event_date": date(1997, 12, 4),
            "film": "Cérémonie, La (1995)",
            "area": "8",
            "occupation": "writer",
            "genre": ["Drama"],
            "age_band": "under 25",
            "gender": "M",
            "rating": 3,
        },
        {
            "user_id": 2,
            "event_date": date(1998, 4, 22),
            "film": "Toy Story (1995)",
            "area": "Canada",
            "occupation": "other",
            "genre": ["Animation", "Children's", "Comedy"],
            "age_band": "50 and over",
            "gender": "F",
            "rating": 5,
        },
    ]


@pytest.mark.parametrize(
    ("age", "band"),
    [
        ("7", "under 25"),
        ("24", "under 25"),
        ("25", "25 to 34"),
        ("34", "25 to 34"),
        ("35", "35 to 49"),
        ("49", "35 to 49"),
        ("50", "50 and over"),
    ],
)
def test_the_edges_of_the_age_bands(age: str, band: str) -> None:
    person = {"age": age, "gender": "F", "occupation": "other", "zip_code": "00000"}
    assert movielens._facts(person)["age_band"] == band


def test_films_that_share_a_title_stay_apart() -> None:
    films = [film("1", "Sabrina", "1995"), film("2", "Sabrina", "1954"), film("3", "X", "1990")]
    films += [film("4", "X", "1990"), film("5", "lost", "lost")]
    assert movielens.film_labels(films) == {
        "1": "Sabrina (1995)",
        "2": "Sabrina (1954)",
        "3": "X (1990) #3",
        "4": "X (1990) #4",
        "5": "lost",
    }


def test_another_file_under_the_wheels_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / movielens.WHEEL).write_bytes(b"something else")
    with pytest.raises(SettingsError, match="not the file that is expected; delete it"):
        movielens.fetch(tmp_path)


def test_without_a_network_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SettingsError, match=r"put it into .* yourself, or .* --synthetic"):
        movielens.fetch(tmp_path)
