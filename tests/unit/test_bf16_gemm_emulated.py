"""C0 and D2 with schedules, run on the host as in test_gemm_emulated.py: every element against a plain sum.

Tensor-core instructions are stood in for by their fragments, so that layouts in shared memory count too. The problems
are smaller ones: C0 with twelve steps of K, D2 with five heads of 128 columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from emulated_launches import argument, compiled, executed

from mktune.backends.models import gpu_of
from mktune.launch import Launch
from mktune.ops.base import Violation
from mktune.ops.gemm import GemmOp
from mktune.ops.head_gate import HeadGate
from mktune.ops.launch import launches_for
from mktune.ops.launch import q_absorb as absorb_launch
from mktune.ops.q_absorb import QAbsorb
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

H200 = gpu_of("sm_90a")
SEEDS = (1, 2)
HEADS, COLUMNS, STEPS = 5, 128, 12

FRAME, KERNELS, PIECES = (
    f"standalone/{name}" for name in ("persistent_bf16_frame.cuh", "persistent_bf16_gemm.cu", "tile_pieces.cuh")
)

SPOKEN: dict[str, tuple[tuple[str, str], ...]] = {
    "ops/bf16_gemm.cuh": (
        (
            """  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
""",
            "  multiply_16_8_16(d, a, b0, b1);\n",
        ),
        (
            """  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row_address)
               : "memory");
""",
            "  v = matrices(row_address, true);\n",
        ),
    ),
    "ops/q_absorb.cuh": (
        (
            'asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" '
            '::"r"(row_address), "r"(first),'
            """
                 "r"(second)
                 : "memory");
