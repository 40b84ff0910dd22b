"""How fast a look-up answers, opening included. Prints one JSON line; exit code 1 where a bar of this file is missed.

python tests/benchmarks/lookup_rate.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from stored_values import H200, WORKLOAD, make_plan, make_winner

from mktune.jit.fingerprint import kernels_fingerprint
from mktune.runtime import PlanBook
from mktune.shape import Shape
from mktune.store import Store

HIT_US = 2.0
IMPORT_MS = 60.0


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        _fill(path)
        start = time.perf_counter()
        book = PlanBook.open(path)
        open_ms = (time.perf_counter() - start) * 1e3
    shape = Shape.from_m(16, 8192)
    assert book.lookup(WORKLOAD, shape, gpu=H200)
    found = {
        "plans": len(book),
        "open_ms": open_ms,
        "hit_us": _median_us(lambda: book.lookup(WORKLOAD, m=16, kv=8192, gpu="NVIDIA H200")),
        "hit_by_shape_and_device_us": _median_us(lambda: book.lookup(WORKLOAD, shape, gpu=H200)),
        "miss_us": _median_us(lambda: book.lookup(WORKLOAD, m=17, kv=8192, gpu="NVIDIA H200")),
        "first_hit_us": _first_us(book),
        "import_ms": _import_ms(),
    }
    print(json.dumps({name: round(value, 2) for name, value in found.items()}))
    return 0 if found["hit_us"] <= HIT_US and found["import_ms"] <= IMPORT_MS else 1


def _fill(path: Path) -> None:
    build = kernels_fingerprint(WORKLOAD, ("A0", "B0"))
    with Store.open(path) as store:
        for m in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            for kv in range(1024, 65536, 1024):
                store.put_winner(None, make_winner(make_plan(m, kv), kernels=build))


def _median_us(call: Callable[[], object], number: int = 1000, repeat: int = 101) -> float:
    """Median over `repeat` of the mean of `number` calls, the call of the lambda included."""
    call()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(number):
            call()
        times.append((time.perf_counter() - start) / number * 1e6)
    return statistics.median(times)


def _first_us(book: PlanBook) -> float:
    """Median time of a request that was not asked before."""
    times = []
    for kv in range(100, 1100):
        start = time.perf_counter()
        book.lookup(WORKLOAD, m=16, kv=kv, gpu="NVIDIA H200")
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def _import_ms() -> float:
    """Processor time of `import mktune.runtime` in a fresh process: median of 9, the interpreter's start left out."""
    code = "import time; t = time.process_time(); import mktune.runtime; print((time.process_time() - t) * 1e3)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(9)]
    return statistics.median(float(run.stdout) for run in runs)


if __name__ == "__main__":
    sys.exit(main())
