"""Threads and processes that look plans up while another process commits winners: what went wrong, how long it took.

Every winner's span is that of its plan's stages, so that a record of two halves would be seen.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from stored_values import WORKLOAD, make_plan, make_winner
from waiting import FOREVER_S, LIMIT_S, until

from mktune.jit.fingerprint import kernels_fingerprint
from mktune.runtime import Hit, PlanBook
from mktune.store import Store
from mktune.trial import Winner

CELLS = [(m, kv) for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 24) for kv in (1024, 2048, 4096, 8192, 16384)]
STAGES = (12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2)
"""From slow to fast: each winner replaces the one before."""


@dataclass
class Seen:
    """What one reader, or all, saw. Times in seconds, the longest of each kind.

    between  how many readers that refresh saw a plan of the writer's while it had others to commit
    """

    look_ups: int = 0
    refreshes: int = 0
    slowest_hit: float = 0.0
    slowest_refresh: float = 0.0
    between: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Seen) -> None:
        self.look_ups += other.look_ups
        self.refreshes += other.refreshes
        self.slowest_hit = max(self.slowest_hit, other.slowest_hit)
        self.slowest_refresh = max(self.slowest_refresh, other.slowest_refresh)
        self.between += other.between
        self.wrong += other.wrong[:10]


def winner(m: int, kv: int, stages: int, build: str) -> Winner:
    return make_winner(make_plan(m, kv, stages=stages), 10.0 + stages, kernels=build)


def write(path: Path, number: int, readers: int = 0) -> None:
    """Commit `number` winners one by one, the cells in turn; the last of each cell is the fastest.

    readers  so many that refresh must have seen something of it before the second half is written
    """
    build = kernels_fingerprint(WORKLOAD, ("A0", "B0"))
    rounds = -(-number // len(CELLS))
    with Store.open(path, timeout_s=LIMIT_S) as store:
        for count in range(number):
            if count == number // 2:
                until(lambda: len(list(path.parent.glob("seen-*"))) >= readers)
            turn, cell = divmod(count, len(CELLS))
            stages = STAGES[round(turn * (len(STAGES) - 1) / max(1, rounds - 1))]
            store.put_winner(None, winner(*CELLS[cell], stages, build))


def read(path: Path, book: PlanBook, stop: threading.Event, refresh: bool) -> Seen:
    """Look every cell up again and again, once at least."""
    seen = Seen()
    newest: dict[tuple[int, int], int] = {}
    while seen.look_ups == 0 or not stop.is_set():
        if refresh:
            start = time.perf_counter()
            book.refresh()
            seen.refreshes += 1
            seen.slowest_refresh = max(seen.slowest_refresh, time.perf_counter() - start)
        for m, kv in CELLS:
            start = time.perf_counter()
            found = book.lookup(WORKLOAD, m=m, kv=kv, gpu="NVIDIA H200")
            seen.slowest_hit = max(seen.slowest_hit, time.perf_counter() - start)
            seen.look_ups += 1
            if not isinstance(found, Hit):
                seen.wrong.append(f"{m}, {kv}: {found.reason}: {found.message}")
                continue
            stages = int(dict(found.plan.op["B0"].config)["stages"])
            if (found.plan.shape.m, found.plan.shape.kv) != (m, kv):
                seen.wrong.append(f"{m}, {kv}: the plan of {found.plan.shape}")
            if found.winner.measurement.span_us != 10.0 + stages:
                seen.wrong.append(f"{m}, {kv}: a span of {found.winner.measurement.span_us} with {stages} stages")
            if refresh and stages > newest.get((m, kv), stages):
                seen.wrong.append(f"{m}, {kv}: {stages} stages after {newest[m, kv]}: an older plan")
            newest[m, kv] = stages
            if refresh and not seen.between and STAGES[-1] < stages < STAGES[0]:
                seen.between = 1
                path.with_name(f"seen-{os.getpid()}-{threading.get_ident()}").touch()
        time.sleep(0)
    return seen


def refreshing(threads: int, processes: int) -> int:
    """How many of the readers refresh the book that they read."""
    return -(-threads // 8) + processes


def read_in_threads(path: Path, threads: int, stop: threading.Event) -> Seen:
    """`threads` readers of a shared book and of their own; every eighth refreshes the one that it reads."""
    shared, total, lock = PlanBook.open(path), Seen(), threading.Lock()
    warnings = _Warnings()
    logging.getLogger("mktune.runtime").addHandler(warnings)

    def run(number: int) -> None:
        own = number % 8 == 0
        try:
            seen = read(path, PlanBook.open(path) if number % 16 == 0 else shared, stop, refresh=own)
        except BaseException as error:
            seen = Seen(wrong=[f"{type(error).__name__}: {error}"])
        with lock:
            total.add(seen)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    logging.getLogger("mktune.runtime").removeHandler(warnings)
    total.wrong += warnings.texts
    return total


class _Warnings(logging.Handler):
    """Everything that a book warns of: a read that was refused is a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def race(path: Path, threads: int, processes: int, number: int) -> tuple[Seen, float]:
    """Readers in threads of this process and in processes of their own, until another process has committed `number`
    winners; what they saw, and how many seconds that took."""
    write(path, len(CELLS))  # one round: the slowest plans
    ended, stop = threading.Event(), path.with_name("stop")
    readers = [_start("reader", path) for _ in range(processes)]
    start = time.perf_counter()
    writer = _start("writer", path, number, refreshing(threads, processes))
    watch = threading.Thread(target=lambda: (writer.wait(), ended.set()))
    watch.start()
    total = read_in_threads(path, threads, ended)
    watch.join()
    taken = time.perf_counter() - start
    stop.touch()
    for reader in readers:
        out, err = reader.communicate(timeout=LIMIT_S)
        total.add(Seen(**json.loads(out)) if reader.returncode == 0 else Seen(wrong=[err]))
    if writer.returncode:
        total.wrong.append(f"the writer: {writer.communicate()[1]}")
    book = PlanBook.open(path)
    for m, kv in CELLS:
        found = book.lookup(WORKLOAD, m=m, kv=kv, gpu="NVIDIA H200")
        if not found or dict(found.plan.op["B0"].config)["stages"] != STAGES[-1]:
            total.wrong.append(f"{m}, {kv}: the last plan is not the one that is served: {found}")
    return total, taken


def _start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _read_until_stopped(path: Path) -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (until(path.with_name("stop").exists, FOREVER_S), stop.set()), daemon=True).start()
    seen = read_in_threads(path, 1, stop)
    print(json.dumps(vars(seen)))


if __name__ == "__main__":
    what, place, *more = sys.argv[1:]
    if what == "writer":
        write(Path(place), *map(int, more))
    else:
        _read_until_stopped(Path(place))
