"""A workload of one's own on a GPU: its kernels are right, and it is tuned, looked up, replayed and launched.

Without a GPU: tests/unit/test_second_workload.py.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from chain import compile_all  # noqa: E402

from mktune.backends.cuda import CudaBackend  # noqa: E402
from mktune.cli import boundary  # noqa: E402
from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.graph.workload import workload  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.lowering.kernel_graph import specs_of  # noqa: E402
from mktune.measure.correctness import verify  # noqa: E402
from mktune.measure.edge import edge_table  # noqa: E402
from mktune.measure.memory import make_memory  # noqa: E402
from mktune.ops.evaluate import differences  # noqa: E402
from mktune.ops.inputs import make_inputs  # noqa: E402
from mktune.plan import KernelPlan, OpPlan  # noqa: E402
from mktune.runtime import PlanBook, load  # noqa: E402
from mktune.shape import Shape  # noqa: E402

pytestmark = pytest.mark.gpu

WORK = workload("gemm_rmsnorm")
ROWS = (1, 2, 7, 16, 17, 64, 100, 128, 256)


def configs(device):
    """Every tile and warp count of the GEMM; splits, stages, threads of the norm and waits take turns."""
    op = WORK.graph.calls["G"].op
    turns = zip(itertools.cycle((1, 2, 4, 8, 16)), itertools.cycle((2, 4, 8)), itertools.cycle((192, 384, 768)))
    waits = itertools.cycle((("entry", "entry"), ("prologue", "prologue"), ("prefetch", "prologue")))
    for impl, fields in op.choices(device.arch).items():
        for block_m, block_n, warps in itertools.product(fields["block_m"], fields["block_n"], fields["warps"]):
            (split, stages, threads), (gdc, gdc_of_norm) = next(turns), next(waits)
            stages = min(stages, 32 // split)
            tile = {"block_m": block_m, "block_n": block_n, "warps": warps, "split_k": split, "stages": stages}
            gemm = OpPlan.of(impl, tile)
            if not op.config_violations(gemm, Shape(1, 1, 64), device):
                placed = {"G": KernelPlan(gdc=gdc, trigger="start"), "N": KernelPlan(gdc=gdc_of_norm)}
                yield {"G": gemm, "N": OpPlan.of("plain", {"threads": threads})}, placed


def test_every_tile_is_right_at_every_row_count(device):
    plans = {}
    for m in ROWS:
        shape = Shape.from_m(m, 64)
        for ops, placed in configs(device):
            base = make_plan(WORK, None, shape, device.arch, "serial+pdl", ops)
            plan = replace(base, kernels=tuple(placed.items())).canonical()
            plans.setdefault(shape, []).append((plan, lower(plan, WORK.graph, shape, device, launches=True)))
    specs = [spec for found in plans.values() for _, lowered in found for spec in specs_of(lowered)]
    kernels = compile_all(list(dict.fromkeys(specs)), workers=12)
    for shape, found in plans.items():
        assert len(found) > 30
        copies = make_memory(WORK.graph, shape, 2, shape.m, "cuda:0").verification()
        for plan, lowered in found:
            verify(plan, lowered, kernels, copies, 2)


@pytest.mark.gpu_alone
def test_tune_look_up_replay_and_launch(device, capsys):
    tune = ("tune", "gemm_rmsnorm", "--m", "16", "--kv", "64", "--backend", "cuda", "--trials", "24", "--json")
    assert boundary.run(tune) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert cell["statuses"].keys() <= {"ok", "pruned", "noisy"}
    shape = Shape.from_m(16, 64)
    hit = PlanBook.open().get("gemm_rmsnorm", shape, gpu=device)
    assert not hit.simulated
    assert hit.winner.validated
    first, second = (make_inputs(WORK.graph, shape, seed, "cuda:0") for seed in (1, 2))
    torch.cuda.synchronize()
    with load(hit, first) as loaded:
        for run, inputs in ((loaded.replay, first), (loaded.launch, first), (loaded.replay, second)):
            loaded.rebind(inputs)
            for name in ("projected", "h"):
                loaded.tensors[name].view(torch.uint8).fill_(0xFF)
            torch.cuda.synchronize()
            run()
            torch.cuda.synchronize()
            assert differences(WORK.graph, inputs, loaded.tensors, shape) == []


@pytest.mark.gpu_alone
def test_the_edge_study_says_for_which_m_the_full_edge_is_as_good(device):
    """All that the norm can do before its wait is to read its weights. As `mktune edge G N --workload gemm_rmsnorm`."""
    ms = (1, 16, 64, 128, 256)
    table = edge_table(CudaBackend(), "gemm_rmsnorm", "G", "N", ms)
    for row in table.rows:
        print(f"M {row.m}, wait {row.wait}: full {row.off_us:.2f} µs, programmatic {row.on_us:.2f} µs ({row.trigger})")
    kinds = {choice.m: choice.kind for choice in table.choices}
    for choice in table.choices:
        saved = choice.saved
        print(f"M {choice.m}: {choice.kind}, PDL saves {saved.median:.2f} µs ({saved.low:.2f} to {saved.high:.2f})")
    print(f"full wins at M: {[m for m, kind in kinds.items() if kind == 'full'] or 'none of these'}")
    assert list(kinds) == list(ms)
    for choice in table.choices:
        assert choice.kind in ("full", "programmatic", "either")
        assert choice.saved.low <= choice.saved.median <= choice.saved.high
        off, on = (min(getattr(row, name) for row in table.rows if row.m == choice.m) for name in ("off_us", "on_us"))
        assert choice.saved.median == pytest.approx(off - on, abs=0.3)  # other rounds
