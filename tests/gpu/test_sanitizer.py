"""compute-sanitizer over the default configs of all kernels: no bad access to memory, no race in shared memory.

Of the two built-in plans that differ in their instances, one waits at entry and one prefetches before the wait and
triggers early. racecheck follows mbarriers and bulk copies: it has no hazard to report, and none is filtered out.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SANITIZER = shutil.which("compute-sanitizer")
SCRIPT = Path(__file__).with_name("sanitized_prefix.py")
FOUND = 9

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(SANITIZER is None, reason="no compute-sanitizer here")]


def sanitized(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Every tensor has an allocation of its own, with room behind it that nobody may touch."""
    command = [SANITIZER, "--tool", tool, "--kernel-name", "kns=mktune", "--error-exitcode", str(FOUND)]
    command += ["--padding", "4096"] if tool == "memcheck" else []
    path = os.pathsep.join(filter(None, (str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command += [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def each(*values: str) -> list:
    """Every tool with every value, each in any process."""
    return [
        pytest.param(tool, value, id=f"{tool}@{tool} {value}") for tool in ("memcheck", "racecheck") for value in values
    ]


@pytest.mark.parametrize(("tool", "mode"), each("serial", "branches+pdl"))
def test_default_configs_are_clean(tool, mode):
    done = sanitized(tool, mode)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "11 kernels verified" in done.stdout


@pytest.mark.parametrize(("tool", "schedule"), each("persistent", "stream_k"))
def test_ctas_that_have_several_tiles_are_clean(tool, schedule):
    done = sanitized(tool, "branches+pdl", f"--{schedule}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "11 kernels verified" in done.stdout


def test_a_write_beyond_a_result_is_seen():
    done = sanitized("memcheck", "serial", "--fault")
    assert done.returncode == FOUND, done.stdout[-4000:] + done.stderr[-2000:]
    assert "Invalid __global__ write" in done.stdout
    assert "add_rmsnorm_quant" in done.stdout
