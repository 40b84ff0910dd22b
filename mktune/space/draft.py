"""A plan under construction: what has been chosen so far, in the order in which dimensions are walked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mktune.plan import EdgeName, OpPlan
from mktune.space.source import Scalar


@dataclass
class Draft:
    """What is fused first, then op configs, then the kernels and edges that follow from them, then how those run.

    facts           the problem's facts that rules may ask for
    implied         op → the fields that a config leaves out where they have these values
    fusions         fused kernel → its ops
    settled         op → impl and config, once every op is configured
    kernels, edges  kernel → its ops (one, unless it is fused), and data edges, in the graph's own issue order: set once
                    every op is configured
    """

    facts: Mapping[str, Scalar]
    implied: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    fusions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    configs: dict[str, dict[str, Scalar]] = field(default_factory=dict)
    settled: dict[str, OpPlan] = field(default_factory=dict)
    kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    edges: tuple[EdgeName, ...] = ()
    order: tuple[str, ...] = ()
    streams: dict[str, int] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)
    kinds: dict[EdgeName, str] = field(default_factory=dict)
    chains: dict[str, str] = field(default_factory=dict)
    launch: dict[str, dict[str, Scalar]] = field(default_factory=dict)

    def op_plans(self) -> dict[str, OpPlan]:
        """Op → impl and config."""
        return {op: self.op_plan(op) for op in self.configs}

    def op_plan(self, op: str) -> OpPlan:
        if op in self.settled:
            return self.settled[op]
        return op_plan(self.configs[op], self.implied.get(op, {}))

    def beside(self, op: str) -> list[Mapping[str, Scalar]]:
        """The fields, as far as they are chosen, of the ops that share a launch with `op`."""
        return [
            self.configs.get(other, {}) for ops in self.fusions.values() if op in ops for other in ops if other != op
        ]

    def fields_of(self, kernel: str) -> dict[str, Scalar]:
        """The fields of the kernel's op; of a fused kernel those of its first op, and what only others have."""
        found: dict[str, Scalar] = {}
        for op in reversed(self.kernels[kernel]):
            found.update(self.configs[op])
        return found

    def sources(self, kernel: str) -> tuple[str, ...]:
        """Producers of what `kernel` reads, in the graph's order."""
        return tuple(source for source, target in self.edges if target == kernel)

    @cached_property
    def predecessors(self) -> dict[str, str]:
        """Kernel → the kernel before it on its stream, where no data edge orders the two already.

        First asked for when order and streams are settled.
        """
        last: dict[int, str] = {}
        found = {}
        for kernel in self.order:
            stream = self.streams[kernel]
            if stream in last and (last[stream], kernel) not in self.edges:
                found[kernel] = last[stream]
            last[stream] = kernel
        return found

    def into(self, kernel: str) -> list[tuple[str, str]]:
        """(source, kind) of every edge into the kernel, that from the kernel before on its stream too."""
        edges = [(source, self.kinds[source, kernel]) for source in self.sources(kernel)]
        if kernel in self.predecessors:
            edges.append((self.predecessors[kernel], self.chains.get(kernel, "full")))
        return edges

    def starts_early(self, kernel: str) -> bool:
        """Some edge lets the kernel begin before what it depends on has ended: its wait has something to wait for."""
        return any(kind != "full" for _, kind in self.into(kernel))

    def complete_at_start(self, kernel: str) -> set[str]:
        """Kernels whose results may be read before the wait: those at full edges, and all that these waited for."""
        found: set[str] = set()
        behind = [source for source, kind in self.into(kernel) if kind == "full"]
        while behind:
            source = behind.pop()
            if source not in found:
                found.add(source)
                behind += [before for before, _ in self.into(source)]
        return found

    def lets_start_early(self, kernel: str) -> bool:
        """Some edge out of the kernel starts at its trigger."""
        kinds = [kind for (source, _), kind in self.kinds.items() if source == kernel]
        kinds += [self.chains.get(after, "full") for after, before in self.predecessors.items() if before == kernel]
        return "programmatic" in kinds


def op_plan(fields: Mapping[str, Scalar], implied: Mapping[str, Scalar]) -> OpPlan:
    """The op's plan in its fields: `impl`, and the config in the rest but for what is implied."""
    config = {name: value for name, value in fields.items() if name != "impl" and implied.get(name) != value}
    return OpPlan.of(str(fields["impl"]), config)
