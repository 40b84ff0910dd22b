"""DeepGEMM's templates in our plans, against the fp64 reference: every op, tiles of every class, both triggers.

As in test_config_matrix: poisoned results, workspaces and cache rows, contexts shorter than the cache, padding rows,
two layers that share workspaces, a second replay with the same bits. And the layouts that mktune's copy of its
heuristic picks are those that DeepGEMM itself picks when it runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from chain import H200, Kernels, compile_all  # noqa: E402
from configured import KNOWN, Case, faults, memory  # noqa: E402

from mktune import deep_gemm  # noqa: E402
from mktune.graph.builtin import MODES, make_plan  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.lowering.kernel_graph import KernelGraph  # noqa: E402
from mktune.measure.correctness import KnownResults, verify  # noqa: E402
from mktune.measure.memory import make_memory  # noqa: E402
from mktune.ops.deep_gemm import WithDeepGemm  # noqa: E402
from mktune.ops.deep_gemm.scores import SPLIT  # noqa: E402
from mktune.plan import ConfigValue, KernelPlan, OpPlan, Plan  # noqa: E402
from mktune.shape import Shape  # noqa: E402
from mktune.validity import check  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(deep_gemm.missing()), reason=deep_gemm.missing())]

ROWS = (1, 2, 7, 16, 17, 64, 128, 256)
CAPACITY = 1000
FP8 = ("B0", "B1", "D0", "D1")
Fields = dict[str, ConfigValue]

FP8_TILES: tuple[Fields, ...] = (
    {"block_m": 16, "block_n": 16, "stages": 8},
    {"block_m": 16, "block_n": 64, "stages": 12, "ctas": 96},
    {"block_m": 32, "block_n": 48, "stages": 5, "multicast": "activations"},
    {"block_m": 32, "block_n": 112, "stages": 4, "ctas": 64},
    {"block_m": 64, "block_n": 96, "stages": 4},
    {"block_m": 64, "block_n": 128, "stages": 3, "ctas": 32, "multicast": "activations"},
    {"block_m": 128, "block_n": 64, "stages": 6, "multicast": "weights"},
    {"block_m": 128, "block_n": 144, "stages": 3},
    {"block_m": 128, "block_n": 192, "stages": 3},
    {"block_m": 256, "block_n": 128, "stages": 2},
)

GATE_TILES: tuple[Fields, ...] = (
    {"block_m": 16, "block_n": 32, "stages": 8},
    {"block_m": 32, "block_n": 16, "stages": 12},  # from ten stages on the template merges them
    {"block_m": 64, "block_n": 32, "stages": 15},
    {"block_m": 128, "block_n": 16, "stages": 4},
)
ABSORB_TILES: tuple[Fields, ...] = (
    {"block_m": 16, "block_n": 64, "stages": 4, "ctas": 64},
    {"block_m": 32, "block_n": 128, "stages": 2},
    {"block_m": 64, "block_n": 64, "stages": 6, "ctas": 96},
    {"block_m": 128, "block_n": 128, "stages": 3, "ctas": 32},
    {"block_m": 256, "block_n": 64, "stages": 3},
)
TILES = {**dict.fromkeys(FP8, FP8_TILES), "C0": GATE_TILES, "D2": ABSORB_TILES}

SCORES: tuple[Fields, ...] = (
    {"q_block": 1, "stages": 2, "ctas": 132},
    {"q_block": 1, "stages": 5, "ctas": 32},
    {"q_block": 2, "stages": 3, "ctas": 132},
    {"q_block": 2, "stages": 4, "ctas": 96},
)


def op_of(call: str) -> WithDeepGemm:
    op = KNOWN.graph.calls[call].op
    assert isinstance(op, WithDeepGemm)
    return op


def cases(call: str, tiles: tuple[Fields, ...]) -> Iterator[Case]:
    """Those tiles and DeepGEMM's own choices; triggers take turns."""
    op = op_of(call)
    picked = [op.heuristic(Shape.from_m(rows, CAPACITY), H200) for rows in ROWS]
    plain = {**dict(picked[0].config), **({"multicast": "none"} if call in FP8 else {})}
    spread = [OpPlan.of(picked[0].impl, {**plain, **tile}) for tile in tiles]
    for number, plan in enumerate(dict.fromkeys([*picked, *spread])):
        yield Case(call, plan, placed(op, plan, ("exit", "after_wait")[number % 2]))


def placed(op: WithDeepGemm, plan: OpPlan, trigger: str) -> tuple[KernelPlan, ...]:
    """Every kernel waits behind its prologue."""
    return tuple(replace(op.plainest(plan, suffix), gdc="prologue", trigger=trigger) for suffix in op.kernels(plan))


CASES = {call: tuple(cases(call, tiles)) for call, tiles in TILES.items()}
SCORE_PLANS = [OpPlan.of("deep_gemm", fields) for fields in SCORES]
CASES["E1"] = tuple(
    Case("E1", plan, placed(op_of("E1"), plan, trigger))
    for plan, trigger in zip(SCORE_PLANS, ("exit", "after_wait") * 2, strict=True)
)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    graphs = [case.lowered(Shape(2, 8, CAPACITY)) for found in CASES.values() for case in found]
    return compile_all([launch.kernel for graph in graphs for _, launch in graph.launches], workers=14)


