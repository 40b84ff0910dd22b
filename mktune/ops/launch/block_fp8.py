"""Block-FP8 GEMMs: template parameters, grid, shared memory, tensor maps (see kernels/ops/block_fp8_gemm.cuh)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mktune import deep_gemm
from mktune.graph.tensors import round_up
from mktune.launch import Arg, BufferArg, Launch, ScalarArg, TensorMapArg
from mktune.ops.deep_gemm.block_fp8 import finalizer_config, smem_bytes, tiles_of
from mktune.ops.deep_gemm.tall_tiles import TallTiles
from mktune.ops.dimensions import GROUP
from mktune.ops.gemm import GemmOp
from mktune.ops.gemm_schedules import FP8_SOURCE, ONE_TILE, STREAM_K, Shares
from mktune.ops.gemm_tiles import STEP_BYTES, GemmConfig
from mktune.ops.launch import deep_gemm_blackwell
from mktune.ops.launch.deep_gemm import fp8_gemm
from mktune.ops.launch.description import instance, placement, scale_defines, share_args
from mktune.ops.scale_formats import FP32, UE8M0, WORD
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

_IMPLS = {"wgmma": "mktune::Mma::kWgmma", "mma_sync": "mktune::Mma::kMmaSync"}

_ANY_SHAPE = Shape(1, 1, 1)  # which workspaces a config has does not depend on it


@dataclass(frozen=True)
class BlockFp8Kernels:
    """The GEMM kernels of one op.

    op      whose operands and activations are a pair each: values and scales
    source  path under kernels/
    struct  C++ name of its GemmProblem
    scale_format  of rows and weights
    """

    op: type[GemmOp]
    source: str
    struct: str
    scale_format: str = FP32

    def under(self, scale_format: str) -> BlockFp8Kernels:
        """The same kernels in another format of scales."""
        return replace(self, scale_format=scale_format)

    def config(self, plan: OpPlan) -> GemmConfig:
        """The config of our own kernels under `plan`: of impl deep_gemm the finalizer alone is ours."""
        return finalizer_config(plan) if plan.impl == deep_gemm.IMPL else GemmConfig.of(plan)

    def producer(self, plan: OpPlan, kernel: KernelPlan, shape: Shape, out: str) -> Launch:
        """The GEMM alone: partial sums into `out`, or bf16 where a tile is summed by one CTA."""
        if plan.impl == deep_gemm.IMPL:
            tiles = tiles_of(plan)
            if isinstance(tiles, TallTiles):
                return deep_gemm_blackwell.fp8_gemm(self.op(), tiles, kernel, shape, out)
            return fp8_gemm(self.op(), tiles, kernel, shape, out)
        config = GemmConfig.of(plan)
        if config.schedule == ONE_TILE:
            return self._launch(plan, kernel, shape, "gemm_producer", (self.struct,), (BufferArg(out),))
        if config.schedule == STREAM_K:
            most = ScalarArg(self.op().partial_sums(config, shape))
            return self._scheduled(plan, kernel, shape, "stream_k_gemm", (BufferArg(out),), (most,))
        return self._scheduled(plan, kernel, shape, "persistent_gemm", (BufferArg(out),))

    def adding(self, plan: OpPlan, kernel: KernelPlan, shape: Shape, out: str) -> Launch:
        """The GEMM of a schedule, whose partial sums of a tile the last CTA to arrive adds up into `out`."""
        stream_k = GemmConfig.of(plan).schedule == STREAM_K
        template = "stream_k_gemm_pieces" if stream_k else "persistent_gemm_splits"
        rest = tuple(BufferArg(port) for port in ("partials", "tile_counters", out))
        return self._scheduled(plan, kernel, shape, template, rest)

    def whole(self, plan: OpPlan, kernel: KernelPlan, shape: Shape, template: str, rest: tuple[Arg, ...]) -> Launch:
        """The kernel `template`, which finishes what it sums; `rest` are its parameters behind the operands."""
        return self._launch(plan, kernel, shape, template, (), rest)

    def cluster(self, plan: OpPlan, kernel: KernelPlan, shape: Shape, template: str, rest: tuple[Arg, ...]) -> Launch:
        """The kernel `template`, whose CTAs of a head are one cluster; `rest` are its parameters but the operands."""
        config, op = GemmConfig.of(plan), self.op()
        launch = self._launch(plan, kernel, shape, template, (), rest)
        row_blocks, column_blocks, _ = launch.grid
        ctas = op.cluster(config)
        heads = column_blocks * config.split_k // ctas
        return replace(launch, grid=(ctas, heads, row_blocks), cluster=ctas)

    def sums(self, plan: OpPlan) -> str:
        """The workspace that a producer hands to a finalizer kernel."""
        config = self.config(plan)
        return "partials" if config.split_k > 1 or config.schedule == STREAM_K else "y"

    def head_workspaces(self, plan: OpPlan, unused: str) -> tuple[Arg, ...]:
        """partials, y and counters of a kernel that finishes heads of 128 itself (see HeadWorkspace in index_head.cuh).

        Where a config needs none of a kind, `unused` stands in its place and is not touched.
        """
        needed = {space.port for space in self.op().workspaces(plan, _ANY_SHAPE)}
        counters = "tile_counters" if "tile_counters" in needed else "row_counters"
        return tuple(BufferArg(port if port in needed else unused) for port in ("partials", "y", counters))

    def head_finalizer(
        self, plan: OpPlan, kernel: KernelPlan, shape: Shape, template: str, rest: tuple[Arg, ...]
    ) -> Launch:
        """The finalizer kernel `template` over all heads of the step."""
        config, op = self.config(plan), self.op()
        args = (BufferArg(self.sums(plan)), *rest, ScalarArg(shape.m))
        sums = op.partial_sums(config, shape)
        parameters = (config.finalizer_threads, sums, *placement(kernel, prefetches=False))
        spec = instance(self.source, template, parameters, args)
        grid = (op.finalizer_ctas(config, shape), 1, 1)
        return Launch(spec, grid, config.finalizer_threads, 0, args)

    def dynamic_smem(self, plan: OpPlan, suffix: str) -> int:
        """Bytes of dynamic shared memory of a CTA; a finalizer kernel (suffix "f") needs none."""
        if suffix == "f":
            return 0
        if plan.impl == deep_gemm.IMPL:
            return smem_bytes(self.op(), tiles_of(plan))
        config = GemmConfig.of(plan)
        return config.smem_bytes(self.op.problem.groups // config.split_k)

    def _launch(
        self,
        plan: OpPlan,
        kernel: KernelPlan,
        shape: Shape,
        template: str,
        first: tuple[str, ...],
        rest: tuple[Arg, ...],
    ) -> Launch:
        config = GemmConfig.of(plan)
        # K groups beyond the ring that a CTA asks into L2.
        l2_groups = kernel.l2_prefetch_bytes // (STEP_BYTES * config.block_n)
        args = (*self._operands(config, shape), *rest, ScalarArg(shape.m), ScalarArg(l2_groups))
        tile = (config.block_m, config.block_n, config.split_k, config.stages, config.warps)
        parameters: tuple[int | str, ...] = (*first, _IMPLS[plan.impl], *tile, *placement(kernel, prefetches=True))
        grid = (*config.tiles(self.op.problem, shape), config.split_k)
        spec = instance(self.source, template, parameters, args, scale_defines(self.scale_format))
        return Launch(spec, grid, config.threads, self.dynamic_smem(plan, ""), args)

    def _scheduled(
        self,
        plan: OpPlan,
        kernel: KernelPlan,
        shape: Shape,
        template: str,
        rest: tuple[Arg, ...],
        behind: tuple[Arg, ...] = (),
    ) -> Launch:
        """As `_launch`, of a kernel that goes through its share of all tiles; `behind` are its last parameters."""
        config = GemmConfig.of(plan)
        shares = Shares.of(config, self.op.problem, config.tiles(self.op.problem, shape)[0])
        numbers = (shape.m, kernel.l2_prefetch_bytes // (STEP_BYTES * config.block_n))
        args = (*self._operands(config, shape), *rest, *map(ScalarArg, numbers), *share_args(shares), *behind)
        split = () if config.schedule == STREAM_K else (config.split_k,)
        tile = (config.block_m, config.block_n, *split, config.stages, config.warps)
        parameters = (self.struct, _IMPLS[plan.impl], *tile, *placement(kernel, prefetches=True))
        spec = instance(FP8_SOURCE, template, parameters, args, scale_defines(self.scale_format))
        return Launch(spec, (shares.ctas, 1, 1), config.threads, self.dynamic_smem(plan, ""), args)

    def _operands(self, config: GemmConfig, shape: Shape) -> tuple[Arg, ...]:
        """The first four parameters: maps of weights and activations, weight scales, a map of the activations'."""
        problem, (weights, weight_scales) = self.op.problem, self.op.operands
        codes, scales = self.op.activations
        return (
            _rows(weights, problem.n, problem.k, config.block_n, constant=True),
            _rows(codes, shape.m, problem.k, config.block_m, constant=False),
            BufferArg(weight_scales, constant=True),
            self._row_scales(config, shape, scales),
        )

    def _row_scales(self, config: GemmConfig, shape: Shape, buffer: str) -> TensorMapArg:
        """Lines of padded rows, one for each K group or word, by boxes of what a tile brings in (kScaleLines)."""
        groups, padded = self.op.problem.groups, round_up(shape.m, 4)
        dtype, lines, most = "f32", groups, groups // config.split_k
        if self.scale_format == UE8M0:  # a tile's groups may begin in the middle of a word
            dtype, lines, most = "i32", -(-groups // WORD), (most + WORD - 2) // WORD + 1
        return TensorMapArg(buffer, dtype, (padded, lines), (4 * padded,), (config.block_m, most), swizzle=0, l2=0)


def _rows(buffer: str, rows: int, k: int, block: int, constant: bool) -> TensorMapArg:
    """Row-major e4m3 [rows, k] by boxes of `block` rows and one K group. Rows beyond the last arrive as zeros."""
    return TensorMapArg(buffer, "u8", (k, rows), (k,), (GROUP, block), swizzle=128, l2=256, constant=constant)
