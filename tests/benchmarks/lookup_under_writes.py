"""64 threads and 8 processes look plans up while another process commits 1,000. Prints one JSON line; exit code 1 where
anything went wrong: an error, a refused read, a plan that is torn, older than one seen before, or another than asked.

python tests/benchmarks/lookup_under_writes.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from readers_and_a_writer import race

THREADS, PROCESSES, PLANS = 64, 8, 1000


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        seen, taken = race(Path(folder) / "x.db", THREADS, PROCESSES, PLANS)
    found = {
        "threads": THREADS,
        "processes": PROCESSES,
        "commits": PLANS,
        "seconds": round(taken, 1),
        "look_ups": seen.look_ups,
        "refreshes": seen.refreshes,
        "slowest_look_up_s": round(seen.slowest_hit, 3),
        "slowest_refresh_s": round(seen.slowest_refresh, 3),
        "wrong": seen.wrong[:20],
    }
    print(json.dumps(found))
    return 1 if seen.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
