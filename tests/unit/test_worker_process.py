"""The worker process: replies, failures told apart, and a parent that survives whatever the host does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import LIMIT_S, until

from mktune.errors import CandidateError, InputError, MktuneError, SetupError
from mktune.measure.worker import Worker, status_of
from mktune.trial import Status


class FakeHost:
    """Does what a request says, as a candidate's kernels might."""

    def __init__(self, greeting: str = "hello", fail: str = "", dies: str = "", tries: str = "") -> None:
        if fail:
            raise SetupError(fail)
        if tries:
            with open(tries, "a") as file:
                file.write("once ")
        if dies and not (dies == "once" and Path(tries).read_text().count("once") > 1):
            os._exit(9)
        self._greeting = greeting
        self._handled = 0

    def handle(self, request):
        self._handled += 1
        do = request["do"]
        if do == "hang":
            time.sleep(2 * LIMIT_S)
        if do == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if do == "leave":
            os._exit(7)
        if do == "raise":
            kinds = {kind.__name__: kind for kind in (RuntimeError, AssertionError, SystemExit, MemoryError, KeyError)}
            raise kinds[request["kind"]](request.get("text", "went wrong"))
        if do == "candidate":
            raise CandidateError(request["status"], "as told")
        if do == "setup":
            raise SetupError("no GPU left")
        if do == "input":
            raise InputError("bad number")
        if do == "broken":
            raise MktuneError("the reference holds a NaN")
        return {
            "greeting": self._greeting,
            "handled": self._handled,
            "pid": os.getpid(),
            "nested": {"spans": [1.5, 2.5]},
        }


HOST = f"{__name__}:FakeHost"


@pytest.fixture
def worker():
    with_host = Worker(HOST, {"greeting": "good day"})
    yield with_host
    with_host.close()


def failure(worker, seconds=LIMIT_S, **request):
    with pytest.raises(CandidateError) as caught:
        worker.ask(request, seconds)
    return caught.value.status, str(caught.value)


def test_one_process_answers_many_requests(worker):
    first, second = worker.ask({"do": "greet"}, LIMIT_S), worker.ask({"do": "greet"}, LIMIT_S)
    assert first["greeting"] == "good day"
    assert first["nested"] == {"spans": [1.5, 2.5]}
    assert (first["handled"], second["handled"]) == (1, 2)
    assert first["pid"] == second["pid"] != os.getpid()


def test_a_hang_is_killed_at_its_deadline_and_the_next_candidate_runs_in_a_new_process(worker):
    pid = worker.ask({"do": "greet"}, LIMIT_S)["pid"]
    status, reason = failure(worker, seconds=0.3, do="hang")
    assert status == Status.HANG
    assert "0.3 s" in reason
    with pytest.raises(ProcessLookupError):  # gone before anything else is measured
        os.kill(pid, 0)
    assert worker.ask({"do": "greet"}, LIMIT_S)["pid"] != pid
    assert worker.starts == 2


def test_a_dead_process_is_a_crash_that_names_signal_or_exit_code(worker):
    status, reason = failure(worker, do="segfault")
    assert (status, "SIGSEGV" in reason) == (Status.CRASH, True)
    status, reason = failure(worker, do="leave")
    assert (status, "exit code 7" in reason) == (Status.CRASH, True)
    assert worker.ask({"do": "greet"}, LIMIT_S)["handled"] == 1


@pytest.mark.parametrize("kind", ["RuntimeError", "AssertionError", "SystemExit", "KeyError"])
def test_any_exception_is_recorded_with_its_class_and_the_process_goes_on(worker, kind):
    status, reason = failure(worker, do="raise", kind=kind)
    assert status == Status.CRASH
    assert reason.startswith(kind)
    assert worker.ask({"do": "greet"}, LIMIT_S)["handled"] == 2
    assert worker.starts == 1


def test_statuses_of_candidates_are_kept_and_faults_end_the_process(worker):
    assert failure(worker, do="candidate", status="wrong_result")[0] == Status.WRONG_RESULT
    assert failure(worker, do="candidate", status="build_error")[0] == Status.BUILD_ERROR
    assert failure(worker, do="raise", kind="MemoryError")[0] == Status.OUT_OF_MEMORY
    assert worker.starts == 1
    assert failure(worker, do="candidate", status="illegal_access")[0] == Status.ILLEGAL_ACCESS
    assert worker.ask({"do": "greet"}, LIMIT_S)["handled"] == 1
    assert worker.starts == 2


def test_what_is_not_the_candidates_fault_is_raised_as_it_was(worker):
    for do, kind in (("setup", SetupError), ("input", InputError), ("broken", MktuneError)):
        with pytest.raises(kind) as caught:
            worker.ask({"do": do}, LIMIT_S)
        assert type(caught.value) is kind
    assert worker.ask({"do": "greet"}, LIMIT_S)["handled"] == 4


