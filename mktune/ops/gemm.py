"""What the GEMM ops share: config, tiles, shared memory, accesses and limits.

One CTA computes a tile of block_m rows by block_n columns over 1 / split_k of K, through a ring of `stages` slots that
hold 128 bytes of K each, filled by an activation loader and a weight loader in warps of their own.

split_k > 1   partial sums go to memory in fp32; the finalizer kernel adds them, or else the last CTA of a tile does
finalizer     "kernel": a second kernel ("f") reads the sums and finishes the rows; "last_arriver": the first kernel
              ("p") does it too. Where a row's finish spans a head, the last split of the head's tiles adds them up and
              finishes. Where it spans more, in two levels: the last split of a tile rounds the tile to bf16, and the
              last tile of a row block finishes its rows. "cluster": the CTAs of a head are one cluster; each finishes
              some rows, reading the others' sums in their shared memory
schedule      where a CTA computes more than one tile: see gemm_schedules.py. Then `ctas` is the size of the grid
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from mktune.access import Access, KernelFacts
from mktune.device import Device
from mktune.ops.base import KernelWork, Op, Tensors, Violation, Workspace
from mktune.ops.checks import (
    field_violations,
    reads,
    smem_violations,
    trigger_class,
    writes,
)
from mktune.ops.gemm_schedules import (
    CTAS,
    ONE_TILE,
    OTHER_CTAS,
    STREAM_K,
    Shares,
    added_pieces,
    longest_steps,
    partial_sums,
    schedule_violations,
)
from mktune.ops.gemm_tiles import STEP_BYTES, GemmConfig, Problem
from mktune.ops.tolerances import DIRECT, THROUGH_GEMM, QuantisedTolerance
from mktune.plan import ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch

__all__ = ["STEP_BYTES", "GemmConfig", "GemmOp", "Problem", "finalizer_facts"]

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
STAGES = tuple(range(2, 13))

MAX_ACCUMULATORS = {"wgmma": 128, "mma_sync": 64}
"""Sums that a thread may hold; beyond them a tile spills more than a few registers (compiled for sm_90a, sm_103a)."""

ROPE_TABLES = ("cos", "sin")
"""Constants of which a step reads a row at each token's position only."""

HEAD_SPAN = 128
"""Columns that the CTA of the last split adds up and finishes by itself, be they one tile or two."""

WORKSPACES = ("partials", "y", "tile_counters", "row_counters")
"""Scratch memory that a config may need, by what no port of a GEMM can therefore be called."""

MAX_CLUSTER = 16
"""CTAs of a cluster on Hopper and Blackwell; beyond 8 a kernel must be set up for it."""

_OPTIONAL = frozenset(("finalizer_threads", "schedule", "ctas"))

FINALIZER_BYTES = 256
"""Shared memory of a finalizer kernel: row statistics of its warps."""


