"""What recording a trial costs. Prints one JSON line; exit code 1 where the bar of this file is missed.

python tests/benchmarks/store_rate.py [URL]
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from stored_values import make_measurement, make_plan, make_study, make_trial

from mktune.store import Store

ADD_MS = 0.5
TRIALS = 500


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        place = sys.argv[1] if len(sys.argv) > 1 else str(Path(folder) / "x.db")
        opened, store = _timed(lambda: Store.open(place))
        found = {"open_new_ms": opened, **_record(store)}
        store.close()
        found["open_again_ms"], store = _timed(lambda: Store.open(place))
        store.close()
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))
    return 0 if found["add_ms"] <= ADD_MS else 1


def _record(store: Store) -> dict[str, float]:
    study = make_study(store, f"rate {time.time_ns()}")
    measurement = make_measurement(samples=31)
    begins, adds = [], []
    for number in range(TRIALS):
        plan = make_plan(stages=number)
        trial = make_trial(number, plan)
        trial = replace(trial, outcome=replace(trial.outcome, measurement=measurement))
        begins.append(_timed(lambda plan=plan: store.begin_trial(study, plan, "tpe"))[0])
        adds.append(_timed(lambda trial=trial: store.add_trial(study, trial))[0])
    read, _ = _timed(lambda: store.trials(study))
    board, _ = _timed(lambda: store.leaderboard(study=study.name, limit=10))
    return {
        "begin_ms": statistics.median(begins),
        "add_ms": statistics.median(adds),
        f"read_{TRIALS}_ms": read,
        "leaderboard_ms": board,
    }


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = call()
    return (time.perf_counter() - start) * 1e3, found


if __name__ == "__main__":
    sys.exit(main())
