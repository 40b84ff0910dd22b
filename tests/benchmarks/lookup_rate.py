"""How fast a book opens and answers, and what it keeps. Prints one JSON line; exit code 1 where a bar is missed.

python tests/benchmarks/lookup_rate.py

The book holds 10,000 plans of the whole workload (20 M × 500 KV) with 61 samples each: 3.9 KB of JSON a plan.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from stored_values import H200, WORKLOAD, make_measurement, make_winner

from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit.fingerprint import kernels_fingerprint
from mktune.runtime import PlanBook
from mktune.shape import Shape
from mktune.store import Store, winners, write_bundle
from mktune.trial import Winner

ROWS = (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 224, 256)
CONTEXTS = tuple(range(256, 500 * 256 + 1, 256))
ASKED = tuple((m, kv) for m in (1, 8, 12, 16, 24, 64, 128, 256) for kv in range(1000, 9000, 1000))
LOOK_UPS = 1_000_000

BARS = {
    "hit_us": 2.0,
    "hit_p99_us": 10.0,
    "grown_mib": 5.0,
    "open_json_ms": 1000.0,
    "open_sqlite_ms": 50.0,
    "import_ms": 60.0,
}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        store, file = Path(folder) / "x.db", Path(folder) / "x.json"
        _fill(store, file)
        found = {
            "plans": len(ROWS) * len(CONTEXTS),
            "open_sqlite_ms": _fresh_ms(_OPEN, str(store)),
            "open_json_ms": _fresh_ms(_OPEN, str(file)),
            "import_ms": _fresh_ms(_IMPORT),
        }
        book = PlanBook.open(store)
        found |= _first_ms(book) | _each_us(book) | _kept(book)
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))
    missed = [name for name, bar in BARS.items() if not found[name] <= bar]
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _fill(store: Path, file: Path) -> None:
    plan = make_plan(workload(WORKLOAD), None, Shape.from_m(16, 8192), "sm_90a", "branches+pdl")
    build = kernels_fingerprint(WORKLOAD)
    measurement = make_measurement(samples=61)

    def at(m: int, kv: int) -> Winner:
        shape = Shape.from_m(m, kv)
        moved = replace(plan, shape=shape, m_range=shape.served_m, kv_range=shape.served_kv)
        return make_winner(moved, kernels=build, measurement=measurement)

    everything = [at(m, kv) for m in ROWS for kv in CONTEXTS]
    random.Random(0).shuffle(everything)
    with Store.open(store) as opened, opened._database.write() as connection:
        for winner in everything:
            winners.put(connection, winner, "", own_build=lambda winner: True)
    write_bundle(file, everything)


_OPEN = """
import sys, time
from mktune.runtime import PlanBook
t = time.process_time(); book = PlanBook.open(sys.argv[1]); print((time.process_time() - t) * 1e3)
assert len(book) == 10000
"""
_IMPORT = "import time; t = time.process_time(); import mktune.runtime; print((time.process_time() - t) * 1e3)"


def _fresh_ms(code: str, *arguments: str) -> float:
    """The processor time that `code` prints in a fresh process, system calls included: median of 9."""
    command = [sys.executable, "-c", code, *arguments]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(9)]
    return statistics.median(float(run.stdout) for run in runs)


def _first_ms(book: PlanBook) -> dict[str, float]:
    """The very first look-up, which imports the checks; the first in another group of plans; first ones after those."""
    times = [_timed(lambda m=m, kv=kv: book.lookup(WORKLOAD, m=m, kv=kv, gpu=H200)) for m, kv in ((1, 100), (16, 100))]
    later = [_timed(lambda kv=kv: book.lookup(WORKLOAD, m=16, kv=kv, gpu=H200)) for kv in range(50_000, 50_200)]
    missed = [_timed(lambda kv=kv: book.lookup(WORKLOAD, m=16, kv=130_000 + kv, gpu=H200)) for kv in range(20)]
    return {
        "first_ms": times[0] * 1e3,
        "first_of_group_ms": times[1] * 1e3,
        "first_hit_us": statistics.median(later) * 1e6,
        "first_miss_us": statistics.median(missed) * 1e6,
    }


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _each_us(book: PlanBook) -> dict[str, float]:
    """Single hits over 64 shapes, the clock read before and after each; and the mean of many in a row."""
    shapes = [Shape.from_m(m, kv) for m, kv in ASKED]
    for m, kv in ASKED:
        assert book.lookup(WORKLOAD, m=m, kv=kv, gpu="NVIDIA H200")
    for shape in shapes:
        assert book.lookup(WORKLOAD, shape, gpu=H200)
    clock, lookup, order = time.perf_counter_ns, book.lookup, ASKED * 1600
    taken = []
    for m, kv in order:
        start = clock()
        lookup(WORKLOAD, m=m, kv=kv, gpu="NVIDIA H200")
        taken.append(clock() - start)
    taken.sort()
    return {
        "hit_us": statistics.median(taken) / 1e3,
        "hit_p99_us": taken[int(0.99 * len(taken))] / 1e3,
        "hit_by_shape_and_device_us": _mean_us(shapes, lambda shape: lookup(WORKLOAD, shape, gpu=H200)),
        "miss_us": _mean_us(shapes, lambda shape: lookup("other", shape, gpu="NVIDIA H200")),
    }


def _mean_us(shapes: Sequence[Shape], call: Callable[[Shape], object]) -> float:
    """Median over 101 rounds of the mean over the shapes."""
    for shape in shapes:
        call(shape)
    rounds = []
    for _ in range(101):
        start = time.perf_counter()
        for shape in shapes:
            call(shape)
        rounds.append((time.perf_counter() - start) / len(shapes) * 1e6)
    return statistics.median(rounds)


def _kept(book: PlanBook) -> dict[str, float]:
    """How much memory a million look-ups over 64 shapes leave behind, the first of each shape included."""
    book.refresh()
    gc.collect()
    tracemalloc.start()
    before, resident = tracemalloc.get_traced_memory()[0], _resident_mib()
    for number in range(LOOK_UPS):
        m, kv = ASKED[number % len(ASKED)]
        book.lookup(WORKLOAD, m=m, kv=kv, gpu="NVIDIA H200")
    gc.collect()
    grown = (tracemalloc.get_traced_memory()[0] - before) / 2**20
    tracemalloc.stop()
    return {"grown_mib": grown, "resident_grown_mib": _resident_mib() - resident}


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


if __name__ == "__main__":
    sys.exit(main())
