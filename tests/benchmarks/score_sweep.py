"""E1 over its configs, µs per layer with cold pages, beside DeepGEMM's kernel and what memory allows.

    python -m tests.benchmarks.score_sweep [MxKV ...] [--quick] [--config FIELD=VALUE|VALUE,... ...] [--top N]

One CUDA graph of as many chained layers as read four times the L2, each with its own pages, full edges between them;
every config is verified before it is timed. In the same run: DeepGEMM's paged logits (the faster of its two PDL
settings, in a graph of as many layers with their own pages), and the time in which this GPU reads the pages and
writes the logits. --quick keeps to the splits that give every SM work once or twice; --config, which may be repeated,
to configs with those values, some in one cell only: "m=16,kv=65536,q_block=4|8,ahead=none|page". Needs an sm_90 GPU,
torch and deep_gemm.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence

from mktune.backends.base import Problem
from mktune.backends.cuda import CudaBackend
from mktune.device import Device
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.plan import OpPlan, Plan
from mktune.shape import Shape
from mktune.trial import Status
from mktune.validity import check

WORKLOAD = workload("glm52_attention_prefix")
E1 = WORKLOAD.graph.calls["E1"].op


Values = dict[str, tuple[str, ...]]
"""Field → the values that configs are kept with."""


def plans(shape: Shape, device: Device, quick: bool, kept: Sequence[Values] = ()) -> Iterator[Plan]:
    """The default first, then every config that exists at this shape."""
    default = E1.default(device.arch)
    (impl, fields), *_ = E1.choices(device.arch).items()
    fields = {name: (E1.implied[name], *v) if name in E1.implied else v for name, v in fields.items()}
    found = [default]
    for values in itertools.product(*fields.values()):
        config = dict(zip(fields, values, strict=True))
        said = {name: str(value) for name, value in {**config, "m": shape.m, "kv": shape.kv}.items()}
        if not kept or any(all(said[name] in wanted[name] for name in wanted) for wanted in kept):
            found.append(OpPlan.of(impl, {n: v for n, v in config.items() if E1.implied.get(n) != v}))
    for op in dict.fromkeys(found):
        plan = make_plan(WORKLOAD, ("E1",), shape, device.arch, "serial", {"E1": op})
        if not check(plan, device) and (op == default or not quick or _worth_a_look(op, shape, device)):
            yield plan


def _values(text: str) -> Values:
    return {name: tuple(values.split("|")) for name, values in (part.split("=") for part in text.split(","))}


def _worth_a_look(op: OpPlan, shape: Shape, device: Device) -> bool:
    ctas = E1.work(op, shape)[0].ctas
    full = dict(op.config)["q_block"] <= shape.tokens_per_request
    return full and (device.sms * 0.4 <= ctas <= device.sms * 4)


def measured(backend: CudaBackend, shape: Shape, quick: bool, kept: Sequence[Values] = ()) -> list[tuple[float, str]]:
    """(µs, config) of every plan, the fastest first; what failed comes last, with why."""
    rows = []
    with backend.open(Problem(WORKLOAD.name, ("E1",), shape)) as bench:
        chosen = list(plans(shape, backend.device, quick, kept))
        bench.prepare(chosen)
        best = None
        for plan in chosen:
            outcome = bench.measure(plan, best)
            title = " ".join(f"{name} {value}" for name, value in plan.op["E1"].config)
            title += " (default)" if plan is chosen[0] else ""
            if outcome.measurement is None:
                rows.append((float("inf"), f"{title}: {outcome.status} {outcome.reason}"))
                continue
            span = outcome.measurement.span_us
            rows.append((span, title + (" (dropped early)" if outcome.status == Status.PRUNED else "")))
            best = min(best or span, span)
    return sorted(rows)


def peer_us(shape: Shape) -> float:
    """DeepGEMM's kernel for the same scores, contexts full."""
    import deep_gemm
    import torch

    from tests.benchmarks.peer_baseline import copies_for, graph_us

    rows, pages = shape.tokens_per_request, shape.kv // 64
    layers = copies_for(pages * shape.requests * 64 * 132)
    pools = [torch.randint(0, 120, (pages * shape.requests, 64, 1, 132), device="cuda").byte() for _ in range(layers)]
    for pool in pools:
        pool.view(-1, 64 * 132)[:, 64 * 128 :] = torch.ones(64, device="cuda").view(torch.uint8)
    table = torch.randperm(pages * shape.requests, device="cuda").int().view(shape.requests, pages)
    table = table.repeat_interleave(rows, 0).contiguous()
    queries = (torch.randn(shape.m, 1, 32, 128, device="cuda") * 0.5).to(torch.float8_e4m3fn)
    weights = torch.randn(shape.m, 32, device="cuda")
    context = torch.full((shape.m, 1), shape.kv, dtype=torch.int32, device="cuda")
    meta = deep_gemm.get_paged_mqa_logits_metadata(context, 64, deep_gemm.get_num_sms())

    def layer(i: int) -> None:
        deep_gemm.fp8_paged_mqa_logits(queries, pools[i], weights, context, table, meta, shape.kv, False)

    found = []
    for pdl in (False, True):
        deep_gemm.set_pdl(pdl)
        found.append(graph_us(layer, layers))
    return min(found)


def memory_us(shape: Shape) -> float:
    """Pages, queries and logits at the bandwidth that reading reaches here."""
    from tests.benchmarks.peer_baseline import read_bandwidth_tb_s

    moved = sum(E1.ports[port].nbytes(shape) for port in ("index_k_cache", "qi", "w", "logits"))
    return moved / read_bandwidth_tb_s() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", default=["16x8192", "16x65536"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--config", action="append", type=_values, default=[], help="fields and their values")
    parser.add_argument("--top", type=int, default=12, help="configs to print of each cell")
    given = parser.parse_args()
    backend = CudaBackend()
    print(backend.device.name)
    for cell in given.cells:
        m, kv = map(int, cell.split("x"))
        shape = Shape.from_m(m, kv)
        rows = measured(backend, shape, given.quick, given.config)
        for at, (span, title) in enumerate(rows):
            if at < given.top or span == float("inf") or "default" in title:
                print(f"{span:8.2f}  {title}")
        peer, limit = peer_us(shape), memory_us(shape)
        best = rows[0][0]
        summary = {"m": m, "kv": kv, "best_us": best, "peer_us": peer, "ratio": best / peer, "memory_us": limit}
        print(json.dumps({name: round(value, 3) for name, value in summary.items()}), flush=True)


if __name__ == "__main__":
    main()
