"""Does the machine code really wait? What the gate reads from the listing, seen once on the GPU for every kernel.

A layer of a plan runs kernel by kernel. Each whose code is new runs behind a producer that lets it start at once,
spins, and only then writes over poison what the kernel reads. Meanwhile the kernel may write nothing, its grid must not
end first, and what the layer computes in this way must be right. NOTE: a kernel without a wait may keep its grid from
ending by what today's hardware does; that its results came too soon tells all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mktune.access import KernelFacts
from mktune.errors import CandidateError
from mktune.executors.buffers import Buffers, Span
from mktune.executors.cuda_graph import CudaGraph, Kernels
from mktune.executors.driver_calls import call, synchronize
from mktune.executors.torch_memory import counters
from mktune.launch import BufferArg, KernelSpec, Launch, ScalarArg
from mktune.lowering.kernel_graph import Edge, KernelGraph
from mktune.measure.correctness import compare_layers, fail_on
from mktune.measure.memory import Copies, span_of
from mktune.measure.validation import Build
from mktune.plan import Plan
from mktune.trial import Status

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

SPIN_NS = 50_000
PRODUCER, WITNESS = "late producer", "witness"

_SOURCE = "standalone/late_producer.cu"
_CTAS, _THREADS = 8, 256  # few, so that they leave the kernel its place
_WORD = 4
_PLACES = ("i32", "i64")  # args that say where others lie: read poisoned, they would lead anywhere


@dataclass(frozen=True)
class Piece:
    """Bytes that the producer writes late: those of one buffer of the kernel, whole words.

    written   the kernel writes them
    poisoned  they are 0xFF until then; counters are left as they are
    """

    span: Span
    written: bool
    poisoned: bool


class Probe:
    """Keeps which kernels of which cubins have held; `build` compiles what stands around them."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._held: set[tuple[str, str]] = set()

    def check(self, plan: Plan, lowered: KernelGraph, kernels: Kernels, copies: Copies) -> str:
        """How many kernels of the plan's cubins have held, those that did before included.

        Raises CandidateError (wrong_result) with the kernel that does not wait. What `copies` hold is lost.
        """
        layer = _Layer(plan, lowered, kernels, copies)
        launches, found = dict(lowered.launches), set[tuple[str, str]]()
        for kernel in lowered.kernels:
            compiled = kernels[launches[kernel.name].kernel]
            code = (hashlib.sha256(compiled.cubin).hexdigest(), compiled.symbol)
            is_new = kernel.waits and code not in self._held | found
            if kernel.waits:
                found.add(code)
            if is_new:
                layer.probe(kernel, self._build)
            else:
                layer.run(kernel)
        fail_on(layer.differences(), "behind a late producer:")
        self._held.update(found)
        return f"{len(found)} kernel{'' if len(found) == 1 else 's'} held"