""",
            "store_two_matrices_transposed(row_address, first, second);\n",
        ),
        ("kHeads = 64,", f"kHeads = {HEADS},"),
        ("kN = 512,", f"kN = {COLUMNS},"),
    ),
    "ops/head_gate.cuh": (("kK = 6144,", f"kK = {STEPS} * 64,"),),
}
"""What the host has no words for, and sizes: what is said instead."""

FAULTS = {
    "the ring starts again with each part": (FRAME, "consume(ring, place,", "consume(ring, {} ? 0 : place,"),
    "activations go to the first stages": (FRAME, "activations(ring, place,", "activations(ring, {} ? 0 : place,"),
    "every part triggers": (FRAME, "(place + in_part == steps)", "({} || place + in_part == steps)"),
    "sums are handed over too early": (FRAME, "if constexpr (Gemm::kSplitsSteps)", "if (Gemm::kSplitsSteps && !{})"),
    "results are staged in the ring": (KERNELS, "shared + Gemm::kBytes", "shared + ({} ? 0 : Gemm::kBytes)"),
    "only the rest of a tile is turned": (KERNELS, "if (part.first_group > 0)", "if ((part.first_group > 0) != {})"),
    "all heads have the first one's weights": (KERNELS, "head * QAbsorb::kNope", "!{} * head * QAbsorb::kNope"),
    "the last piece is not added": (PIECES, "piece < pieces;", "piece < pieces - {};"),
}
"""What, in which file, is said how, and `{}` marks what is true where the fault is switched on."""


@dataclass(frozen=True)
class Case:
    title: str
    plan: OpPlan
    kernel: KernelPlan
    m: int

    @property
    def op(self) -> GemmOp:
        return {"head_gate": HeadGate(), "q_absorb": QAbsorb()}[self.title]

    @property
    def shape(self) -> Shape:
        return Shape.from_m(self.m, 64)

    @property
    def violations(self) -> list[Violation]:
        return self.op.violations(self.plan, (self.kernel,), self.shape, H200)

    @property
    def launch(self) -> Launch:
        (launch,) = launches_for(self.title, self.plan, (self.kernel,), self.shape, H200)
        return launch


def _case(title: str, tile: str, m: int, schedule: str, ctas: int, **placed: str | int) -> Case:
    """`tile` as "wgmma 16×64 stages 4 warps 8"."""
    impl, size, _, stages, _, warps = tile.split()
    block_m, block_n = map(int, size.split("×"))
    config: dict[str, int | str] = {"block_m": block_m, "block_n": block_n, "split_k": 1, "stages": int(stages)}
    config |= {"warps": int(warps), "schedule": schedule, "ctas": ctas}
    if title == "head_gate":
        config["finalizer"] = "last_arriver"
    gdc, trigger = str(placed.get("gdc", "prefetch")), str(placed.get("trigger", "before_epilogue"))
    kernel = KernelPlan(gdc=gdc, trigger=trigger, l2_prefetch_bytes=int(placed.get("l2", 0)))
    return Case(title, OpPlan.of(impl, config), kernel, m)


def cases() -> Iterator[Case]:
    # One warpgroup; two that share each step, and hand sums over; two with columns of their own; sums by mma.sync.
    halves = "wgmma 8×64 stages 4 warps 8"
    for m, ctas in ((7, 4), (20, 7)):
        yield _case("q_absorb", halves, m, "persistent", ctas)
    yield from (_case("q_absorb", halves, m, "stream_k", ctas) for m, ctas in ((7, 4), (9, 8), (20, 13)))
    wide = "wgmma 16×128 stages 4 warps 8"
    yield from (_case("q_absorb", wide, m, "persistent", 4, l2=16384) for m in (1, 20))
    yield from (_case("q_absorb", wide, m, "stream_k", 4, gdc="entry") for m in (1, 20))
    portable = "mma_sync 16×128 stages 2 warps 4"
    yield _case("q_absorb", portable, 17, "persistent", 4, gdc="prologue", trigger="start")
    yield _case("q_absorb", portable, 17, "stream_k", 4, gdc="prologue", trigger="exit")
    for m, ctas in ((3, 5), (40, 7)):
        yield _case("head_gate", "wgmma 16×64 stages 3 warps 4", m, "stream_k", ctas)
    for m, ctas in ((20, 5), (40, 7)):
        yield _case("head_gate", "wgmma 16×64 stages 4 warps 8", m, "stream_k", ctas)
    yield _case("head_gate", "mma_sync 16×64 stages 4 warps 8", 40, "stream_k", 5, gdc="entry", trigger="after_wait")


def _call(case: Case) -> str:
    op, launch = case.op, case.launch
    spaces = {space.port: space.bytes for space in op.workspaces(case.plan, case.shape)}
    sizes = (case.m, launch.grid[0], launch.block, launch.smem, spaces.get("partials", 0))
    sizes += (spaces.get("tile_counters", 0) // 4,)
    fields = " ".join(f"{name} {value}" for name, value in case.plan.config)
    title = f"{case.title} M {case.m} {case.plan.impl} {fields}"
    triggers = str(case.kernel.trigger != "exit").lower()
    args = ", ".join(argument(arg, {}) for arg in launch.args)
    run = {"head_gate": "gate", "q_absorb": "absorb"}[case.title]
    sized = f"{{{', '.join(map(str, sizes))}}}"
    return f'{run}("{title}", {sized}, {triggers}, [] {{ {launch.kernel.name_expression}({args}); }});\n'


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeadGate, "problem", replace(HeadGate.problem, k=STEPS * 64))
        patch.setattr(QAbsorb, "problem", replace(QAbsorb.problem, n=COLUMNS, batch=HEADS))
        patch.setattr(absorb_launch, "HEADS", HEADS)
        patch.setattr(absorb_launch, "KV_LORA", COLUMNS)
        for op in (HeadGate, QAbsorb):
            patch.setattr(op, "few_ctas", tuple(range(1, 33)))
        yield


@pytest.fixture(scope="module")
def program(small: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With all faults planted, each to be switched on by its number."""
    assert [(case, case.violations) for case in cases() if case.violations] == []
    spoken = dict(SPOKEN)
    for number, (path, said, instead) in enumerate(FAULTS.values(), 1):
        spoken[path] = (*spoken.get(path, ()), (said, instead.replace("{}", f"(machine::fault == {number})")))
    folder = tmp_path_factory.mktemp("emulated")
    return compiled(folder, "bf16.cpp", spoken, cases="".join(map(_call, cases())))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_element_is_right_whatever_comes_first(program: Path, seed: int) -> None:
    done = executed(program, str(seed), "0")
    assert done.returncode == 0, done.stdout[-2000:]
    assert done.stdout.count("right: ") == len(list(cases())) > 15


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(program: Path, fault: str) -> None:
    number = list(FAULTS).index(fault) + 1
    done = [executed(program, str(seed), str(number)) for seed in SEEDS]
    assert all("wrong: " in one.stdout for one in done), [one.stdout[-300:] for one in done]
