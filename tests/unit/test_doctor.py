"""The doctor names what is wrong and the command that fixes it, and works when little is there."""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from deltalake import write_deltalake

from jobs import doctor
from jobs.doctor import Finding
from jobs.lake import ledger_table, runtime
from jobs.lake.settings import LakeSettings
from tests import lakes


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder whose name the shell would split."""
    folder = tmp_path / "two words"
    folder.mkdir()
    return folder


def wrong(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings if not finding.ok}


def test_a_sound_lake_has_nothing_to_fix(lake: LakeSettings) -> None:
    assert wrong(doctor.check_lake(Path(lake.source))) == {}


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    found = wrong(doctor.check_lake(tmp_path / "local.toml"))
    assert "local.toml: no such file" in found["settings"].found


def test_the_command_for_a_missing_secret_makes_one(lake: LakeSettings) -> None:
    lake.secret_path.unlink()
    finding = wrong(doctor.check_lake(Path(lake.source)))["secret"]
    assert "missing" in finding.found
    subprocess.run(["sh", "-c", finding.fix], check=True)
    assert wrong(doctor.check_lake(Path(lake.source))) == {}


def test_a_table_that_everybody_can_read_is_wrong(lake: LakeSettings) -> None:
    folder = Path(lake.tables.releases)
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    finding = wrong(doctor.check_lake(Path(lake.source)))["releases table's mode"]
    subprocess.run(["sh", "-c", finding.fix], check=True)
    assert wrong(doctor.check_lake(Path(lake.source))) == {}


def test_a_secret_that_others_can_read_is_wrong(lake: LakeSettings) -> None:
    lake.secret_path.chmod(0o640)
    finding = wrong(doctor.check_lake(Path(lake.source)))["secret's mode"]
    assert finding.found == "640"
    subprocess.run(["sh", "-c", finding.fix], check=True)
    assert wrong(doctor.check_lake(Path(lake.source))) == {}


def test_a_short_secret_is_wrong_and_never_shown(lake: LakeSettings) -> None:
    lake.secret_path.write_text("ab12cd34", encoding="utf-8")
    finding = wrong(doctor.check_lake(Path(lake.source)))["secret"]
    assert "short" in finding.found
    assert "ab12" not in str(finding)


def test_a_table_that_cannot_lie_there_is_wrong(lake: LakeSettings) -> None:
    Path(lake.root, "lake").write_text("a file where a folder should be", encoding="utf-8")
    found = wrong(doctor.check_lake(Path(lake.source)))
    assert set(found) == {"ledger table", "releases table", "snapshots table"}


def test_a_ledger_that_was_restored_and_grants_nothing_yet_is_wrong(lake: LakeSettings) -> None:
    table = ledger_table.create(lake.tables.ledger, restored=True)
    assert "grants nothing" in wrong(doctor.check_lake(Path(lake.source)))["ledger"].found
    ledger_table.mark(table, restored=False)
    assert "ledger" not in wrong(doctor.check_lake(Path(lake.source)))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-package"))
    assert wrong(doctor.check_packages())["packages"].found == "missing: no-such-package"


def test_a_machine_without_java_or_spark_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "JAVA_HOME", tmp_path)
    monkeypatch.setattr(runtime, "spark_home", lambda: None)
    assert wrong(doctor.check_java())["Java"].fix == "make install"
    assert wrong(doctor.check_spark())["Spark"].found == "PySpark is not installed"


def test_an_altered_jar_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / runtime.DELTA.file_name).write_bytes(b"altered")
    monkeypatch.setattr(runtime, "spark_home", lambda: tmp_path)
    found = wrong(doctor.check_spark())
    assert found["jar delta-spark_4.1_2.13"].found == "missing or altered"
    assert "jar comet-spark-spark4.1_2.13" not in found


def test_json_has_a_row_for_each_check(
    lake: LakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.secret_path.unlink()
    options = argparse.Namespace(conf=Path(lake.source), format="json", no_spark=True)
    assert doctor.main(options) == 1
    answer = json.loads(capsys.readouterr().out)
    assert {"check", "ok", "found"} == set(answer["rows"][0])
    assert "openssl rand -hex 32" in answer["fix secret"]


def test_it_starts_on_a_bare_python() -> None:
    script = (
        "import sys\n"
        "class NoPackages:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('pydantic', 'numpy', 'pyarrow', 'pyspark', 'deltalake'):\n"
        "            raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, NoPackages())\n"
        "from jobs import doctor, lake\n"
        "from pathlib import Path\n"
        "print([finding.found for finding in doctor.check_lake(Path('conf/local.toml'))])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "cannot be read without pydantic" in answer.stdout


def test_rows_past_their_retention_are_found(tmp_path: Path, secret: bytes) -> None:
    small = lakes.make(tmp_path / "lake", secret)
    conf = Path(small.lake.source)
    assert wrong(doctor.check_retention(conf)) == {}
    assert [finding.found for finding in doctor.check_retention(conf)] == [doctor.NOTHING_PUBLISHED]
    small.publish()
    assert [finding.found for finding in doctor.check_retention(conf)] == ["kept"]
    place = small.dataset.table.engagements
    shutil.rmtree(place)
    rows = lakes.engagement_table(small.dataset, [lakes.watched("u1")])  # of 2024
    write_deltalake(place, rows, partition_by="event_date")
    finding = wrong(doctor.check_retention(conf))["retention of clips"]
    assert finding.found.startswith("rows from before 20")
    assert finding.fix == "python -m jobs.purge_expired --dataset clips"
    (conf.parent / "datasets" / "clips.toml").write_text("name = 1")
    assert "clips.toml" in wrong(doctor.check_retention(conf))["dataset clips"].found
