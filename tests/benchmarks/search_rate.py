"""What a search costs beside measuring, and what each sampler finds in the model's space: no GPU, prints one table.

    python tests/benchmarks/search_rate.py [--trials 50] [--seeds 3]

ask is the sampler's time for a proposal (beside measuring), own is check + lower + store of a trial (the bar is 10 ms),
best is the span that the model gives to the best plan, over its span of the best built-in plan.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from mktune import backends
from mktune.graph.workload import workload
from mktune.search import Budget, TuneResult, sampler_names, tune
from mktune.search.result import span_of
from mktune.shape import Shape
from mktune.space import SearchSpace
from mktune.store import Store

WORKLOAD = workload("glm52_attention_prefix")
SHAPE = Shape.from_m(16, 8192)


def search(ops: tuple[str, ...] | None, sampler: str, seed: int, trials: int) -> tuple[TuneResult, float]:
    """One search on the model, and its wall time in seconds."""
    backend = backends.get("sim")
    space = SearchSpace.load(WORKLOAD, ops, SHAPE, backend.device)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "store.db") as store:
        study = store.study(
            "benchmark",
            workload=WORKLOAD.name,
            ops=tuple(space.graph.calls),
            shape=SHAPE,
            device=backend.device,
            backend=backend.name,
            sampler=sampler,
            seed=seed,
            contract=WORKLOAD.contract,
        )
        begin = time.perf_counter()
        result = tune(space, backend, store, study, Budget(trials))
        return result, time.perf_counter() - begin


def gain(result: TuneResult) -> float:
    """Best span over the best built-in span."""
    assert result.best is not None
    built = [span for trial in result.trials if trial.source.startswith("builtin") and (span := span_of(trial))]
    best = span_of(result.best)
    assert best is not None
    return best / min(built)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print(f"{'ops':8} {'sampler':8} {'ask ms':>8} {'own ms':>8} {'trials/s':>9} {'best':>6}  of {given.trials} trials")
    for ops in (("A0", "B0"), None):
        for sampler in sampler_names():
            runs = [search(ops, sampler, seed, given.trials) for seed in range(given.seeds)]
            ask = statistics.median(result.seconds["ask"] / given.trials for result, _ in runs) * 1e3
            own = statistics.median(result.overhead_seconds for result, _ in runs) * 1e3
            rate = statistics.median(given.trials / wall for _, wall in runs)
            best = statistics.median(gain(result) for result, _ in runs)
            name = ",".join(ops) if ops else "all"
            print(f"{name:8} {sampler:8} {ask:8.2f} {own:8.2f} {rate:9.0f} {best:6.3f}", flush=True)


if __name__ == "__main__":
    main()
