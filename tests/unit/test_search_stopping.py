"""Signals during a search, in a process of its own: what ended is kept, what runs is left, a second leaves at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_bench import FakeBackend, search
from waiting import FOREVER_S, LIMIT_S

from mktune.search.stopping import Stop, Stopped
from mktune.store import Store

SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from fake_bench import FakeBackend, search
from mktune.search import Observer, Stop
from mktune.store import Store

class Lines(Observer):
    def trial(self, trial, progress):
        print("trial", trial.number, flush=True)

backend = FakeBackend()
close, measure = backend.bench.close, backend.bench.measure
def slow_close():
    print("closing", flush=True)
    time.sleep({close_takes})
    close()
def held(plan, incumbent_us):
    if len(backend.bench.measured) == {ends}:
        print("measuring", flush=True)
        time.sleep({forever})
    return measure(plan, incumbent_us)
backend.bench.close, backend.bench.measure = slow_close, held
with Store.open({store!r}) as store, Stop(before_exit=lambda: print("cursor restored", flush=True)) as stop:
    result = search(store, backend, 20, observer=Lines(), stop=stop, resume={resume})
    print("stopped by", result.stopped, "winner", result.winner, flush=True)
sys.exit(stop.exit_code)
"""


@contextmanager
def running(store: Path, ends: int, close_takes: float = 0.0, resume: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A search of 20 trials in another process, of which so many end; the measurement of the next one never does."""
    filled = {"tests": str(Path(__file__).parent), "store": str(store), "forever": FOREVER_S}
    script = SCRIPT.format(**filled, ends=ends, close_takes=close_takes, resume=resume)
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def after(child: subprocess.Popen[str], line: str) -> None:
    """Wait until the child has printed `line`."""
    assert child.stdout is not None
    for printed in child.stdout:
        if printed.startswith(line):
            return
    raise AssertionError(f"the search ended without {line!r}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_ended_and_the_study_can_go_on(tmp_path: Path, number: int, code: int) -> None:
    path = tmp_path / "store.db"
    with running(path, ends=5) as child:
        after(child, "measuring")
        os.kill(child.pid, number)
        output, _ = child.communicate(timeout=LIMIT_S)
    assert child.returncode == code
    assert f"stopped by {signal.Signals(number).name} winner None" in output
    with Store.open(path) as store:
        study = store.find_study("s")
        kept = store.trials(study)
        assert [trial.number for trial in kept] == [0, 1, 2, 3, 4]
        counts = store.trial_counts(study)
        assert "running" not in counts
        backend = FakeBackend()
        result = search(store, backend, 20, resume=True)
        assert len(backend.bench.measured) == 15
        assert len({trial.plan.plan_id for trial in result.trials}) == 20
        assert result.winner is not None


def test_a_kill_loses_one_trial_at_most(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with running(path, ends=5) as child:
        after(child, "measuring")
        child.kill()
        child.wait()
    with Store.open(path) as store:
        result = search(store, FakeBackend(), 20, resume=True)
        assert result.resumed == 5
        assert len(result.trials) == 20
        assert store.trial_counts(store.find_study("s")).get("running", 0) == 0


def test_a_signal_leaves_a_long_measurement(tmp_path: Path) -> None:
    with running(tmp_path / "store.db", ends=0) as child:
        after(child, "measuring")
        os.kill(child.pid, signal.SIGINT)
        child.communicate(timeout=LIMIT_S)
    assert child.returncode == 130


def test_a_second_signal_does_not_wait_for_the_end_of_the_first(tmp_path: Path) -> None:
    with running(tmp_path / "store.db", ends=3, close_takes=FOREVER_S) as child:
        after(child, "measuring")
        os.kill(child.pid, signal.SIGINT)
        after(child, "closing")
        os.kill(child.pid, signal.SIGINT)
        output, _ = child.communicate(timeout=LIMIT_S)
    assert "cursor restored" in output
    assert child.returncode == 130
    with Store.open(tmp_path / "store.db", write=False) as store:
        assert len(store.trials(store.find_study("s"))) == 3


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        assert signal.getsignal(signal.SIGINT) != before[0]
        assert stop.exit_code == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_only_what_may_be_interrupted_is() -> None:
    stop = Stop()
    stop.ask(signal.SIGTERM)
    assert stop.asked
    assert stop.exit_code == 143
    with pytest.raises(Stopped), stop.interruptible():
        raise AssertionError("a signal came before: nothing may start")


def test_a_failing_candidate_cannot_swallow_a_stop(tmp_path: Path) -> None:
    stop = Stop()
    backend = FakeBackend()
    answer = backend.bench.answer

    def answer_and_stop(plan):
        if len(backend.bench.measured) == 3:
            stop.ask()
        return answer(plan)

    backend.bench.answer = answer_and_stop
    with Store.open(tmp_path / "store.db") as store:
        result = search(store, backend, 20, stop=stop)
    assert (len(result.trials), result.stopped, result.winner) == (2, "SIGINT", None)
    assert backend.bench.closed == 1
