"""GEMM kernels that go through several tiles, run on the host: every element against a plain sum.

The kernels' own sources are compiled by the host's compiler; only instructions (emulated_gemm/common) are stood in for.
The threads of a CTA are fibers, copies land late and out of order, warps get far ahead of each other, CTAs come in any
order, and nobody can wait for ever unseen. Launches are those that ops describe: schedule, shares, tensor maps, sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from emulated_launches import argument, compiled, executed

from mktune.backends.models import gpu_of
from mktune.launch import Launch
from mktune.ops.base import Violation
from mktune.ops.gemm import GemmOp
from mktune.ops.gemm_schedules import Shares, partial_sums, schedule_violations
from mktune.ops.gemm_tiles import GemmConfig, Problem
from mktune.ops.head_gate import HeadGate
from mktune.ops.indexer_k import IndexerK
from mktune.ops.indexer_q import IndexerQ
from mktune.ops.launch.block_fp8 import BlockFp8Kernels
from mktune.ops.main_q import MainQ
from mktune.ops.q_absorb import QAbsorb
from mktune.ops.qkv_a import QkvA
from mktune.ops.scale_formats import FP32, UE8M0
from mktune.plan import ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape

H200 = gpu_of("sm_90a")
SEEDS = (1, 2)

FRAME = "standalone/persistent_gemm_frame.cuh"

# What the host has no words for, and what is said instead.
SPOKEN = {
    "ops/block_fp8_gemm.cuh": (
        (
            """    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(even), "=f"(odd)
                 : "r"(scales.line + (8 * j + thread % 4 * 2) * 4)
                 : "memory");
