"""One study, four processes that do not share a host: a PostgreSQL server coordinates them, and one is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fake_bench import space_of
from waiting import FOREVER_S, LIMIT_S

from mktune.lowering.graph import lower, lowered_id
from mktune.store import Store
from mktune.trial import BUILTIN, Status

TRIALS = 60
TOGETHER = 10
"""Trials that every process has measured before any measures more."""

_PROCESS = """
import json, os, sys, time
sys.path.insert(0, {tests!r})
from fake_bench import *
from mktune.search import loop, work
from mktune.search.samplers.random import RandomSampler
from mktune.store import leases, owner
from test_search_driver import is_builtin
from waiting import until

leases.LEASE_SECONDS = leases.BEAT_SECONDS = {forever}  # no lease ends of itself
leases.STILL_SECONDS = 0.0  # and the one that is ended need not be watched first
loop.LOOK_SECONDS = 0.0
owner._host = lambda: {host!r}
told = []
RandomSampler.tell = lambda self, choices, span: told.append(span)

def answer(plan):
    seen = [each for each in backend.bench.measured if not is_builtin(each)]
    if {hangs} and len(seen) == 3:
        Path({folder!r}, {host!r}).touch()
        print(json.dumps({{"plan": plan.plan_id}}), flush=True)
        time.sleep({forever})
    if len(backend.bench.measured) == {together}:
        Path({folder!r}, {host!r}).touch()
        until(lambda: len(os.listdir({folder!r})) == 4)
    return ok(spans(plan))

backend = FakeBackend(answer)
space = space_of()
with Store.open({url!r}) as store:
    study = study_of(store, space, seed=7) if {starts} else store.join("s", device=H200, build="")
    print("ready", flush=True)
    sys.stdin.readline()
    if {starts}:
        result = tune(space, backend, store, study, Budget({trials}))
    else:
        result = work(space, backend, store, study, Budget({trials}))
print(json.dumps({{
    "measured": [plan.plan_id for plan in backend.bench.measured], "own": result.measured, "told": len(told),
    "known": len(result.trials), "winner": result.winner and result.winner.plan.plan_id,
    "promoted": len(backend.bench.promoted),
}}))
"""


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(postgres: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a search on a host of its own; none outlives the test."""
    with ExitStack() as ending:

        def started(host: str, **how: bool) -> subprocess.Popen[str]:
            child = process(postgres, tmp_path, host, **how)
            ending.callback(child.kill)
            return child

        yield started


def process(url: str, folder: Path, host: str, *, starts: bool = False, hangs: bool = False) -> subprocess.Popen[str]:
    """A search: of `tune`, or of a worker beside it. All meet in `folder`."""
    tests = str(Path(__file__).parent)
    filled = {"tests": tests, "forever": FOREVER_S, "together": TOGETHER, "folder": str(folder), "trials": TRIALS}
    code = _PROCESS.format(**filled, host=host, hangs=hangs, url=url, starts=starts)
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    return subprocess.Popen([sys.executable, "-c", code], **pipes)


def line(of: subprocess.Popen[str]) -> str:
    assert of.stdout is not None
    found = of.stdout.readline()
    assert found, of.communicate(timeout=LIMIT_S)[1][-2000:]
    return found


def end_lease(url: str, host: str) -> None:
    """The time of the trial that `host` runs is over."""
    import psycopg

    statement = "UPDATE mktune_trials SET lease = 0 WHERE status IS NULL AND owner LIKE %s"
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute(statement, [f'["{host}"%']).rowcount == 1


def test_four_hosts_share_a_study_and_lose_nothing_when_one_is_killed_in_a_trial(postgres: str, start: Start) -> None:
    started = start("host 0", starts=True)
    assert line(started) == "ready\n"
    victim = start("host 1", hangs=True)
    others = [start(f"host {place}") for place in (2, 3)]
    assert [line(each) for each in (victim, *others)] == ["ready\n"] * 3
    for each in (started, victim, *others):
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    taken_along = json.loads(line(victim))["plan"]
    victim.kill()
    victim.wait(LIMIT_S)
    end_lease(postgres, "host 1")
    ended = [each.communicate(timeout=LIMIT_S) for each in (started, *others)]
    assert [each.returncode for each in (started, *others)] == [0, 0, 0], [error[-2000:] for _, error in ended]
    said = [json.loads(out.splitlines()[-1]) for out, _ in ended]

    with Store.open(postgres, write=False) as store:
        trials = store.trials(store.find_study("s"), lost=True)
        assert store.running(store.find_study("s")) == []
        (winner,) = store.winners()
    lost = [trial for trial in trials if trial.outcome.status is Status.LOST]
    done = [trial for trial in trials if trial.outcome.status is Status.OK]
    assert [trial.number for trial in trials] == list(range(TRIALS + 1))  # no number twice, and none left out
    assert len(done) == TRIALS
    graph = space_of().graph
    keys = Counter(lowered_id(trial.plan, lower(trial.plan, graph, trial.plan.shape)) for trial in done)
    assert max(keys.values()) == 1  # no plan twice

    assert [trial.plan.plan_id for trial in lost] == [taken_along]
    (again,) = [trial for trial in done if trial.plan.plan_id == taken_along]
    assert lost[0].outcome.reason.endswith(f"begun again as trial {again.number}")
    assert sum(taken_along in each["measured"] for each in said) == 1

    assert all(each["own"] >= TOGETHER for each in said)  # they did share it out
    assert all(each["known"] == TRIALS for each in said)
    assert all(each["told"] > each["own"] + 10 for each in said)  # each sampler is told what the others measured
    assert [each["promoted"] for each in said] == [1, 0, 0]  # only the one that began the study promotes
    assert winner.plan.plan_id == said[0]["winner"]
    assert winner.plan.plan_id in {trial.plan.plan_id for trial in done}
    assert sum(trial.source.startswith(BUILTIN) for trial in done) == 2


def test_a_worker_whose_study_is_full_has_nothing_to_do(postgres: str) -> None:
    from fake_bench import H200, Budget, FakeBackend, search

    from mktune.search import work

    with Store.open(postgres) as store:
        search(store, FakeBackend(), 6)
        study = store.join("s", device=H200, build="")
        idle = FakeBackend()
        result = work(space_of(), idle, store, study, Budget(study.max_trials))
    assert (idle.bench.measured, result.measured, len(result.trials)) == ([], 0, 6)
