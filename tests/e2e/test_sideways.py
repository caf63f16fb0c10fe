"""Nothing leaks beside the answer: no log, error, plan or file tells what the answer must not."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake

from dp_udfs.errors import ClaimError, SettingsError
from jobs.lake.session import EngineError
from jobs.release_counts import compute, facts, shown
from tests import lakes
from tests.conftest import TEST_SECRET
from tests.lakes import SmallLake, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


USERS_OF_A_CLIP = 43_217
USER = "u-7b1e-of-somebody"
SECRET = bytes.fromhex("d15c2ee7" * 7 + "0badcafe")


def log_all_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """Capture every line of this project, and of others what an application shows."""
    caplog.set_level("INFO")
    for name in ("jobs", "dp_udfs"):
        caplog.set_level("DEBUG", name)


def test_nothing_said_or_written_holds_the_secret_a_user_or_a_true_count(
    tmp_path: Path,
    spark: "SparkSession",
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = lakes.make(tmp_path, SECRET, epsilon="0.05")
    users = [USER, *(f"u{number}" for number in range(USERS_OF_A_CLIP - 1))]
    small.append([watched(user, title="clip A", country="DE") for user in users])
    small.opt_out(f"out of {USER}")
    small.publish()
    asked: dict[str, Any] = {"k": 2, "max_candidates": 5, "cohorts": ["country"]}
    log_all_of_ours(caplog)
    plans = []
    with pytest.MonkeyPatch.context() as patch:
        kind = type(spark.range(1))
        to_arrow = kind.toArrow

        def spy(frame: Any) -> Any:
            frame.explain(True)
            frame.explain("formatted")
            plans.append(frame._jdf.queryExecution().toString())
            return to_arrow(frame)

        patch.setattr(kind, "toArrow", spy)
        outcome = small.release(spark, **asked)
    small.release(None, "research", run_id="r1", **asked)
    with pytest.raises(ClaimError) as refused:
        small.release(None, run_id="r1", **asked)
    (noisy,) = lakes.counts(outcome).values()
    said = [
        caplog.text,
        capsys.readouterr().out,
        *plans,
        str(refused.value),
        str(facts(outcome)),
        str(shown(outcome.rows)),
    ]
    assert "add noise" in caplog.text
    assert "MapInArrow" in plans[0]
    texts = "\n".join([*said, *written_rows(small)])
    raw = [path.read_bytes() for path in small.files()]
    assert len(raw) > 10
    key = outcome.question.noise_key(SECRET)
    for secret in (SECRET, key):
        for form in (secret, secret.hex().encode(), repr(secret)[2:-1].encode()):
            assert all(form not in content for content in [*raw, texts.encode()])
    assert all(USER.encode() not in content for content in [*raw, texts.encode()])
    if noisy != USERS_OF_A_CLIP:  # once in 80 releases the noise is 0
        assert not re.search(r"(?<!\d)43,?217(?!\d)", texts)
    assert str(noisy) in texts


def written_rows(small: SmallLake) -> Iterator[str]:
    """Everything in the ledger, the releases and the list of snapshots, as text."""
    for path in small.lake.tables.model_dump().values():
        yield str(DeltaTable(path).to_pyarrow_table().to_pylist())


def test_what_spark_says_about_a_row_is_not_repeated(
    tmp_path: Path, spark: "SparkSession", caplog: pytest.LogCaptureFixture
) -> None:
    """A failed cast quotes the value; here a column was replaced by text."""
    small = lakes.make(tmp_path, TEST_SECRET)
    table = lakes.engagement_table(small.dataset, [watched(USER, score=3)])
    place = table.schema.get_field_index("score")
    broken = table.set_column(place, "score", [[f"text of {USER}"]])
    write_deltalake(
        small.dataset.table.engagements, broken, mode="overwrite", schema_mode="overwrite"
    )
    small.publish()
    question = small.question(element="score", k=2)
    log_all_of_ours(caplog)
    with pytest.raises(EngineError) as caught:
        compute(question, TEST_SECRET, spark)
    chain = [caught.value, caught.value.__cause__]
    assert "read, bound, count and add noise failed in pyspark" in str(caught.value)
    assert caught.value.__suppress_context__
    assert USER not in "".join(map(str, chain)) + caplog.text


def test_a_table_that_is_not_as_declared_is_refused_before_anything_is_spent(
    tmp_path: Path,
) -> None:
    small = lakes.make(tmp_path, TEST_SECRET)
    table = lakes.engagement_table(small.dataset, [watched(USER, score=3)])
    place = table.schema.get_field_index("score")
    as_text = table.set_column(place, "score", [[USER]])
    lacking = table.drop_columns(["score"])
    for number, (broken, words) in enumerate([(as_text, "string"), (lacking, "missing")], start=1):
        path = small.dataset.table.engagements
        write_deltalake(path, broken, mode="overwrite", schema_mode="overwrite")
        small.publish(lakes.AS_OF + timedelta(days=number))
        with pytest.raises(
            SettingsError, match=f"'score' of table engagements is {words} in"
        ) as caught:
            small.release(None, element="score", k=2)
        assert USER not in str(caught.value)
        small.question(element="device")  # others can still be asked
    assert small.entries("allocate") == []


# --- public lists ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "domain",
    ['"lake/clips/engagements"', '{ table = "lake/clips/engagements" }', '"engagements"', "[]"],
)
@pytest.mark.parametrize("column", ["country", "device"])
def test_a_list_of_cohorts_or_elements_cannot_come_from_a_table(
    tmp_path: Path, column: str, domain: str
) -> None:
    text = lakes.changed(lakes.CLIPS, f"columns.{column}", domain=domain)
    with pytest.raises(SettingsError, match=rf"clips\.toml: columns\.{column}\b.*domain"):
        lakes.make(tmp_path, TEST_SECRET, text)


def test_cohorts_that_are_found_in_the_data_are_refused(tmp_path: Path) -> None:
    text = lakes.changed(lakes.CLIPS, "columns.country", domain='"unknown"')
    with pytest.raises(SettingsError, match=r"columns\.country: .*public domain"):
        lakes.make(tmp_path, TEST_SECRET, text)
