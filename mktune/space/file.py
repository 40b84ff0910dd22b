"""A search space file as parsed values, checked against its workload. The format is in search_spaces/README.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mktune import resources
from mktune.access import FUSED
from mktune.device import ARCHITECTURES
from mktune.graph.fused import fused_among, parts_of
from mktune.graph.workload import Workload
from mktune.plan import CHAINS, EDGE_KINDS, GDC, TRIGGERS, OpPlan
from mktune.space.groups import FACTS, Condition, Group, Rule
from mktune.space.source import Node, Scalar, read

FORMAT = 1

Branches = tuple[tuple[str, tuple[str, ...]], ...]
"""Name → kernels."""


@dataclass(frozen=True)
class SpaceFile:
    """What the file says: groups by op and by kernel in walking order, rankings, branches and kinds of edges, and ops
    that may share a launch.

    kernels  every kernel that some config of an op has → its op; a fused one → its ops
    """

    kernels: Mapping[str, tuple[str, ...]]
    ops: Mapping[str, tuple[Group, ...]]
    waits: Mapping[str, Group]
    triggers: Mapping[str, Group]
    edges: Mapping[str, tuple[str, ...]]
    chains: Mapping[str, tuple[str, ...]]
    rankings: tuple[tuple[str, tuple[str, ...]], ...]
    branches: Branches
    at_most_streams: int
    raised: tuple[str, ...]
    fusions: tuple[tuple[str, ...], ...] = ()


def load(workload: Workload, path: Path | None = None) -> SpaceFile:
    """The space of `workload` in `path` (default: its own file). Raises SpaceError with file:line."""
    return _Parser(workload).parse(read(path or resources.search_space(workload.name)))


class _Parser:
    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.fields = {name: _op_fields(workload, name) for name in workload.ops}
        self.kernels = _kernels(workload)

    def parse(self, root: Node) -> SpaceFile:
        needed = ["format", "workload", "ops", "kernels", "edges", "chains", "order", "streams"]
        parts = root.mapping(needed, ["fusion"])
        parts["format"].one_of([FORMAT])
        parts["workload"].one_of([self.workload.name])
        fusions = self._fusions(parts["fusion"]) if "fusion" in parts else ()
        streams = parts["streams"].mapping(["branches", "at_most", "raised"])
        branches = self._branches(streams["branches"])
        kernels = parts["kernels"]
        return SpaceFile(
            kernels=self.kernels,
            ops=self._op_groups(parts["ops"]),
            waits=self._launch_groups(kernels, "wait", {"gdc": GDC, "l2_prefetch_bytes": None}),
            triggers=self._launch_groups(kernels, "trigger", {"trigger": TRIGGERS}),
            edges=self._kinds(parts["edges"], "into", EDGE_KINDS),
            chains=self._kinds(parts["chains"], "into", CHAINS),
            rankings=self._rankings(parts["order"]),
            branches=branches,
            at_most_streams=int(streams["at_most"].one_of(range(1, len(branches) + 1))),
            raised=_names(streams["raised"], [name for name, _ in branches]),
            fusions=fusions,
        )

    def _fusions(self, section: Node) -> tuple[tuple[str, ...], ...]:
        """From here on the fused kernels are kernels too."""
        known = {FUSED.join(ops): ops for ops in self.workload.fusions}
        chosen = {known[name] for name in _names(section, known)}
        there_are = self.workload.fused_kernels(None, ARCHITECTURES[0])
        self.kernels |= {kernel: ops for kernel, ops in there_are.items() if ops in chosen}
        return tuple(ops for ops in self.workload.fusions if ops in chosen)

    def _op_groups(self, section: Node) -> dict[str, tuple[Group, ...]]:
        groups: dict[str, list[Group]] = {name: [] for name in self.workload.ops}
        for entry in section.items():
            parts = entry.mapping(["ops", "group", "fields"], ["rules"])
            for op in _names(parts["ops"], self.workload.ops):
                before = {name for group in groups[op] for name in group.field_names}
                group = _group(parts["group"].text(), parts, self.fields[op], before)
                if twice := before.intersection(group.field_names):
                    parts["fields"].fail(f"{op}: {', '.join(sorted(twice))} stands in an earlier group already")
                if any(group.name == other.name for other in groups[op]):
                    parts["group"].fail(f"{op} has a group {group.name!r} already")
                groups[op].append(group)
        for op, found in groups.items():
            named = {name for group in found for name in group.field_names}
            if missing := self.fields[op].keys() - self.workload.graph.calls[op].op.implied.keys() - named:
                section.fail(f"{op}: no group has {', '.join(sorted(missing))}")
        return {op: tuple(found) for op, found in groups.items()}

    def _launch_groups(
        self, section: Node, name: str, allowed: Mapping[str, tuple[str, ...] | None]
    ) -> dict[str, Group]:
        groups: dict[str, Group] = {}
        for entry in section.items():
            parts = entry.mapping(["kernels", "group", "fields"], ["rules"])
            if parts["group"].text(["wait", "trigger"]) != name:
                continue
            parts["fields"].mapping(list(allowed))
            for kernel in _names(parts["kernels"], self.kernels):
                if kernel in groups:
                    parts["kernels"].fail(f"{kernel} has a group {name!r} already")
                known = {field for op in self.kernels[kernel] for field in self.fields[op]}
                groups[kernel] = _group(name, parts, allowed, known)
        self._want_all(section, groups, f"{name} group")
        return groups

    def _kinds(self, section: Node, key: str, allowed: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for entry in section.items():
            parts = entry.mapping([key, "kinds"])
            kinds = tuple(sorted(_names(parts["kinds"], allowed), key=allowed.index))
            for kernel in _names(parts[key], self.kernels):
                if kernel in found:
                    parts[key].fail(f"{kernel} stands here already")
                found[kernel] = kinds
        self._want_all(section, found, "entry")
        return found

    def _want_all(self, section: Node, found: Iterable[str], what: str) -> None:
        if missing := [kernel for kernel in self.kernels if kernel not in found]:
            section.fail(f"no {what} for {', '.join(missing)}")

    def _rankings(self, section: Node) -> tuple[tuple[str, tuple[str, ...]], ...]:
        known = [*self.kernels, *(op for op in self.workload.ops if op not in self.kernels)]
        named = section.mapping([], None)
        if not named:
            section.fail("name at least one order")
        return tuple((name, _names(named[name], known)) for name in sorted(named))

    def _branches(self, section: Node) -> Branches:
        """An op stands for those of its kernels that stand nowhere themselves; a fused one goes with its first part."""
        known = dict.fromkeys([*self.workload.ops, *self.kernels])
        named = {name: _names(entry, known) for name, entry in section.mapping([], None).items()}
        alone = {name for names in named.values() for name in names if name in self.kernels}
        stands_as = {kernel: kernel if kernel in alone else ops[0] for kernel, ops in self.kernels.items()}
        stands_as |= {name: stands_as[parts_of(name)[0]] for name in fused_among(self.kernels) if name not in alone}
        branches = {
            name: tuple(kernel for kernel, stands in stands_as.items() if stands in names)
            for name, names in named.items()
        }
        for name in known:
            if sum(names.count(name) for names in named.values()) > 1:
                section.fail(f"{name} stands in more than one branch")
        placed = [kernel for kernels in branches.values() for kernel in kernels]
        if missing := [kernel for kernel in self.kernels if kernel not in placed]:
            section.fail(f"no branch has {', '.join(missing)}")
        return tuple(branches.items())


def _group(
    name: str, parts: Mapping[str, Node], allowed: Mapping[str, Iterable[Scalar] | None], before: set[str]
) -> Group:
    fields = {}
    for field, node in parts["fields"].mapping([], list(allowed)).items():
        values = node.scalars()
        for value in values:
            known = allowed[field]
            if known is not None:
                value.one_of(known)
            elif not isinstance(value.value, int) or value.value < 0:
                value.fail(f"{field} must be a whole number from 0, not {value.value!r}")
        fields[field] = tuple(sorted({value.scalar() for value in values}, key=_rank))
    rules = tuple(_rule(node, fields, before, allowed) for node in parts["rules"].items()) if "rules" in parts else ()
    return Group(name, tuple(fields.items()), rules)


def _rank(value: Scalar) -> tuple[bool, Scalar]:
    return isinstance(value, str), value


def _rule(node: Node, fields: Iterable[str], before: set[str], allowed: Mapping[str, Iterable[Scalar] | None]) -> Rule:
    """Values need not be among those that the space keeps: a rule may speak of one that somebody took out."""
    parts = node.mapping(["only"], ["when"])
    when = parts["when"].mapping([], [*fields, *sorted(before), *FACTS]) if "when" in parts else {}
    only = parts["only"].mapping([], list(fields))
    return Rule(
        tuple(_condition(name, entry, allowed.get(name)) for name, entry in when.items()),
        tuple(_condition(name, entry, allowed.get(name)) for name, entry in only.items()),
    )


def _condition(name: str, node: Node, values: Iterable[Scalar] | None) -> Condition:
    if isinstance(node.value, dict):
        ends = node.mapping([], ["at_least", "at_most"])
        numbers = {key: end.scalar() for key, end in ends.items()}
        for key, number in numbers.items():
            if not isinstance(number, int):
                ends[key].fail(f"must be a whole number, not {number!r}")
        low, high = numbers.get("at_least"), numbers.get("at_most")
        return Condition(name, span=(low if isinstance(low, int) else None, high if isinstance(high, int) else None))
    if values is not None:
        for item in node.scalars():
            item.one_of(values)
    return Condition(name, tuple(item.scalar() for item in node.scalars()))


def _names(node: Node, allowed: Iterable[str]) -> tuple[str, ...]:
    known = list(allowed)
    return tuple(item.text(known) for item in node.scalars())


def _op_fields(workload: Workload, name: str) -> dict[str, tuple[Scalar, ...]]:
    """Field → every value that some implementation takes on some architecture, and that which a config leaves out."""
    op = workload.graph.calls[name].op
    found: dict[str, set[Scalar]] = {"impl": set(), **{field: {value} for field, value in op.implied.items()}}
    for arch in ARCHITECTURES:
        for impl, fields in op.choices(arch).items():
            found["impl"].add(impl)
            for field, values in fields.items():
                found.setdefault(field, set()).update(values)
    return {field: tuple(sorted(values, key=_rank)) for field, values in found.items()}


def _kernels(workload: Workload) -> dict[str, tuple[str, ...]]:
    """Every kernel that some config of an op has → its op: in issue order of the default configs, then the others."""
    found: dict[str, tuple[str, ...]] = {}
    for name, call in workload.graph.calls.items():
        for plan in (call.op.default(ARCHITECTURES[0]), *_one_of_each(call.op.choices(ARCHITECTURES[0]))):
            found |= dict.fromkeys(call.kernel_names(plan), (name,))
    return found


def _one_of_each(choices: Mapping[str, Mapping[str, tuple[Scalar, ...]]]) -> Iterator[OpPlan]:
    """A plan of each implementation: which kernels it has at most, its first values say."""
    for impl, fields in choices.items():
        yield OpPlan.of(impl, {name: values[0] for name, values in fields.items()})