class _Layer:
    """The first layer of `copies`, which runs kernel by kernel."""

    def __init__(self, plan: Plan, lowered: KernelGraph, kernels: Kernels, copies: Copies) -> None:
        self._launches, self._kernels = dict(lowered.launches), dict(kernels)
        self._copies = Copies(copies.memory, copies.made[:1])
        self._copies.restore()
        buffers, poison, self._spaces = self._copies.buffers(plan)
        self._addresses = dict(buffers.layers[0])
        self._counters = counters(plan, copies.memory.graph, copies.memory.shape)
        _fill(poison.of(0))

    def run(self, kernel: KernelFacts) -> None:
        """The kernel alone."""
        graph = KernelGraph((kernel,), (), launches=((kernel.name, self._launches[kernel.name]),))
        self._replay(graph, self._kernels, {})

    def probe(self, kernel: KernelFacts, build: Build) -> None:
        """The kernel behind a late producer. Raises CandidateError where it ran ahead of it."""
        import torch

        pieces, place = list(self._pieces(kernel)), self._copies.memory.place
        table, words = _table(pieces)
        about = torch.tensor(table, dtype=torch.int64, device=place)
        saved = torch.empty(max(1, words), dtype=torch.int32, device=place)
        report = torch.zeros(3, dtype=torch.int64, device=place)
        graph = behind_late_producer(kernel, self._launches[kernel.name], len(pieces))
        around = build([launch.kernel for name, launch in graph.launches if name != kernel.name])
        for piece, (_, first, *_) in zip(pieces, table, strict=True):
            call("cuMemcpyDtoD", saved.data_ptr() + _WORD * first, piece.span.address, piece.span.bytes)
        _fill([piece.span for piece in pieces if piece.poisoned])
        own = {"probe.pieces": about, "probe.saved": saved, "probe.report": report}
        self._replay(graph, {**self._kernels, **around}, own)
        if wrong := ran_ahead(*report.tolist()):
            raise CandidateError(Status.WRONG_RESULT, f"{kernel.name}: behind a late producer {wrong}")

    def differences(self) -> list[str]:
        """What is wrong once all kernels have run, in words."""
        left = [name for name in self._counters if self._spaces[name].any().item()]
        return [f"counter {name} is not zero" for name in left] + compare_layers(self._copies)

    def _replay(self, graph: KernelGraph, kernels: Kernels, own: Tensors) -> None:
        addresses = {**self._addresses, **{name: tensor.data_ptr() for name, tensor in own.items()}}
        synchronize()  # torch's stream is another
        running = CudaGraph(graph, kernels, Buffers((addresses,)))
        try:
            running.replay(0)
            synchronize()
        finally:
            running.close()

    def _pieces(self, kernel: KernelFacts) -> Iterator[Piece]:
        """What the kernel may touch behind its wait only, but for weights and what says where others lie."""
        early = {access.buffer for access in kernel.accesses if not access.after_wait}
        late = dict.fromkeys(access.buffer for access in kernel.accesses if access.buffer not in early)
        written = {access.buffer for access in kernel.accesses if access.writes}
        for name in late:
            for span in self._spans(name):
                if span.address % _WORD == 0 and span.bytes >= _WORD:  # of an odd end the last bytes are left alone
                    whole = Span(span.address, span.bytes // _WORD * _WORD)
                    yield Piece(whole, name in written, name not in self._counters)

    def _spans(self, name: str) -> list[Span]:
        memory = self._copies.memory
        if name in self._copies.made[0]:
            return self._copies.written(0, name)
        if name in self._spaces:
            return [span_of(self._spaces[name])]
        is_value = name in memory.args and memory.graph.tensors[name].dtype not in _PLACES
        return [span_of(memory.args[name])] if is_value else []


def behind_late_producer(kernel: KernelFacts, launch: Launch, pieces: int) -> KernelGraph:
    """Three kernels: the producer, over a programmatic edge `kernel`, and over a full one who notes its end."""
    report = BufferArg("probe.report")
    args = (BufferArg("probe.pieces"), ScalarArg(pieces), BufferArg("probe.saved"), ScalarArg(SPIN_NS, "u64"), report)
    producer = Launch(KernelSpec(_SOURCE, "mktune::late_producer"), (_CTAS, 1, 1), _THREADS, 0, args)
    witness = Launch(KernelSpec(_SOURCE, "mktune::note_end"), (1, 1, 1), 32, 0, (report,))
    around = [KernelFacts(name, "probe", (), False, "exit") for name in (PRODUCER, WITNESS)]
    edges = (Edge(PRODUCER, kernel.name, "programmatic"), Edge(kernel.name, WITNESS, "full"))
    launches = ((PRODUCER, producer), (kernel.name, launch), (WITNESS, witness))
    return KernelGraph((around[0], kernel, around[1]), edges, launches=launches)


def ran_ahead(early: int, producer_ns: int, consumer_ns: int) -> str:
    """What a report says against the kernel, in words; empty where nothing does."""
    if early:
        return f"it had changed {early} words before the producer wrote any"
    if consumer_ns < producer_ns:
        return f"its grid ended {producer_ns - consumer_ns} ns before the producer's"
    return ""


def _table(pieces: Sequence[Piece]) -> tuple[list[tuple[int, ...]], int]:
    """Rows of the producer's table (struct Piece of the kernel's source), and how many words they are in all."""
    rows: list[tuple[int, ...]] = []
    first = 0
    for piece in pieces:
        assert piece.span.address % _WORD == piece.span.bytes % _WORD == 0, piece
        count = piece.span.bytes // _WORD
        rows.append((piece.span.address, first, count, int(piece.written), int(piece.poisoned)))
        first += count
    return rows, first


def _fill(spans: Sequence[Span]) -> None:
    for span in spans:
        call("cuMemsetD8", span.address, 0xFF, span.bytes)