def test_a_host_that_cannot_be_made_says_why():
    worker = Worker(HOST, {"fail": "driver too old"})
    for _ in range(2):
        with pytest.raises(SetupError, match="driver too old"):
            worker.ask({"do": "greet"}, LIMIT_S)
    worker.close()


def test_a_process_that_dies_before_it_is_asked_is_no_candidates_fault(tmp_path):
    tries = str(tmp_path / "tries")
    worker = Worker(HOST, {"dies": "always", "tries": tries})
    with pytest.raises(SetupError, match="the worker process does not start: crash: the worker died: exit code 9"):
        worker.ask({"do": "greet"}, LIMIT_S)
    assert worker.starts == 2
    worker.close()
    worker = Worker(HOST, {"dies": "once", "tries": str(tmp_path / "more")})
    assert worker.ask({"do": "greet"}, LIMIT_S)["handled"] == 1
    assert worker.starts == 2
    worker.close()


def test_a_process_that_does_not_start_in_time_is_the_machines_fault():
    worker = Worker(f"{__name__}:SlowHost", {}, start_seconds=0.2)
    with pytest.raises(SetupError, match=r"it did not start within 0\.2 s"):
        worker.ask({"do": "greet"}, LIMIT_S)
    worker.close()


def test_a_process_that_a_kill_does_not_end_stops_the_search(worker, monkeypatch):
    worker.ask({"do": "greet"}, LIMIT_S)
    process = worker._running._process
    with monkeypatch.context() as patched:
        patched.setattr("mktune.measure.worker._JOIN_SECONDS", 0.05)
        patched.setattr(process, "kill", lambda: None)  # as where the driver holds it
        with pytest.raises(SetupError, match=f"process {process.pid} does not end although it was killed"):
            worker.ask({"do": "hang"}, 0.05)
    process.kill()
    process.wait(LIMIT_S)


class SlowHost(FakeHost):
    def __init__(self):
        time.sleep(2 * LIMIT_S)


def test_a_spare_process_takes_over_with_what_it_has_imported():
    worker = Worker(HOST, {}, spare=True)
    try:
        first = worker.ask({"do": "greet"}, LIMIT_S)
        spare = worker._spare
        assert spare is not None
        assert spare.alive
        status, _ = failure(worker, do="segfault")
        assert status == Status.CRASH
        second = worker.ask({"do": "greet"}, LIMIT_S)
        assert second["pid"] == spare._process.pid != first["pid"]
        worker.restart()
        third = worker.ask({"do": "greet"}, LIMIT_S)
        assert third["pid"] not in (first["pid"], second["pid"])
        assert worker.starts == 3
        processes = [worker._spare, worker._running]
    finally:
        worker.close()
    assert not any(process.alive for process in processes)


def test_a_spare_that_died_is_no_spare():
    worker = Worker(HOST, {}, spare=True)
    try:
        worker.ask({"do": "greet"}, LIMIT_S)
        worker._spare._process.kill()
        worker._spare._process.wait(LIMIT_S)
        worker.restart()
        assert worker.ask({"do": "greet"}, LIMIT_S)["handled"] == 1
    finally:
        worker.close()


def test_close_may_be_called_twice_and_ends_the_process(worker):
    pid = worker.ask({"do": "greet"}, LIMIT_S)["pid"]
    worker.close()
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_ctrl_c_is_the_parents_to_answer(worker):
    pid = worker.ask({"do": "greet"}, LIMIT_S)["pid"]
    os.kill(pid, signal.SIGINT)  # a terminal sends it to every process of the group
    assert worker.ask({"do": "greet"}, LIMIT_S)["pid"] == pid


@pytest.mark.skipif(sys.platform != "linux", reason="parents' deaths are told on Linux")
@pytest.mark.parametrize("while_it", ["waits", "hangs"])
def test_the_process_dies_with_a_parent_that_is_killed(while_it):
    hang = "worker._send({'do': 'hang'})" if while_it == "hangs" else "pass"
    program = (
        "import os, sys, signal\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from mktune.measure.worker import Worker\n"
        "if __name__ == '__main__':\n"
        f"    worker = Worker({HOST!r}, {{}})\n"
        f"    print(worker.ask({{'do': 'greet'}}, {LIMIT_S})['pid'], flush=True)\n"
        f"    {hang}\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    pid = int(done.stdout)
    until(lambda: not _runs(pid))


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CandidateError("noisy", "x"), Status.NOISY),
        (MemoryError(), Status.OUT_OF_MEMORY),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), Status.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Status.ILLEGAL_ACCESS),
        (RuntimeError("CUDA error: misaligned address"), Status.ILLEGAL_ACCESS),
        (RuntimeError("anything else"), Status.CRASH),
        (SystemExit(1), Status.CRASH),
    ],
)
def test_exceptions_become_statuses(error, status):
    assert status_of(error)[0] == status


def test_a_reason_is_one_line_of_bounded_length():
    reason = status_of(RuntimeError("a\nb\t" + "x" * 10_000))[1]
    assert "\n" not in reason
    assert len(reason) < 2100