""",
            "    load_token_scales(even, odd, scales.line + (8 * j + thread % 4 * 2) * 4);\n",
        ),
    ),
    FRAME: (
        (
            'asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(first + i));',
            "v = load_part_scale(first + i);",
        ),
        ('asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(word));', "v = load_part_scale(word);"),
    ),
}


class Small(GemmOp):
    """Any number of CTAs."""

    def choices(self, arch: str) -> dict[str, dict[str, tuple[ConfigValue, ...]]]:
        return {impl: {**fields, "ctas": tuple(range(1, 40))} for impl, fields in super().choices(arch).items()}


class Summed(Small, MainQ):
    """A small GEMM whose CTAs add their sums up: 6 tiles of 64, 9 K groups."""

    problem = Problem(n=384, k=1152, element_bytes=1)


class Finished(Small, QkvA):
    """A small GEMM whose rows another kernel finishes: 5 tiles of 64 or 3 of 128, the last one half; 10 K groups."""

    problem = Problem(n=320, k=1280, element_bytes=1, finalizer_span=320)


KERNELS = {op: BlockFp8Kernels(op, f"standalone/{op.title}.cu", f"mktune::{op.__name__}") for op in (Summed, Finished)}


@dataclass(frozen=True)
class Case:
    op: type[GemmOp]
    plan: OpPlan
    kernel: KernelPlan
    m: int
    scale_format: str = FP32

    @property
    def violations(self) -> list[Violation]:
        op, shape = self.op(), Shape.from_m(self.m, 64)
        placed = (self.kernel, KernelPlan())[: len(op.kernels(self.plan))]
        return op.violations(self.plan, placed, shape, H200)

    @property
    def launch(self) -> Launch:
        shape, kernels = Shape.from_m(self.m, 64), KERNELS[self.op].under(self.scale_format)
        sums = kernels.sums(self.plan)
        if self.op is Summed and sums == "partials":
            return kernels.adding(self.plan, self.kernel, shape, "q")
        return kernels.producer(self.plan, self.kernel, shape, "q" if self.op is Summed else sums)


def _case(op: type[GemmOp], tile: str, m: int, schedule: str, ctas: int, split: int = 1, **placed: int | str) -> Case:
    """`tile` as "wgmma 16×64 stages 4 warps 8"."""
    impl, size, _, stages, _, warps = tile.split()
    block_m, block_n = size.split("×")
    config: dict[str, int | str] = {"block_m": int(block_m), "block_n": int(block_n), "split_k": split}
    config |= {"stages": int(stages), "warps": int(warps), "schedule": schedule, "ctas": ctas}
    if op is Finished:
        config |= {"finalizer": "kernel", "finalizer_threads": 256}
    gdc, trigger = str(placed.get("gdc", "prefetch")), str(placed.get("trigger", "before_epilogue"))
    kernel = KernelPlan(gdc=gdc, trigger=trigger, l2_prefetch_bytes=int(placed.get("l2", 0)))
    return Case(op, OpPlan.of(impl, config), kernel, m)


def cases() -> Iterator[Case]:
    # One warpgroup; two that take turns at K groups, also where a part ends on an odd one; two with rows of their own.
    tiles = ["wgmma 16×64 stages 3 warps 4", "wgmma 16×64 stages 4 warps 8", "mma_sync 16×64 stages 2 warps 4"]
    for tile in tiles:
        for m in (7, 33):
            yield from (_case(Finished, tile, m, "stream_k", ctas) for ctas in (3, 7, 12))
            yield from (_case(Summed, tile, m, "stream_k", ctas) for ctas in (4, 7, 13))
    yield from (_case(Summed, tiles[1], m, "persistent", ctas) for m in (16, 33) for ctas in (1, 4, 5))
    yield from (_case(Finished, tiles[0], m, "persistent", ctas, 2) for m in (7, 33) for ctas in (2, 3, 9))
    yield from (_case(Summed, tiles[2], m, "persistent", ctas, 3) for m in (16, 33) for ctas in (5, 16))
    # A window of weights that is smaller than the ring; a last tile that is half empty; sums of half K groups.
    wide = "wgmma 8×128 stages 7 warps 8"
    yield from (_case(Finished, wide, m, "stream_k", ctas, l2=16384) for m in (1, 20) for ctas in (2, 3))
    yield from (_case(Finished, wide, m, "persistent", ctas) for m in (1, 20) for ctas in (1, 2))
    for gdc, trigger in (("entry", "start"), ("prologue", "after_wait"), ("prologue", "exit"), ("entry", "exit")):
        yield _case(Summed, tiles[0], 16, "stream_k", 4, gdc=gdc, trigger=trigger)
        yield _case(Summed, tiles[0], 16, "persistent", 4, gdc=gdc, trigger=trigger)


CASES = [case for case in cases() if not any("as with" in str(violation) for violation in case.violations)]


def _call(case: Case) -> str:
    op, shape, launch, config = case.op(), Shape.from_m(case.m, 64), case.launch, GemmConfig.of(case.plan)
    names = dict(zip((*op.operands, *op.activations), ("weights", "weight_scales", "codes", "row_scales"), strict=True))
    names |= {"q": "out", "y": "out"}
    spaces = {space.port: space.bytes for space in op.workspaces(case.plan, shape)}
    added_later = op.has_finalizer and "partials" in spaces
    sizes = (case.m, op.problem.n, op.problem.k, launch.grid[0], launch.block, launch.smem)
    sizes += (op.partial_sums(config, shape) if added_later else 0, spaces.get("partials", 0))
    sizes += (spaces.get("tile_counters", 0) // 4,)
    title = f"{case.op.__name__} M {case.m} {' '.join(f'{name} {value}' for name, value in case.plan.config)}"
    triggers = str(case.kernel.trigger != "exit").lower()
    args = ", ".join(argument(arg, names) for arg in launch.args)
    call = f"[] {{ {launch.kernel.name_expression}({args}); }}"
    return f'run("{title}", {{{", ".join(map(str, sizes))}}}, {triggers}, 2, {call});\n'


def _program(folder: Path, cases: list[Case], *faults: tuple[str, str]) -> Path:
    spoken = {**SPOKEN, FRAME: SPOKEN[FRAME] + faults}
    problems = (
        f"struct {op.__name__} : GemmProblem<{op.problem.n}, {op.problem.k}> {{\n"
        f"  static constexpr int kSumParts = {2 if op is Finished else 1};\n}};\n"
        for op in KERNELS
    )
    quick = "-O1" if faults else "-O2"  # few launches take less time to run than to compile well
    (defines,) = {case.launch.kernel.defines for case in cases}  # a program reads scales in one format
    calls = "".join(map(_call, cases))
    return compiled(folder, "main.cpp", spoken, quick, defines, problems="".join(problems), cases=calls)


@pytest.fixture(scope="module", params=[FP32, UE8M0])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cases = [replace(case, scale_format=request.param) for case in CASES]
    return _program(tmp_path_factory.mktemp("emulated"), cases)


def test_the_cases_exist() -> None:
    assert [(case, case.violations) for case in CASES if case.violations] == []
    assert len(CASES) > 60


@pytest.mark.parametrize("seed", SEEDS)
def test_every_element_is_right_whatever_comes_first(program: Path, seed: int) -> None:
    done = executed(program, str(seed))
    assert done.returncode == 0, done.stdout[-2000:]
    assert done.stdout.count("right: ") == len(CASES)


FAULTS = {
    "scales stay those of the first part": ("scales = next;", ""),
    "scales are never handed back": ("Gemm::release_scales(ring, threadIdx.x);", ""),
    "scales are overwritten while they are read": (
        "Gemm::load_activations(ring, cursor,",
        "Gemm::load_activations(ring, {cursor.item, 0},",
    ),
    "the ring starts again with each part": ("Gemm::consume(ring, cursor,", "Gemm::consume(ring, {0, cursor.tile},"),
    "every part triggers": ("if (end == groups) trigger_at", "trigger_at"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str, tmp_path: Path) -> None:
    """In kernels of two warpgroups that take turns, where parts end on odd K groups."""
    few = [case for case in CASES if case.op is Summed and ("warps", 8) in case.plan.config]
    program = _program(tmp_path, few[:3], FAULTS[fault])
    done = [executed(program, str(seed)) for seed in range(4)]
    assert all("wrong: " in run.stdout for run in done), [run.stdout[-300:] for run in done]


def _schedules() -> Iterator[str]:
    """Launches of the real ops: each tile, split and number of CTAs that they know, at several numbers of rows."""
    for op in (QkvA(), IndexerK(), MainQ(), IndexerQ(), HeadGate(), QAbsorb()):
        problem, fields = op.problem, op.choices("sm_90a")["wgmma"]
        for block_m, block_n, schedule in itertools.product(fields["block_m"], fields["block_n"], op.schedules):
            split_up = schedule == "persistent" and problem.batch == 1  # the three steps of D2's tiles stay together
            splits = fields["split_k"] if split_up else (1,)
            for split, ctas, m in itertools.product(splits, (7, *fields["ctas"]), (1, 256)):
                config = GemmConfig(block_m, block_n, split, 2, 4, "kernel", schedule=schedule, ctas=ctas)
                if schedule_violations("wgmma", config, problem, Shape.from_m(m, 64)):
                    continue
                shares = Shares.of(config, problem, -(-m // block_m))
                given = f"{m}, {shares.ctas}, {{{shares.share}, {shares.longer}, {shares.m_tiles_inverse}ull}}"
                # All heads' columns side by side, and K in the groups that a block-FP8 GEMM has for as many steps.
                tile = f"{problem.n * problem.batch}, {problem.steps * 128}, {block_m}, {block_n}"
                title = f'"{op.title} {tile} split {split} ctas {ctas} M {m}"'
                if schedule == "persistent":
                    yield f"parts<{tile}, {split}>({title}, {given});\n"
                else:
                    most = partial_sums(config, problem, Shape.from_m(m, 64))
                    yield f"pieces<{tile}>({title}, {given}, {most});\n"


def test_every_k_group_of_every_tile_is_computed_once(tmp_path: Path) -> None:
    launches = list(_schedules())
    done = executed(compiled(tmp_path, "schedules.cpp", {}, "-O1", schedules="".join(launches)))
    assert done.returncode == 0, done.stdout[-500:]
    assert done.stdout.count("right: ") == len(launches) > 1000
