"""What the worker process does for one problem on one GPU: build, verify, time, validate. See `worker`.

Requests are JSON objects with a `do` and its arguments; plans travel as their JSON. After each candidate the device is
synchronised, so that a fault is charged to the plan that caused it. What a plan with wrong results has written, and
where, nobody knows: the problem's memory is made anew after it. `open` makes another part of the workload the
problem at hand, also at another shape: one process can measure one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from mktune.device import Device
from mktune.errors import CandidateError
from mktune.executors.captured import EXECUTABLES
from mktune.executors.cuda_graph import CudaGraph, Kernels, compiled_for
from mktune.executors.discovery import index_of
from mktune.executors.driver_calls import synchronize, use_device
from mktune.executors.executable import Executable
from mktune.executors.modules import MODULES
from mktune.graph.opgraph import OpGraph
from mktune.graph.workload import workload
from mktune.jit.build import Read, build
from mktune.launch import CompiledKernel, KernelSpec
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import KernelGraph, specs_of
from mktune.measure import tracing
from mktune.measure.calibration import calibrate
from mktune.measure.correctness import KnownResults, verify
from mktune.measure.gate import check_facts, check_registers
from mktune.measure.memory import Copies, Memory, layers_for, make_memory
from mktune.measure.peer import peer_us
from mktune.measure.probe import Probe
from mktune.measure.screening import ScreeningBudget, check_finite, check_span, of_layers, screen
from mktune.measure.session import Gauges, drifted, steady
from mktune.measure.span import GraphTimer
from mktune.measure.stamps import stamp_times
from mktune.measure.stream import stream_us
from mktune.measure.validation import Effort, validate
from mktune.measure.worker import Reply
from mktune.phases import Phases
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.trial import Status

_KEPT_MODULES = 512  # loaded though no plan at hand uses them: some 40 MB of device memory
_KNOWN_KERNELS = 2048  # whose machine code is not read from the cache again
_SHIFT_BYTES, _SHIFTS = 512, 128  # how far tensors are moved from build to build

Built = tuple[Plan, KernelGraph, Kernels]
MakeTimed = Callable[[], AbstractContextManager[Executable]]


@dataclass
class Opened:
    """A problem in the device's memory: its layers, what verification writes, and results known to be right."""

    graph: OpGraph
    memory: Memory
    copies: Copies
    known: KnownResults
    cold_bytes: int


