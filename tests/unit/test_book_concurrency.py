"""Look-ups in threads, processes and forks while another process commits winners: no error, no torn plan."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from readers_and_a_writer import CELLS, race, refreshing
from test_book import ask, served
from waiting import LIMIT_S

from mktune.runtime import Hit, PlanBook
from mktune.store import Store


def test_readers_beside_a_writer_see_whole_plans_and_no_error(tmp_path: Path) -> None:
    """The size of the bar is that of tests/benchmarks/lookup_under_writes.py."""
    seen, _ = race(tmp_path / "x.db", threads=16, processes=2, number=4 * len(CELLS))
    assert seen.wrong == []
    assert seen.between == refreshing(threads=16, processes=2)  # they did read while it was written
    assert seen.look_ups > 18 * len(CELLS)


def test_answers_during_a_refresh_are_of_one_snapshot(tmp_path: Path) -> None:
    """Two states of a store, each consistent in itself: no thread sees a plan that its snapshot does not have."""
    first, second = served(span_us=10.0), served(span_us=9.0)
    path = tmp_path / "x.db"
    with Store.open(path) as store:
        store.put_winner(None, first)
    book, stop, wrong = PlanBook.open(path), threading.Event(), []

    def look() -> None:
        newest = 10.0
        while not stop.is_set():
            found = ask(book)
            span = found.winner.measurement.span_us if isinstance(found, Hit) else 0.0
            if span not in (9.0, 10.0) or span > newest:
                wrong.append(span)
            newest = min(newest, span)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    with Store.open(path) as store:
        for _ in range(20):
            book.refresh()
        store.put_winner(None, second)
        for _ in range(20):
            book.refresh()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert ask(book).winner == second


# In processes of their own: the first look-up of each imports modules, and other tests leave SQLite's objects behind.
_FORK = """
import os, signal, sys, threading
sys.path.insert(0, {tests!r})
from test_book import ask, reason
from mktune.runtime import Hit, PlanBook
book, stop = PlanBook.open({path!r}), threading.Event()

def look():
    while not stop.is_set():
        book.refresh()
        ask(book)

threads = [threading.Thread(target=look) for _ in range(4)]
for thread in threads:
    thread.start()
codes = []
for _ in range({count}):
    child = os.fork()
    if child == 0:
        signal.alarm({limit})  # a lock that the fork left held is a failure, not a hang
        good = isinstance(ask(book), Hit) and reason(ask(book, m=24)) == "shape"
        os._exit(0 if good and isinstance(ask(book.refresh()), Hit) else 1)
    codes.append(os.waitpid(child, 0)[1])
    if codes[-1]:
        break
stop.set()
for thread in threads:
    thread.join()
print(codes)
"""


def test_a_fork_of_a_process_whose_threads_look_up_answers_and_refreshes(tmp_path: Path) -> None:
    path, processes, forks = tmp_path / "x.db", 5, 8
    with Store.open(path) as store:
        store.put_winner(None, served())
    code = _FORK.format(tests=str(Path(__file__).parent), path=str(path), count=forks, limit=int(LIMIT_S))
    for _ in range(processes):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (f"{[0] * forks}\n", "")
