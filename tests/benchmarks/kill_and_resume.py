"""Kills a search at random instants and goes on with it, again and again: is any finished trial lost? No GPU.

    python tests/benchmarks/kill_and_resume.py [--kills 500] [--seed 0]

Each round forks a process that resumes a study on one store, measures (every fifth round by a worker process, which
must die with it), promotes and stores a winner, and is killed by SIGKILL somewhere between its first moment and its
last. Every trial that it reported as stored must be there as it was, the database must be sound, and at most the trial
that ran may be left. After some kills the study is finished without one, and another begins. Prints one JSON document;
exit 1 where anything was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from fake_bench import FakeBackend, space_of, study_of
from fake_device import FakeDevice
from fake_host import SETTINGS
from waiting import LIMIT_S

from mktune.search import Budget, Observer, Progress, Stop, tune
from mktune.search.result import span_of
from mktune.store import Store
from mktune.trial import Trial

KILLS_OF_A_STUDY = 25
REPORTS = 40
"""Lines that a process has reported when its kill is due, at most: a slow machine is killed at the same places."""
LONGEST = 0.02
"""Seconds from then to its kill, at most."""


@dataclass
class Seen:
    """What the kills hit, and what was found after them."""

    kills: int = 0
    ended_before: int = 0
    stored: int = 0
    reported: int = 0
    lost: int = 0
    unsound: int = 0
    left_running: int = 0
    hit_in: Counter[str] = field(default_factory=Counter)
    studies: int = 0
    winners: int = 0
    workers_left: int = 0


class Reporter(Observer):
    """Writes a line to a pipe for each trial that is stored, and for each phase."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def say(self, *words: object) -> None:
        os.write(self._pipe, (json.dumps(words) + "\n").encode())

    def progress(self, progress: Progress) -> None:
        self.say("phase", progress.phase)

    def trial(self, trial: Trial, progress: Progress) -> None:
        self.say("trial", trial.number, trial.plan.plan_id, trial.outcome.status.value, span_of(trial))
        self.say("phase", "search")


def search(path: Path, name: str, more: int, with_worker: bool, pipe: int) -> None:
    """What the forked process does: `more` trials of the study, then promotion."""
    report = Reporter(pipe)
    report.say("phase", "opening")
    with Store.open(path) as store, Stop() as stop:
        study = study_of(store, space_of(), name=name, resume=True, start=True)
        report.say("phase", "resuming")
        backend = FakeDevice(LIMIT_S) if with_worker else FakeBackend(takes_s=0.002)
        budget = Budget(len(store.trials(study)) + more)
        result = tune(space_of(), backend, store, study, budget, observer=report, stop=stop)
        report.say("phase", "closing")
        assert result.winner is not None
    report.say("phase", "ended")


def forked(path: Path, name: str, more: int, with_worker: bool) -> tuple[int, int]:
    """The process, and the end of the pipe that it reports to."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(ours)
            search(path, name, more, with_worker, theirs)
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    return child, ours


def read_until(pipe: int, reports: int) -> bytes:
    """What it has reported as soon as there are so many lines, or its end."""
    told = b""
    while told.count(b"\n") < reports and (more := os.read(pipe, 1 << 16)):
        told += more
    return told


def lines_of(pipe: int, told: bytes = b"") -> list[list[object]]:
    """What was reported, after what is read already; a line that the kill has cut does not count."""
    with os.fdopen(pipe, "rb") as file:
        whole = (told + file.read()).rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def one_round(path: Path, name: str, draw: random.Random, seen: Seen, reported: dict[int, list[object]]) -> None:
    with_worker = draw.random() < 0.2
    child, pipe = forked(path, name, draw.choice((5, 20, 1000)), with_worker)
    told = read_until(pipe, draw.randrange(REPORTS))
    time.sleep(draw.uniform(0.0, LONGEST))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    lines = lines_of(pipe, told)
    seen.ended_before += not os.WIFSIGNALED(status)
    seen.kills += os.WIFSIGNALED(status)
    phases = [str(line[1]) for line in lines if line[0] == "phase"]
    seen.hit_in[phases[-1] if phases else "starting"] += 1
    reported |= {int(str(line[1])): line[2:] for line in lines if line[0] == "trial"}
    check(path, name, seen, reported)


def check(path: Path, name: str, seen: Seen, reported: dict[int, list[object]]) -> None:
    """Everything that was reported is in the store as it was."""
    if not path.exists():
        assert not reported
        return
    with Store.open(path) as store:
        seen.unsound += bool(store.damage())
        if name not in {study.name for study in store.studies()}:
            seen.lost += len(reported)
            return
        study = store.find_study(name)
        found = {t.number: [t.plan.plan_id, t.outcome.status.value, span_of(t)] for t in store.trials(study)}
        seen.lost += sum(found.get(number) != stored for number, stored in reported.items())
        seen.left_running += len(store.running(study)) > 1
        assert len({plan for plan, _, _ in found.values()}) == len(found), "a plan was measured twice"


def finish(path: Path, name: str, seen: Seen, reported: dict[int, list[object]]) -> None:
    """The study goes on to its end, and then a winner is served."""
    child, pipe = forked(path, name, 5, False)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "a resumed study did not end"
    reported |= {int(str(line[1])): line[2:] for line in lines_of(pipe) if line[0] == "trial"}
    check(path, name, seen, reported)
    with Store.open(path, write=False) as store:
        study = store.find_study(name)
        assert store.running(study) == []
        assert "running" not in store.trial_counts(study)
        seen.stored += len(store.trials(study))
        seen.winners = len(store.winners(history=True))
    seen.reported += len(reported)
    seen.studies += 1


def kill_and_resume(folder: Path, kills: int, seed: int) -> Seen:
    """So many kills of searches on one store in `folder`."""
    os.environ[SETTINGS] = json.dumps({"salt": "", "fates": False, "noise": 0.002})
    tempfile.tempdir = str(folder)  # where the GPU's lock is
    space_of()
    seen, draw, path = Seen(), random.Random(seed), folder / "x.db"
    while seen.kills < kills:
        name, reported = f"study {seen.studies}", dict[int, list[object]]()
        until = min(kills, seen.kills + KILLS_OF_A_STUDY)
        while seen.kills < until:
            one_round(path, name, draw, seen, reported)
        finish(path, name, seen, reported)
    seen.workers_left = workers_left()
    return seen


def workers_left() -> int:
    """Worker processes that outlived the search that began them, after a moment."""
    deadline = time.monotonic() + LIMIT_S
    while (left := _workers()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _workers() -> int:
    found = 0
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = place.read_bytes()
            parent = int(place.with_name("stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
            continue
        found += b"fake_host:FakeHost" in text and parent == 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        seen = kill_and_resume(Path(folder), given.kills, given.seed)
    print(json.dumps({**vars(seen), "seconds": round(time.monotonic() - begin, 1)}))
    return 1 if seen.lost or seen.unsound or seen.left_running or seen.workers_left else 0


if __name__ == "__main__":
    sys.exit(main())
