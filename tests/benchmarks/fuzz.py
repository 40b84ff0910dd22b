"""Give thousands of bad inputs to everything that mktune reads, and tell what was not refused as it should be.

    python tests/benchmarks/fuzz.py --inputs 20000 --seed 1 [--target rows]

Inputs go in turn to bundles, plan files, store files, rows of a store, search spaces and command lines. Exit code 1
where one ended in a traceback, hung, wrote a file, started a program or ran code.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "unit"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", default="", help="only this one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "a", "b", "c", "d", "e")
        folder.mkdir(parents=True)
        os.chdir(folder)
        os.environ |= {"MKTUNE_HOME": place, "MKTUNE_STORE": "good.db", "MKTUNE_CACHE_DIR": f"{place}/cubins"}
        os.environ["MPLCONFIGDIR"] = place
        importlib.import_module("matplotlib.font_manager")  # its folder and list of fonts, before all is watched
        found = fuzz(folder, asked.inputs, asked.seed, asked.target)
        os.chdir("/")
    return 1 if found else 0


def fuzz(folder: Path, inputs: int, seed: int, target: str) -> int:
    """Print the findings as they come, each kind once, and a table of what was done; how many there were."""
    sys.path.insert(0, str(TESTS))
    from fuzzing import Fuzzer

    logging.disable(logging.CRITICAL)
    fuzzer = Fuzzer(folder, seed)
    targets = {name: give for name, give in fuzzer.targets.items() if target in ("", name)}
    seconds: Counter[str] = Counter()
    given: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    start = time.perf_counter()
    for number in range(inputs):
        name = list(targets)[number % len(targets)]
        begun, refused_before = time.perf_counter(), fuzzer.refused
        finding = targets[name]()
        seconds[name] += time.perf_counter() - begun
        given[name] += 1
        refused[name] += fuzzer.refused > refused_before
        if finding is not None:
            kinds[finding.problem[:120]] += 1
            if kinds[finding.problem[:120]] == 1:
                print(f"{number} {finding.target}: {finding.problem}\n    {finding.given[:600]}", flush=True)
    for name in targets:
        took = 1e3 * seconds[name] / max(given[name], 1)
        print(f"{name:14} {given[name]:6} inputs, {refused[name]:6} refused, {took:6.1f} ms each")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"slowest {fuzzer.slowest[0]:.2f} s: {fuzzer.slowest[1][:100]}")
    print(
        f"{inputs} inputs in {time.perf_counter() - start:.0f} s, peak {peak:.0f} MiB, {sum(kinds.values())} findings"
    )
    return sum(kinds.values())


if __name__ == "__main__":
    sys.exit(main())