@pytest.mark.parametrize("call", TILES)
def test_gemms_are_right_at_every_number_of_rows(call: str, kernels: Kernels, device: object) -> None:
    shapes = [Shape.from_m(rows, CAPACITY) for rows in ROWS]
    assert [line for case in CASES[call] for line in faults(case, shapes, kernels)] == []
    memory.cache_clear()


def no_short_contexts(shape: Shape) -> None:
    """Rows that the template's sums are fine enough for (`mktune/ops/deep_gemm/scores.py`)."""
    copies, _ = memory("E1", shape, True, KNOWN.scale_format)
    lengths = copies.memory.args["context_lens"]
    lengths[lengths > 0] = lengths[lengths > 0].clamp(min=SPLIT)


@pytest.mark.parametrize("kv", [264, 300, 4096, 8192])
def test_scores_are_right_at_every_number_of_rows_and_capacity(kv: int, kernels: Kernels, device: object) -> None:
    """Shapes whose requests have an odd number of tokens are scored token by token only."""
    wrong = []
    shapes = [Shape.from_m(rows, kv) for rows in ROWS]
    shapes += [Shape(3, 5, kv), Shape(4, 1, kv), Shape(5, 2, kv), Shape(64, 4, kv)]
    for shape in shapes:  # one after the other: they are large
        no_short_contexts(shape)
        fitting = [case for case in CASES["E1"] if shape.tokens_per_request % dict(case.op.config)["q_block"] == 0]
        assert fitting
        wrong += [line for case in fitting for line in faults(case, [shape], kernels)]
        memory.cache_clear()
    assert wrong == []


PREFIX_ROWS = (1, 16, 100)


def prefix(rows: int, mode: str) -> tuple[Plan, KernelGraph]:
    """The whole prefix with what DeepGEMM's own heuristic picks, wherever there is a template."""
    shape = Shape.from_m(rows, 4096)
    ops = {name: call.op for name, call in KNOWN.graph.calls.items() if isinstance(call.op, WithDeepGemm)}
    plan = make_plan(KNOWN, None, shape, "sm_90a", mode, {name: op.heuristic(shape, H200) for name, op in ops.items()})
    assert check(plan, H200) == []
    return plan, lower(plan, KNOWN.subgraph(None), shape, H200, launches=True)


@pytest.fixture(scope="module")
def of_prefix() -> Kernels:
    graphs = [prefix(rows, mode)[1] for rows in PREFIX_ROWS for mode in MODES]
    return compile_all([launch.kernel for graph in graphs for _, launch in graph.launches], workers=14)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", PREFIX_ROWS)
def test_the_whole_prefix_runs_on_its_templates(rows: int, mode: str, of_prefix: Kernels, device: object) -> None:
    plan, graph = prefix(rows, mode)
    copies = make_memory(KNOWN.subgraph(None), plan.shape, 2, seed=rows, place="cuda:0", ragged=True).verification()
    verify(plan, graph, of_prefix, copies, 2, KnownResults())


HEURISTIC_ROWS = (1, 17, 64, 128, 256)
_RUN = """
import ctypes, sys, torch, deep_gemm
from deep_gemm.utils import per_block_cast_to_fp8, per_token_cast_to_fp8
for problem in sys.argv[1:]:
    m, n, k = map(int, problem.split("x"))
    with torch.device("cuda"):
        codes, scales = per_token_cast_to_fp8(torch.randn(m, k).bfloat16(), use_ue8m0=False)
        given = codes, deep_gemm.get_mn_major_tma_aligned_tensor(scales)
        weights = per_block_cast_to_fp8(torch.randn(n, k).bfloat16(), use_ue8m0=False)
        deep_gemm.fp8_gemm_nt(given, weights, torch.empty(m, n, dtype=torch.bfloat16))
    ctypes.CDLL(None).fflush(None)  # what the library has printed
    print("ran", problem, flush=True)
"""


def problem(call: str, rows: int) -> str:
    size = op_of(call).problem  # type: ignore[attr-defined]
    return f"{rows}x{size.n}x{size.k}"


@cache
def said() -> dict[str, str]:
    """Problem → what DeepGEMM printed while it ran it, all in one process; empty where it cannot be imported."""
    if subprocess.run([sys.executable, "-c", "import deep_gemm"], capture_output=True, check=False).returncode:
        return {}
    problems = [problem(call, rows) for call in FP8 for rows in HEURISTIC_ROWS]
    environment = {**os.environ, "DG_PRINT_CONFIGS": "1"}
    command = [sys.executable, "-c", _RUN, *problems]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    printed = re.split(r"^ran (\S+)\n", done.stdout, flags=re.MULTILINE)
    return dict(zip(printed[1::2], printed[::2], strict=False))


@pytest.mark.parametrize("rows", HEURISTIC_ROWS)
@pytest.mark.parametrize("call", FP8)
def test_the_heuristic_picks_what_deep_gemm_picks(call: str, rows: int, device: object) -> None:
    if not said():
        pytest.skip("deep_gemm cannot be imported here")
    config = dict(op_of(call).heuristic(Shape.from_m(rows, CAPACITY), H200).config)
    names = ("block_m", "block_n", "num_stages")
    found = [re.findall(rf"\b{name}=(\d+)", said()[problem(call, rows)])[-1] for name in names]
    assert found == [str(config[name]) for name in ("block_m", "block_n", "stages")]
