"""A thousand candidates of which 30 % hang, fault or are wrong: every one ends as what it is, and costs no other.

The whole search runs: samplers, store, the bench of the GPU, its worker process and promotion. Only what the process
does on the GPU is pretended (`fake_host`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fake_bench import SHAPE, WORKLOAD
from fake_host import FATES, SETTINGS, fate, status_of_fate
from waiting import LIMIT_S

from mktune.graph.builtin import builtin_plans
from mktune.store import Store
from mktune.trial import Status

pytestmark = pytest.mark.slow

TRIALS = 1000
PROCESSES = 4
DEADLINE = 0.4

SERIAL = ("wait", "prepare", "compile", "measure", "store", "promote")
"""The phases that follow one another; the others run beside them."""

_SEARCH = """
import json, sys
sys.path.insert(0, {tests!r})
from fake_bench import *
from fake_device import FakeDevice
from fake_host import fate
from waiting import LIMIT_S
space = space_of()
device = FakeDevice({deadline}, hangs=lambda plan: fate(plan, {salt!r}) == "hang")
with Store.open({store!r}, timeout_s=LIMIT_S) as store:
    study = store.study(
        "s", workload=WORKLOAD.name, ops=("A0", "B0"), shape=SHAPE, device=device.device, backend="cuda",
        sampler="random", seed={seed}, contract=WORKLOAD.contract, resume=True, start=True,
    )
    result = tune(space, device, store, study, Budget({trials}))
    starts = sum(bench._worker.starts for bench in device.benches)
    print(json.dumps({{"starts": starts, "seconds": dict(result.seconds), "within": result.within["measure"]}}))
"""


def salt_for_builtins() -> str:
    """A salt under which every built-in plan is good: nothing is tuned without one."""
    texts = {plan.json for plan in builtin_plans(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a").values()}
    return next(str(salt) for salt in range(1000) if all(fate(text, str(salt)) == "good" for text in texts))


def after_lingering(begun: list[list[Any]]) -> set[str]:
    """The plans that were begun in a process in which another had left its death behind."""
    lingering = {pid for pid, _, met, _ in begun if met == "linger"}
    return {plan for pid, _, _, plan in begun if pid in lingering}


def test_every_candidate_ends_as_what_it_is_and_none_is_measured_in_a_poisoned_process(tmp_path: Path) -> None:
    salt, log, store = salt_for_builtins(), tmp_path / "log", tmp_path / "x.db"
    tests = str(Path(__file__).parent)
    settings = json.dumps({"salt": salt, "log": str(log)})
    environment = os.environ | {SETTINGS: settings, "TMPDIR": str(tmp_path)}
    begin = time.monotonic()
    codes = [
        _SEARCH.format(tests=tests, store=str(store), trials=TRIALS, deadline=DEADLINE, salt=salt, seed=seed)
        for seed in range(PROCESSES)
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [subprocess.Popen([sys.executable, "-c", c], text=True, env=environment, **pipes) for c in codes]
    ended = [process.communicate(timeout=5 * LIMIT_S) for process in started]
    wall = time.monotonic() - begin
    assert [process.returncode for process in started] == [0] * PROCESSES, [error[-2000:] for _, error in ended]

    with Store.open(store, write=False) as opened:
        trials = opened.trials(opened.find_study("s"), lost=True)
        (winner,) = opened.winners()
        assert opened.damage() == ""
    assert [trial.number for trial in trials] == list(range(TRIALS))
    fates = {trial.number: fate(trial.plan.json, salt) for trial in trials}
    assert [trial.outcome.status for trial in trials] == [status_of_fate(fates[trial.number]) for trial in trials]
    assert len({trial.plan.json for trial in trials}) == TRIALS

    begun = [json.loads(line) for line in log.read_text().splitlines()]
    times = Counter(plan for *_, plan in begun)
    assert times.keys() == {trial.plan.json for trial in trials}
    twice = {plan for plan, count in times.items() if count > 1}  # where a process died: again in one of its own
    assert max(times.values()) <= 2
    assert {fate(plan, salt) for plan in twice} <= {"segfault", *(fate(plan, salt) for plan in after_lingering(begun))}
    assert not any(poisoned for _, poisoned, _, _ in begun)
    last = {pid: (met, plan) for pid, _, met, plan in begun}
    fatal = [entry for entry in begun if entry[2] in ("hang", "stray", "refused", "segfault")]
    assert all(last[pid] == (met, plan) for pid, _, met, plan in fatal)  # nothing else ran in its process

    shares = Counter(fates.values())
    hung = [dict(trial.seconds)["measure"] for trial in trials if trial.outcome.status is Status.HANG]
    said = [json.loads(out) for out, _ in ended]
    print(f"{wall:.1f} s for {TRIALS} trials in {PROCESSES} searches: {dict(shares)}; hangs {sum(hung):.0f} s together")
    print(*said, sep="\n")
    for name, (_, share) in FATES.items():
        assert 0.25 * share <= 100 * shares[name] / TRIALS <= 2.5 * share, name  # chance decides which plans come
    assert min(hung) >= DEADLINE  # and the time of no other trial was cut short: each has its right status
    assert max(hung) < LIMIT_S  # what others may take
    for each in said:
        explained = sum(each["seconds"][phase] for phase in SERIAL)
        assert explained > 0.5 * each["seconds"]["total"]  # the rest is what a busy machine takes in between
        assert each["starts"] <= 1.2 * TRIALS / PROCESSES  # about a quarter of the candidates end their process
    assert fate(winner.plan.json, salt) in ("good", "linger")
    assert winner.validated
