"""Kills at random instants, each followed by --resume: no finished trial is lost. The script makes 500 of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import LIMIT_S

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "kill_and_resume.py"


@pytest.mark.slow
def test_thirty_kills_lose_no_finished_trial(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--kills", "30", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * LIMIT_S, cwd=tmp_path, check=False)
    assert done.stdout, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    print(seen)
    assert (seen["lost"], seen["unsound"], seen["left_running"], seen["workers_left"]) == (0, 0, 0, 0)
    assert seen["kills"] == 30
    assert seen["studies"] == 2  # each resumed to its end
    assert seen["winners"] >= 2
    assert seen["reported"] > 30
    assert len(seen["hit_in"]) >= 3  # kills hit different phases
    assert done.returncode == 0
