"""One measurement at a time on a GPU: others wait for it, and the lock ends with the process that holds it."""

import subprocess
import sys
import threading

from waiting import LIMIT_S

from mktune.measure.gpu_lock import gpu_lock


def test_a_second_measurement_of_the_same_gpu_waits(tmp_path):
    begun, entered = threading.Event(), threading.Event()

    def measure():
        begun.set()
        with gpu_lock("GPU-1", tmp_path):
            entered.set()

    with gpu_lock("GPU-1", tmp_path):
        other = threading.Thread(target=measure)
        other.start()
        assert begun.wait(LIMIT_S)
        assert not entered.wait(0.2)
        with gpu_lock("GPU-2", tmp_path):
            pass  # another GPU is free
    other.join(LIMIT_S)
    assert entered.is_set()


def test_a_process_that_is_killed_leaves_the_gpu_free(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from mktune.measure.gpu_lock import gpu_lock\n"
        "with gpu_lock('GPU-1', Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=LIMIT_S, check=False)
    assert done.returncode == -9
    with gpu_lock("GPU-1", tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["mktune-GPU-1.lock"]
