"""A0 → B0 as a CUDA graph from configs alone: no workload, plan or search needed. For kernel tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import get_context

import torch

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.executors.buffers import Buffers
from mktune.executors.cuda_graph import CudaGraph
from mktune.jit.build import build
from mktune.launch import CompiledKernel, KernelSpec, Launch
from mktune.lowering.kernel_graph import Edge, KernelGraph
from mktune.ops.launch import launches_for, with_defines
from mktune.ops.qkv_a import QkvA
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 * 2**20, 4.8e12)
OUTPUTS = ("residual_out", "h", "h_q", "h_s", "q_lora_q", "q_lora_s")
PLAIN = KernelPlan()


Kernels = dict[KernelSpec, CompiledKernel]


@dataclass(frozen=True)
class Chain:
    """One way to run A0 → B0. `edge` is the kind of both edges; `only` leaves kernels out (for timing parts)."""

    b0: OpPlan
    threads: int = 384
    a0: KernelPlan = PLAIN
    b0p: KernelPlan = PLAIN
    b0f: KernelPlan = PLAIN
    edge: str = "full"
    defines: tuple[tuple[str, str], ...] = ()
    only: tuple[str, ...] = ("A0", "B0p", "B0f")

    def launches(self, shape: Shape) -> dict[str, Launch]:
        """Kernel name → launch, in issue order."""
        a0 = launches_for("add_rmsnorm_quant", OpPlan.of("mktune", {"threads": self.threads}), (self.a0,), shape, H200)
        b0 = launches_for("qkv_a", self.b0, (self.b0p, self.b0f), shape, H200)
        named = dict(zip(("A0", "B0p", "B0f"), (*a0, *b0), strict=False))
        return {name: with_defines(launch, dict(self.defines)) for name, launch in named.items() if name in self.only}

    def graph(self, shape: Shape) -> KernelGraph:
        launches = self.launches(shape)
        names = list(launches)
        facts = tuple(KernelFacts(name, name[:2], (), True, "exit") for name in names)
        edges = tuple(Edge(a, b, self.edge) for a, b in pairwise(names))
        return KernelGraph(facts, edges, launches=tuple(launches.items()))

    def specs(self, rows: Iterable[int] = (16,)) -> list[KernelSpec]:
        """What to compile for these row counts."""
        found = [launch.kernel for m in rows for launch in self.launches(Shape.from_m(m, 8192)).values()]
        return list(dict.fromkeys(found))


def compile_all(specs: list[KernelSpec], workers: int = 8) -> Kernels:
    """Every kernel, compiled in parallel. Kernels of one source and set of macros share a program."""
    wanted = sorted(set(specs), key=lambda spec: (spec.source, spec.defines, spec.name_expression))
    parts = [wanted[at : at + 4] for at in range(0, len(wanted), 4)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        built = pool.map(_build, parts)
        return {kernel.spec: kernel for part in built for kernel in part}


def _build(specs: list[KernelSpec]) -> list[CompiledKernel]:
    return build(specs, "sm_90a", facts=False)


def workspaces(shape: Shape, b0: OpPlan) -> dict[str, torch.Tensor]:
    """B0's scratch memory by port; counters are zero."""
    return {
        space.port: (torch.zeros if space.counter else torch.empty)(
            max(16, space.bytes), dtype=torch.uint8, device="cuda"
        )
        for space in QkvA().workspaces(b0, shape)
    }


class Running:
    """A chain on the GPU. `layers` map port → tensor, one mapping for each layer."""

    def __init__(
        self, chain: Chain, shape: Shape, kernels: dict[KernelSpec, CompiledKernel], layers: list[dict]
    ) -> None:
        self.scratch = workspaces(shape, chain.b0)
        self._layers = layers  # keeps the memory
        addresses = tuple(
            {name: tensor.data_ptr() for name, tensor in {**self.scratch, **layer}.items()} for layer in layers
        )
        self._graph = CudaGraph(chain.graph(shape), kernels, Buffers(addresses))

    def replay(self) -> None:
        self._graph.replay(torch.cuda.current_stream().cuda_stream)

    def close(self) -> None:
        torch.cuda.synchronize()
        self._graph.close()


def delayed(chain: Chain, ns: int) -> Chain:
    return replace(chain, defines=(("MKTUNE_DELAY_NS", str(ns)),))
