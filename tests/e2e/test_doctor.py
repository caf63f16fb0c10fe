"""The doctor on this very machine: what `make install` made is sound and reachable by nobody."""

import json
import subprocess
import sys

from jobs.lake.settings import LakeSettings


def test_what_was_installed_is_sound_and_listens_on_loopback_only(lake: LakeSettings) -> None:
    command = [sys.executable, "-m", "jobs.doctor", "--conf", lake.source, "--format", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    found = {row["check"]: row for row in json.loads(answer.stdout)["rows"]}
    assert [row for row in found.values() if not row["ok"]] == []
    assert answer.returncode == 0
    assert found["listening"]["found"] == "on loopback only"
    assert found["scratch folder"]["found"] == "mode 700"