class GemmOp(Op):
    """A GEMM with an optional finalizer. Subclasses say which ports play which part.

    problem      sizes
    activations  what the activation loader fetches
    operands     weight and weight scales, what the weight loader fetches
    constants    other weights, read when rows are finished
    arguments    produced tensors and runtime arguments read when rows are finished
    places       those runtime arguments of which a finalizer kernel's prologue reads its rows' values
    finalizers   who may finish rows, or add splits up; empty where the config does not say
    schedules    other ways to share tiles out than one for each CTA
    few_ctas     numbers of CTAs beside those that are parts of a GPU: where there are few tiles
    long_rings   whether the ring of a CTA with several tiles may hold more steps than a tile has: where those are few
    """

    problem: ClassVar[Problem]
    activations: ClassVar[tuple[str, ...]]
    operands: ClassVar[tuple[str, ...]]
    constants: ClassVar[tuple[str, ...]] = ()
    arguments: ClassVar[tuple[str, ...]] = ()
    places: ClassVar[tuple[str, ...]] = ()
    finalizers: ClassVar[tuple[str, ...]] = ()
    schedules: ClassVar[tuple[str, ...]] = ()
    few_ctas: ClassVar[tuple[int, ...]] = ()
    long_rings: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, ConfigValue]]

    def __init_subclass__(cls) -> None:
        if taken := set(WORKSPACES).intersection(getattr(cls, "ports", ())):
            raise TypeError(f"{cls.__name__}: a GEMM has a workspace {', '.join(sorted(taken))}: rename the port")

    @property
    def has_finalizer(self) -> bool:
        return self.problem.finalizer_span > 0

    @property
    def implied(self) -> Mapping[str, ConfigValue]:
        return {"schedule": ONE_TILE, "ctas": 0} if self.schedules else {}

    def default(self, arch: str) -> OpPlan:
        return OpPlan.of("wgmma" if arch == "sm_90a" else "mma_sync", {"block_m": 16, **self.defaults})

    def starts(self, arch: str, shape: Shape) -> tuple[OpPlan, ...]:
        """Blocks of more rows: the default's would read the weights once for every 16."""
        known = self.default(arch)
        plain = {**dict(known.config), "stages": min(8, self.defaults["stages"])}
        blocks = [block for block in (32, 64, 128) if block < 2 * shape.m]
        tiles = [{}, {"block_n": 128, "warps": 8}] if self.problem.n > 64 else [{}]
        return tuple(OpPlan.of(known.impl, {**plain, **tile, "block_m": block}) for block in blocks for tile in tiles)

    def choices(self, arch: str) -> dict[str, dict[str, tuple[ConfigValue, ...]]]:
        problem = self.problem
        fields: dict[str, tuple[ConfigValue, ...]] = {
            "block_m": (16, 32, 64, 128),
            "block_n": (64, 128) if problem.n > 64 else (64,),
            "split_k": tuple(split for split in SPLITS if problem.groups % split == 0),
            "stages": STAGES,
            "warps": (4, 8),
        }
        if self.finalizers:
            fields["finalizer"] = self.finalizers
        if self.has_finalizer:
            fields["finalizer_threads"] = (128, 256, 512)
        if self.schedules:
            fields |= {"schedule": self.schedules, "ctas": (*self.few_ctas, *CTAS.get(arch, OTHER_CTAS))}
        impls = {"mma_sync": fields}
        return {"wgmma": {**fields, "block_m": (8, 16, 32, 64, 128)}, **impls} if arch == "sm_90a" else impls

    def gdc_values(self, plan: OpPlan, suffix: str) -> tuple[str, ...]:
        return ("entry", "prologue") if suffix == "f" else ("entry", "prologue", "prefetch")

    def kernels(self, plan: OpPlan) -> tuple[str, ...]:
        if not self.has_finalizer:
            return ("",)
        return ("p", "f") if dict(plan.config)["finalizer"] == "kernel" else ("p",)

    def kind(self, plan: OpPlan) -> Hashable:
        return self._kind(plan)

    def _kind(self, plan: OpPlan) -> tuple[ConfigValue, bool, bool]:
        """Who finishes rows; whether there are sums of several CTAs; whether a row's tiles are counted as one.

        The splits of a head's tiles are counted together; a wider row is too much for the CTA that comes last.
        """
        config = dict(plan.config)
        split, span = config["split_k"] != 1 or config.get("schedule") == STREAM_K, self.problem.finalizer_span
        return config.get("finalizer", ""), split, span > int(config["block_n"]) and not (split and span <= HEAD_SPAN)

    def facts(self, plan: OpPlan, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        finalizer, split, spans_tiles = self._kind(plan)
        first, *rest = kernels
        facts = _producer(type(self), finalizer, split, spans_tiles, first.gdc, first.trigger)
        return facts, *(finalizer_facts(type(self), split, kernel.gdc, kernel.trigger) for kernel in rest)

    def config_violations(self, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        found = field_violations(self, plan, device.arch, optional=_OPTIONAL)
        if found:
            return found
        config = GemmConfig.of(plan)
        steps = self.steps(config)
        found = smem_violations(self.smem_bytes(config), device)
        most = steps
        if config.schedule != ONE_TILE or config.ctas:
            longest = longest_steps(config, self.problem, config.tiles(self.problem, shape)[0])
            most = longest if self.long_rings else min(steps, longest)
            found += schedule_violations(plan.impl, config, self.problem, shape)
        if config.stages > most:
            found.append(Violation("stages", "", f"{config.stages} stages, but a CTA has only {most} steps of K"))
        if config.accumulators > MAX_ACCUMULATORS[plan.impl]:
            found.append(Violation("tile", "", f"{config.block_m} × {config.block_n} spills with {config.warps} warps"))
        if config.splits_steps and steps < 2:
            found.append(Violation("warps", "", "8 warps on block_n = 64 share the steps of K, and there is one"))
        if config.splits_steps and config.stages % 2:
            found.append(
                Violation("stages", "", "8 warps on block_n = 64 take turns at the stages: use an even number")
            )
        if config.finalizer == "cluster":
            found += self._cluster_violations(config)
        return found

    def _cluster_violations(self, config: GemmConfig) -> list[Violation]:
        found = []
        ctas = self.cluster(config)
        if not 2 <= ctas <= MAX_CLUSTER:
            found.append(Violation("cluster", "", f"{ctas} CTAs share a row: a cluster has 2 to {MAX_CLUSTER}"))
        columns = min(config.block_n, self.problem.n)
        left, ring = config.block_m * (4 * columns + 16), config.ring_bytes
        if left > ring:
            found.append(Violation("cluster", "", f"sums of {left} bytes, the ring holds {ring}: use more stages"))
        return found

    def cluster(self, config: GemmConfig) -> int:
        """CTAs that a launch makes one cluster: with finalizer = cluster all tiles and splits of a row's finish."""
        if config.finalizer != "cluster":
            return 1
        return config.split_k * max(1, self.problem.finalizer_span // config.block_n)

    def l2_limit(self, plan: OpPlan) -> int:
        return self.bytes_beyond_ring(GemmConfig.of(plan))

    def steps(self, config: GemmConfig) -> int:
        """Slots that one CTA goes through."""
        return self.problem.steps // config.split_k

    def smem_bytes(self, config: GemmConfig) -> int:
        """Dynamic shared memory of a CTA at most."""
        return config.smem_bytes(self.steps(config))

    def bytes_beyond_ring(self, config: GemmConfig) -> int:
        """Weight bytes of one CTA that the ring cannot hold: what may be asked into L2 before the wait.

        Of a CTA with several tiles, those of one row block: others have the same weights.
        """
        return max(0, longest_steps(config, self.problem, 1) - config.stages) * STEP_BYTES * config.block_n

    def ctas(self, config: GemmConfig, shape: Shape) -> int:
        """CTAs of the GEMM's grid."""
        return self._ctas(config, config.tiles(self.problem, shape)[0])

    def _ctas(self, config: GemmConfig, row_blocks: int) -> int:
        if config.schedule != ONE_TILE:
            return Shares.of(config, self.problem, row_blocks).ctas
        return row_blocks * config.column_blocks(self.problem) * config.split_k

    def partial_sums(self, config: GemmConfig, shape: Shape) -> int:
        """Sums of each tile that somebody adds up; 1: the tile's result."""
        return partial_sums(config, self.problem, shape)

    def workspaces(self, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        config = GemmConfig.of(plan)
        row_blocks, column_blocks = config.tiles(self.problem, shape)
        cells = row_blocks * config.block_m * column_blocks * config.block_n
        sizes = {
            "partials": 4 * self.partial_sums(config, shape) * cells,
            "y": 2 * cells,
            "tile_counters": 4 * row_blocks * column_blocks,
            "row_counters": 4 * row_blocks * column_blocks,
        }
        facts = self.facts(plan, (KernelPlan(),) * len(self.kernels(plan)))
        used = {access.buffer for kernel in facts for access in kernel.accesses}
        return tuple(Workspace(port, sizes[port], port.endswith("counters")) for port in sizes if port in used)

    def work(self, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        config = GemmConfig.of(plan)
        ctas = self.ctas(config, shape)
        sums = sum(space.bytes for space in self.workspaces(plan, shape) if not space.counter)
        given = sum(self.ports[port].nbytes(shape) for port in self.activations)
        made = sum(self.ports[port].nbytes(shape) for port in self.outputs if port not in self.inputs)
        cold = self.bytes_read(shape)
        ring = min(cold, config.stages * STEP_BYTES * config.block_n * self._ctas(config, 1))
        smem = self.smem_bytes(config)
        flops = self.flops(shape)
        if len(self.kernels(plan)) == 1:
            if config.schedule == STREAM_K:  # tiles that one CTA sums leave nothing there
                row_blocks = config.tiles(self.problem, shape)[0]
                sums = 4 * config.block_m * config.block_n * added_pieces(config, self.problem, row_blocks)
            return (KernelWork(ctas, config.threads, smem, cold, given + 2 * sums + made, ring, flops),)
        ctas_f = self.finalizer_ctas(config, shape)
        finish = KernelWork(ctas_f, config.finalizer_threads, FINALIZER_BYTES, 0, sums + made, 0, 0)
        return KernelWork(ctas, config.threads, smem, cold, given + sums, ring, flops), finish

    def finalizer_ctas(self, config: GemmConfig, shape: Shape) -> int:
        """CTAs of the finalizer kernel: one for each row, or a warp for each head."""
        if self.problem.finalizer_span > HEAD_SPAN:
            return shape.m
        heads = shape.m * self.problem.n // self.problem.finalizer_span
        return -(-heads // (config.finalizer_threads // 32))

    def bytes_read(self, shape: Shape) -> int:
        rows = 0
        if "cos" in self.constants:
            rows = 2 * shape.m * self.ports["cos"].nbytes(shape) // shape.kv
        fixed = (port for port in (*self.operands, *self.constants) if port not in ROPE_TABLES)
        return rows + sum(self.ports[port].nbytes(shape) for port in fixed)

    def flops(self, shape: Shape) -> int:
        return 2 * shape.m * self.problem.batch * self.problem.n * self.problem.k

    @abstractmethod
    def product(self, inputs: Tensors) -> torch.Tensor:
        """The GEMM alone, as its finish gets it: rounded to bf16 once, except where the result itself is fp32."""

    @abstractmethod
    def finish(self, y: torch.Tensor, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The outputs from the GEMM's result [M, N]."""

    @abstractmethod
    def judge(self, inputs: Tensors, expected: Tensors, outputs: Tensors, tolerance: QuantisedTolerance) -> list[str]:
        """What differs between `expected` and `outputs`; `tolerance` is for quantised outputs."""

    def reference(self, inputs: Tensors, shape: Shape) -> dict[str, torch.Tensor]:
        return self.finish(self.product(inputs), inputs)

    def compare(self, inputs: Tensors, outputs: Tensors, shape: Shape) -> list[str]:
        return self.judge(inputs, self.reference(inputs, shape), outputs, THROUGH_GEMM)

    def compare_finish(self, y: torch.Tensor, inputs: Tensors, outputs: Tensors) -> list[str]:
        """A finalizer alone, judged on the bf16 result `y` [M, N] that its producer really gave it."""
        return self.judge(inputs, self.finish(y, inputs), outputs, DIRECT)


@cache
def _producer(
    op: type[GemmOp], finalizer: ConfigValue, split: bool, spans_tiles: bool, gdc: str, trigger: str
) -> KernelFacts:
    """Facts are few: they depend on nothing else of a config."""
    # Weights wait unless their loader runs ahead; their scales are read in the prologue.
    loads = reads(op.operands[:1], after_wait=gdc != "prefetch") + reads(op.operands[1:], after_wait=gdc == "entry")
    loads += reads(op.activations, after_wait=True)
    if finalizer == "kernel":
        return KernelFacts("p", "", loads + writes([_sums(split)]), True, trigger_class(trigger))
    accesses = loads + reads((*op.constants, *op.arguments), after_wait=True) + writes(op.outputs)
    if split and finalizer != "cluster":
        accesses += _updates("tile_counters") + _updates("partials")
    if spans_tiles and finalizer != "cluster":
        accesses += _updates("y") + _updates("row_counters")
    return KernelFacts("p" if op.problem.finalizer_span else "", "", accesses, True, trigger_class(trigger))


@cache
def finalizer_facts(op: type[GemmOp], split: bool, gdc: str, trigger: str) -> KernelFacts:
    """Of the kernel that finishes rows of what a GEMM left: its partial sums, or without `split` its bf16 result."""
    accesses = reads((*op.constants, *op.places), after_wait=gdc == "entry")
    accesses += reads([_sums(split)], after_wait=True) + writes(op.outputs)
    accesses += reads([port for port in op.arguments if port not in op.places], after_wait=True)
    return KernelFacts("f", "", accesses, True, trigger_class(trigger))


def _sums(split: bool) -> str:
    """What a finalizer kernel reads: the partial sums, or the rounded result of one CTA a tile."""
    return "partials" if split else "y"


def _updates(port: str) -> tuple[Access, ...]:
    """Read and written by the same kernel, behind the wait."""
    return Access(port, False, True), Access(port, True, True)
