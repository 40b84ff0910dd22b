"""Tunes the cells whose plans ship, once for each seed, beside the peer: do two seeds agree, and where do plans stand?

    python -m tests.benchmarks.shipped_cells --out FOLDER [--m 1,16,64] [--kv 8192,65536] [--trials 300] [--seeds 0,1]

Each seed has a store of its own, so that no search sees what another found, and the next free GPU of those visible. No
search starts from plans that ship or from winners of other cells; with --known they do, as any tune does. The peer
(peer_baseline.py) runs when the searches have ended, alone on the first GPU. Prints a line for each cell: the four
built-in plans, each seed's winner, how far the worse is from the better, and the better over the peer's times with its
faster PDL setting. In FOLDER: seed_N.db, seed_N.json (what `mktune tune` printed), peer.txt, cells.json (the table) and
plans.json (the better winner of each cell). A seed whose JSON has a winner of every cell is not searched again. Exit 1
where a search or the peer failed or two seeds disagree by more than 2 %. Needs a GPU, and deep_gemm for the peer;
`--no-peer` leaves it out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

WORKLOAD = "glm52_attention_prefix"
BUILTINS = ("serial", "serial+pdl", "branches", "branches+pdl")
PEER = Path(__file__).with_name("peer_baseline.py")
PDL_SETTINGS = 2
AGREE = 0.02


@dataclass(frozen=True)
class Cell:
    """One shape. µs per layer; `builtins` by name, `winners` by seed; a peer's time that was not measured is 0."""

    m: int
    kv: int
    builtins: Mapping[str, float]
    winners: Mapping[int, float]
    trials: Mapping[int, int]
    peer_serial: float
    peer_streams: float

    @property
    def best(self) -> float:
        return min(self.winners.values())

    @property
    def spread(self) -> float:
        """How much longer the worst winner takes than the best, as a fraction."""
        return max(self.winners.values()) / self.best - 1

    def line(self) -> str:
        peers = [f"{us:7.2f} {self.best / us:5.2f}" if us else "      –     –" for us in self.peers]
        spans = [*(self.builtins.get(name, 0.0) for name in BUILTINS), *self.winners.values()]
        trials = "+".join(map(str, self.trials.values()))
        return " ".join([f"{self.m:4} {self.kv:6}", *(f"{us:9.2f}" for us in spans), f"{100 * self.spread:6.2f} %",
                         *peers, f"{trials:>9}"])  # fmt: skip

    @property
    def peers(self) -> tuple[float, float]:
        return self.peer_serial, self.peer_streams


