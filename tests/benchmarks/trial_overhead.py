"""What mktune itself costs a trial, at many trials of one study on SQLite: no GPU, prints one table.

    python tests/benchmarks/trial_overhead.py [--trials 2000] [--takes 0.02] [--sampler random]

A scripted bench answers after `takes` seconds with 200 samples, over the space of the whole workload. Each phase is
told in wall time for each trial; own is check + lower + prepare + store (the bar is 5 ms); CPU is that of the process
for a trial, the sampler's asking included. ask, check and lower run beside measuring.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from fake_bench import POLICY, FakeBackend, search, space_of, spans

from mktune.plan import Plan
from mktune.search.result import PHASES
from mktune.store import Store
from mktune.trial import Measurement, Outcome, Status


def answer(plan: Plan) -> Outcome:
    span = spans(plan)
    samples = tuple(span + 0.001 * (place % 7) for place in range(200))
    return Outcome(Status.OK, measurement=Measurement(span, span, span, samples, POLICY))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--takes", type=float, default=0.02)
    parser.add_argument("--sampler", default="random")
    given = parser.parse_args()
    space = space_of(None)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "x.db") as store:
        begin = time.process_time()
        result = search(
            store, FakeBackend(answer, takes_s=given.takes), given.trials, space=space, sampler=given.sampler
        )
        cpu = (time.process_time() - begin) / len(result.trials)
    per_trial = {phase: 1e3 * result.seconds[phase] / len(result.trials) for phase in PHASES}
    print(f"{len(result.trials)} trials, {1e3 * given.takes:g} ms each, sampler {given.sampler}: ms for each trial")
    print("  ".join(f"{phase} {spent:.2f}" for phase, spent in per_trial.items()))
    print(f"own {1e3 * result.overhead_seconds:.2f}  CPU {1e3 * cpu:.2f}")
    print(f"measuring {100 * result.measuring_seconds / result.seconds['total']:.0f} % of the wall time")


if __name__ == "__main__":
    main()