class CudaHost:
    """One problem in memory at a time, and the clock. Made in the worker process; see `handle`."""

    imports = ("torch",)

    def __init__(
        self,
        workload_name: str,
        ops: Sequence[str],
        shape: Sequence[int],
        seed: int,
        device: dict[str, Any],
        index: int,
        scale_format: str | None = None,
    ) -> None:
        import torch

        self._device = Device(**device)
        index = index_of(self._device.uuid) if self._device.uuid else index  # numbers may differ between processes
        torch.cuda.set_device(index)
        use_device(index)
        self._workload = workload(workload_name, scale_format)
        self._shape = Shape(*shape)
        self._seed, self._place = seed, f"cuda:{index}"
        self._held: Opened | None = None
        self._spoilt = False
        self._draw = random.Random(seed)
        self._timer = GraphTimer(1)
        self._gauges = Gauges(self._device.uuid)
        self._compiled: dict[KernelSpec, CompiledKernel] = {}
        self._sources: Read = {}
        MODULES.keep(_KEPT_MODULES)
        self._probe = Probe(self._kernels)
        self._do_open(ops)
        synchronize()

    def handle(self, request: Reply) -> Reply:
        """Answer one request: open, calibrate, verify, trial, rounds, validate, stamps, trace, limit or peer."""
        do: Callable[..., Reply] = getattr(self, f"_do_{request['do']}")
        try:
            return do(**{name: value for name, value in request.items() if name != "do"})
        except CandidateError as error:
            if error.status == Status.WRONG_RESULT:
                self._spoilt = True
            raise
        finally:
            synchronize()

    @property
    def _opened(self) -> Opened:
        assert self._held is not None, "no problem was opened"
        return self._held

    def _do_open(self, ops: Sequence[str], shape: Sequence[int] | None = None) -> Reply:
        """Make these ops of the workload, at this shape (None: as before), the problem at hand, in the place of the one
        before; nothing where they are.

        The reply's `made` says whether anything was. Raises what make_memory does: then there is none, until the next
        `open`.
        """
        graph, before = self._workload.subgraph(ops), self._shape
        self._shape = before if shape is None else Shape(*shape)
        if self._shape == before and self._held is not None and self._held.graph is graph and not self._spoilt:
            return {"made": False}
        self._held, self._spoilt = None, False
        _release()
        layers = layers_for(graph, self._shape, self._device)
        memory = make_memory(graph, self._shape, layers, self._seed, self._place)
        cold = sum(call.op.bytes_read(self._shape) for call in graph.calls.values())
        self._held = Opened(graph, memory, memory.verification(), KnownResults(), cold)
        self._timer.layers = layers
        return {"made": True}

    def _do_calibrate(self) -> Reply:
        return calibrate(self._timer, self._device.arch).to_dict()

    def _do_verify(self, plan: str) -> Reply:
        """Raises what is wrong with the plan."""
        parsed, lowered, kernels = self._built(plan)
        verify(parsed, lowered, kernels, self._opened.copies, known=self._opened.known)
        return {}

    def _do_trial(self, plan: str, incumbent_us: float | None, budget: dict[str, Any]) -> Reply:
        """Build, verify and screen one plan."""
        phases, allowed = Phases(), of_layers(ScreeningBudget(**budget), self._opened.memory.layers)
        with phases("build"):
            parsed, lowered, kernels = self._built(plan)
        with phases("verify"):
            verify(parsed, lowered, kernels, self._opened.copies, known=self._opened.known)

        def make() -> AbstractContextManager[Executable]:
            return self._timed(parsed, lowered, kernels)

        with phases("settle"):
            self._settle(make)
        found, state = steady(
            lambda: screen(lambda count: self._sample_anew(make, count, phases), incumbent_us, allowed),
            self._gauges.read,
            lambda screening: drifted(screening.samples),
        )
        check_span(found.interval.median, self._opened.cold_bytes, self._device.bandwidth)
        return {
            "status": found.status,
            "reason": found.reason,
            "samples": found.samples,
            "span": [found.interval.median, found.interval.low, found.interval.high],
            "device_state": state,
            "seconds": phases.seconds,
        }

    def _do_rounds(self, plans: dict[str, str], rounds: int) -> Reply:
        """Palindromes over several verified plans: A B C … C B A. Two samples of each plan a round.

        A sample is the mean of one palindrome's two launches. For each all plans are built anew (see `_timed`): no plan
        is faster than another for where it happened to lie.

        Every launch that counts comes behind one of the same graph, as in screening: behind another graph's it took
        2 µs longer on an H200, of which a layer of a model sees nothing.
        """
        built = {name: self._built(plan) for name, plan in plans.items()}
        self._settle(lambda: self._timed(*next(iter(built.values()))))
        samples, state = steady(lambda: self._palindromes(built, 2 * rounds), self._gauges.read)
        return {"samples": samples, "device_state": state}

    def _palindromes(self, built: Mapping[str, Built], count: int) -> dict[str, list[float]]:
        samples: dict[str, list[float]] = {name: [] for name in built}
        for _ in range(count):
            with ExitStack() as stack:
                graphs = {name: stack.enter_context(self._timed(*each)) for name, each in built.items()}
                order = [*graphs, *reversed(graphs)]
                self._timer.sample([graphs[name] for name in order])  # warm-up
                spans = self._timer.sample([graphs[name] for name in order for _ in range(2)])[1::2]
                check_finite(spans)
                for name, there, back in zip(graphs, spans, reversed(spans), strict=False):
                    samples[name].append((there + back) / 2)
        return samples

    def _do_validate(self, plan: str, effort: dict[str, int] | None = None) -> Reply:
        """Probe the cubins, provoke races, and compare bits. Raises what failed."""
        parsed, lowered, kernels = self._built(plan)
        self._spoilt = True  # while the probe runs, what plans read in common is poison
        probed = self._probe.check(parsed, lowered, kernels, self._opened.copies)
        self._spoilt = False
        found = validate(parsed, lowered, self._opened.copies, self._kernels, Effort(**(effort or {})))
        return {"validated": found.how, "repeats": found.repeats.to_dict(), "probe": probed}

    def _do_stamps(self, plan: str, kernels: list[str], replays: int) -> Reply:
        """When `kernels` begin and end in a layer; see `stamps`."""
        parsed, lowered, _ = self._built(plan)
        return stamp_times(parsed, lowered, self._opened.memory, self._kernels, self._timer, kernels, replays)

    def _do_trace(self, plan: str, rounds: int) -> Reply:
        """When every CTA of a layer ran, beside the plain build; see `tracing`."""
        parsed, lowered, kernels = self._built(plan)
        buffers, spaces = self._opened.memory.timing(parsed)
        noted = tracing.traced(lowered)
        graphs: list[CudaGraph] = []
        try:
            graphs.append(CudaGraph(lowered, kernels, buffers))
            graphs.append(CudaGraph(noted, self._kernels(specs_of(noted)), buffers))
            plain, noting = graphs
            self._timer.settle(plain)
            (samples, notes), state = steady(
                lambda: tracing.trace_rounds(plain, noting, self._timer, rounds), self._gauges.read
            )
        finally:
            synchronize()
            for graph in graphs:
                graph.close()
        del spaces
        return {**tracing.reply(samples, notes), "device_state": state}

    def _do_limit(self, size: int) -> Reply:
        """How long reading `size` cold bytes takes; see `stream`."""
        return {"us": stream_us(size, self._device, self._kernels, self._place)}

    def _do_peer(self, op: str) -> Reply:
        """How long the peer's kernel of an op takes; see `peer`. Raises CandidateError where there is none."""
        call = self._workload.graph.calls[op]
        try:
            us = peer_us(call.op.title, self._shape, call.op.bytes_read(self._shape), self._device, self._place)
        except CandidateError:
            raise
        except Exception as error:  # whatever another library raises: then there is no peer
            raise CandidateError(Status.BUILD_ERROR, f"{type(error).__name__}: {error}"[:200]) from None
        finally:
            _release()
        return {"us": us}

    def _built(self, text: str) -> Built:
        plan = Plan.from_json(text)
        lowered = lower(plan, self._opened.graph, self._shape, self._device, launches=True)
        kernels = self._kernels(specs_of(lowered))
        check_facts(lowered, kernels, plan)
        check_registers(lowered, kernels)
        return plan, lowered, kernels

    def _kernels(self, specs: Sequence[KernelSpec]) -> Kernels:
        wanted = list(dict.fromkeys(specs))
        if len(self._compiled) > _KNOWN_KERNELS:
            self._compiled.clear()
        if missing := [spec for spec in wanted if spec not in self._compiled]:
            self._compiled |= compiled_for(missing, build(missing, self._device.arch, sources=self._sources))
        return {spec: self._compiled[spec] for spec in wanted}

    @contextmanager
    def _timed(self, plan: Plan, lowered: KernelGraph, kernels: Kernels) -> Iterator[Executable]:
        """The timing build of a plan, with activations and workspaces at places of their own.

        Where they, nodes and code lie moves a span by a percent or two, at most four, the same way every time: in one
        process, with one set of activations, all plans of a cell took an H200 3 % less than in another.
        """
        memory = self._opened.memory.elsewhere(self._shift)
        buffers, spaces = memory.timing(plan, self._shift())
        with EXECUTABLES[plan.executor](lowered, kernels, buffers) as graph:
            graph.upload(self._timer.stream.cuda_stream)
            yield graph
        del spaces, memory

    def _shift(self) -> int:
        return _SHIFT_BYTES * self._draw.randrange(_SHIFTS)

    def _settle(self, make: MakeTimed) -> None:
        if not self._timer.settled:
            with make() as graph:
                self._timer.settle(graph)

    def _sample_anew(self, make: MakeTimed, count: int, phases: Phases) -> list[float]:
        """`count` spans of a build of its own."""
        with ExitStack() as stack:
            with phases("build"):
                graph = stack.enter_context(make())
            with phases("measure"):
                return self._timer.sample([graph] * count)


def _release() -> None:
    """Give back what freed tensors held: the next problem's have other sizes."""
    import torch

    torch.cuda.empty_cache()