def mktune(*arguments: str, gpu: str = "", **pipes: Any) -> subprocess.CompletedProcess[str]:
    """The command line of this checkout, seeing only `gpu` where one is named."""
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})}
    return subprocess.run([sys.executable, "-m", "mktune", *arguments], env=environment, text=True, **pipes)


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may be set to, one GPU each."""
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def search(seed: int, options: argparse.Namespace, gpus: SimpleQueue[str]) -> dict[str, Any]:
    """What `mktune tune` printed over all cells with `seed`, on the next free GPU; or what it did in an earlier run."""
    printed = options.out / f"seed_{seed}.json"
    if printed.exists():
        document = dict(json.loads(printed.read_text() or '{"cells": []}'))
        if set(asked(options)) <= set(by_shape(document)):
            return document
    gpu = gpus.get()
    shape = ["--m", options.m, "--kv", options.kv, "--trials", str(options.trials), "--seed", str(seed)]
    store = ["--store", str(options.out / f"seed_{seed}.db"), "--backend", options.backend, "--json"]
    store += [] if options.known else ["--from-scratch"]
    with (options.out / f"seed_{seed}.log").open("w") as log:
        done = mktune("tune", WORKLOAD, *shape, *store, gpu=gpu, stdout=subprocess.PIPE, stderr=log)
    gpus.put(gpu)
    printed.write_text(done.stdout)
    if not done.stdout:
        sys.exit(f"seed {seed}: exit {done.returncode}; see {options.out / f'seed_{seed}.log'}")
    return dict(json.loads(done.stdout))


def peer_times(shapes: Sequence[tuple[int, int]], out: Path, gpu: str) -> dict[tuple[int, int], tuple[float, float]]:
    """(M, KV) → µs of the peer's serial and three-stream graphs, each with its faster PDL setting.

    Where the peer fails, the cells that it had measured until then: what the searches found is not lost with it.
    """
    command = [sys.executable, str(PEER), *(f"{m}x{kv}" for m, kv in shapes)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE)
    (out / "peer.txt").write_text(done.stdout)
    if done.returncode:
        print(f"the peer failed with exit {done.returncode}", file=sys.stderr)
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for row in map(json.loads, done.stdout.splitlines()[1:]):
        rows.setdefault((row["m"], row["kv"]), []).append((row["serial_us"], row["three_streams_us"]))
    return {
        shape: (min(serial), min(streams))
        for shape, times in rows.items()
        if len(times) == PDL_SETTINGS
        for serial, streams in [zip(*times, strict=True)]
    }


def asked(options: argparse.Namespace) -> list[tuple[int, int]]:
    """(M, KV) of every cell."""
    return [(int(m), int(kv)) for kv in options.kv.split(",") for m in options.m.split(",")]


def by_shape(document: Mapping[str, Any]) -> dict[tuple[int, int], dict[str, Any]]:
    return {(cell["m"], cell["kv"]): cell for cell in document["cells"] if cell.get("winner")}


def table(
    found: Mapping[int, Mapping[str, Any]], peers: Mapping[tuple[int, int], tuple[float, float]]
) -> tuple[list[Cell], list[str]]:
    """A row for each cell that every seed has a winner of, and what is missing."""
    seeds = {seed: by_shape(document) for seed, document in found.items()}
    shapes = sorted(
        {(c["m"], c["kv"]) for document in found.values() for c in document["cells"]}, key=lambda s: s[::-1]
    )
    cells, missing = [], []
    for shape in shapes:
        rows = {seed: cells_of[shape] for seed, cells_of in seeds.items() if shape in cells_of}
        missing += [f"M={shape[0]} KV={shape[1]}: no winner with seed {seed}" for seed in seeds.keys() - rows.keys()]
        if len(rows) == len(seeds):
            spans = {seed: row["winner"]["measurement"]["span_us"] for seed, row in rows.items()}
            better = rows[min(spans, key=lambda seed: spans[seed])]["winner"]
            trials = {seed: row["measured"] for seed, row in rows.items()}
            cells.append(Cell(*shape, better["builtins"], spans, trials, *peers.get(shape, (0.0, 0.0))))
    return cells, missing


def export(seeds: Sequence[int], out: Path) -> None:
    """plans.json: what a look-up would serve of all stores together. `seeds` are those that found something."""
    union = str(out / "union.db")
    for seed in seeds:
        bundle = str(out / f"plans_{seed}.json")
        mktune("export", WORKLOAD, "--store", str(out / f"seed_{seed}.db"), "--out", bundle, check=True)
        mktune("import", bundle, "--store", union, check=True)
    if seeds:
        mktune("export", WORKLOAD, "--store", union, "--out", str(out / "plans.json"), check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--m", default="1,16,64")
    parser.add_argument("--kv", default="8192,65536")
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--backend", default="cuda", choices=["cuda", "sim"])
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--known", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    names = visible_gpus() if options.backend == "cuda" else [""]
    gpus: SimpleQueue[str] = SimpleQueue()
    for gpu in names:
        gpus.put(gpu)
    with ThreadPoolExecutor(len(names)) as pool:
        found = dict(zip(seeds, pool.map(lambda seed: search(seed, options, gpus), seeds), strict=True))
    shapes = asked(options)
    peers = {} if options.no_peer else peer_times(shapes, options.out, names[0])
    cells, missing = table(found, peers)
    missing += [] if options.no_peer else [f"M={m} KV={kv}: no peer" for m, kv in shapes if (m, kv) not in peers]
    (options.out / "cells.json").write_text(json.dumps([asdict(cell) for cell in cells], indent=1))
    heads = [f"{name:>9}" for name in ("serial", "+pdl", "branches", "br+pdl", *(f"seed {s}" for s in seeds))]
    print("   M     KV", *heads, "  spread    peer ratio streams ratio   trials")
    for cell in cells:
        print(cell.line())
    apart = [f"M={cell.m} KV={cell.kv}: winners are {100 * cell.spread:.1f} % apart" for cell in cells
             if cell.spread > AGREE]  # fmt: skip
    for problem in (*missing, *apart):
        print(problem)
    if options.backend == "cuda":
        export([seed for seed in seeds if by_shape(found[seed])], options.out)
    return 1 if missing or apart else 0


if __name__ == "__main__":
    sys.exit(main())
