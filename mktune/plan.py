"""A plan: everything that decides how a graph of ops runs at a shape. A frozen value with one canonical JSON form.

Mappings are kept as tuples of pairs, sorted by name, so that a plan can be hashed. Equal plans have equal JSON and so
an equal `plan_id`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from mktune import fields
from mktune.errors import InputError, PlanError
from mktune.shape import Shape

SCHEMA_VERSION = 1
EXECUTORS = ("cuda_graph", "streams")
GDC = ("entry", "prologue", "prefetch")
TRIGGERS = ("exit", "start", "after_wait", "before_epilogue")
CHAINS = ("full", "programmatic")
EDGE_KINDS = ("full", "programmatic", "launch_order")
LOWEST_PRIORITY = -16

ConfigValue = int | str
Config = tuple[tuple[str, ConfigValue], ...]
EdgeName = tuple[str, str]

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True)
class OpPlan:
    """How one op is computed: an implementation and its config (sorted pairs; `finalizer` is one of them)."""

    impl: str
    config: Config

    @classmethod
    def of(cls, impl: str, config: Mapping[str, ConfigValue]) -> OpPlan:
        """The same from a mapping, whose order does not matter."""
        return cls(impl, tuple(sorted(config.items())))


@dataclass(frozen=True)
class KernelPlan:
    """How one kernel is launched and placed.

    stream             canonical number: streams are numbered by first use in `Plan.order`
    priority           node priority, higher first (0 is the default)
    gdc                where the wait stands: at entry, after the prologue, or after weights are being fetched
    trigger            where dependents may launch: exit, start, after_wait, before_epilogue
    l2_prefetch_bytes  weight bytes asked into L2 before the wait, beyond what the ring holds
    chain              kind of the ordering edge from the kernel before it on its stream
    """

    stream: int = 0
    priority: int = 0
    gdc: str = "entry"
    trigger: str = "exit"
    l2_prefetch_bytes: int = 0
    chain: str = "full"


class _Mapping(Generic[Key, Value]):
    """The pairs of a plan's field as a dict, made when it is first asked for.

    As `cached_property`, but without the lock that it takes in Python 3.11, which costs more than these dicts.
    """

    def __init__(self, pairs: str) -> None:
        self._pairs = pairs

    def __set_name__(self, owner: type[Plan], name: str) -> None:
        self._name = name

    def __get__(self, plan: Plan, owner: type[Plan]) -> dict[Key, Value]:
        made = plan.__dict__[self._name] = dict(getattr(plan, self._pairs))
        return made


@dataclass(frozen=True)
class Plan:
    """See the module. Build with the keyword constructor, then call `canonical()`; `from_json` validates."""

    workload: str
    contract: int
    scale_format: str
    shape: Shape
    m_range: tuple[int, int]
    kv_range: tuple[int, int]
    ops: tuple[tuple[str, OpPlan], ...]
    kernels: tuple[tuple[str, KernelPlan], ...]
    order: tuple[str, ...]
    edges: tuple[tuple[EdgeName, str], ...]
    executor: str = "cuda_graph"
    schema: int = SCHEMA_VERSION

    op = _Mapping[str, OpPlan]("ops")
    """Op name → its plan."""

    kernel = _Mapping[str, KernelPlan]("kernels")
    """Kernel name → its plan."""

    edge = _Mapping[EdgeName, str]("edges")
    """(producer, consumer) → kind."""

    @property
    def op_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.ops)

    def chain_predecessors(self) -> dict[str, str]:
        """Kernel → the kernel before it on its stream, for those that have one."""
        last: dict[int, str] = {}
        found = {}
        for name in self.order:
            stream = self.kernel[name].stream
            if stream in last:
                found[name] = last[stream]
            last[stream] = name
        return found

    def canonical(self) -> Plan:
        """The same plan in its one form: pairs sorted, streams numbered by first use, idle `chain` values reset.

        A chain edge decides nothing where there is no kernel before on the stream, or where that kernel is a
        producer of this one: then the data edge's own kind holds.
        """
        streams: dict[int, int] = {}
        for name in self.order:
            streams.setdefault(self.kernel[name].stream, len(streams))
        before = self.chain_predecessors()
        kernels = []
        for name, kernel in self.kernels:
            dead = name not in before or (before[name], name) in self.edge
            chain = "full" if dead else kernel.chain
            kernels.append((name, replace(kernel, stream=streams[kernel.stream], chain=chain)))
        return replace(
            self,
            ops=tuple(sorted(self.ops, key=lambda pair: pair[0])),
            kernels=tuple(sorted(kernels, key=lambda pair: pair[0])),
            edges=tuple(sorted(self.edges)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the form that `from_dict` reads."""
        return {
            "schema": self.schema,
            "workload": self.workload,
            "contract": self.contract,
            "scale_format": self.scale_format,
            "shape": {
                "requests": self.shape.requests,
                "tokens_per_request": self.shape.tokens_per_request,
                "kv": self.shape.kv,
            },
            "m_range": list(self.m_range),
            "kv_range": list(self.kv_range),
            "executor": self.executor,
            "ops": {name: {"impl": op.impl, "config": dict(op.config)} for name, op in self.ops},
            "kernels": {name: dict(vars(kernel)) for name, kernel in self.kernels},
            "order": list(self.order),
            "edges": {f"{source}->{target}": kind for (source, target), kind in self.edges},
        }

    @cached_property
    def json(self) -> str:
        """Canonical JSON: sorted keys, no white space."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @cached_property
    def plan_id(self) -> str:
        """sha256 of the canonical JSON, 64 hex digits."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    @property
    def short_id(self) -> str:
        """The beginning of `plan_id` that tables show and commands take."""
        return self.plan_id[:12]

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `json` wrote. Raises PlanError with the place that is wrong."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"a plan is not JSON: {error}") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """The plan in `data`. Raises PlanError with the field that is wrong or missing."""
        if not isinstance(data, dict):
            raise PlanError("a plan must be an object")
        schema = data.get("schema")
        if type(schema) is not int or schema != SCHEMA_VERSION:
            newer = isinstance(schema, int) and schema > SCHEMA_VERSION
            hint = "made by a newer mktune; upgrade to read it" if newer else "not a plan that this mktune reads"
            raise PlanError(f"plan schema {schema!r} (this mktune reads {SCHEMA_VERSION}): {hint}")
        try:
            return _parse(fields.record("plan", data, _PLAN_FIELDS))
        except InputError as error:
            raise PlanError(str(error)) from None


_PLAN_FIELDS = tuple(Plan.__dataclass_fields__)
_KERNEL_FIELDS = tuple(KernelPlan.__dataclass_fields__)


def _parse(data: dict[str, Any]) -> Plan:
    ops = []
    for name, value in fields.mapping("ops", data["ops"]).items():
        op = fields.record(f"ops.{name}", value, ("impl", "config"))
        config = fields.mapping(f"ops.{name}.config", op["config"])
        for key, chosen in config.items():
            fields.expect(type(chosen) in (int, str), f"ops.{name}.config.{key} must be a whole number or text")
        ops.append((name, OpPlan.of(fields.name(f"ops.{name}.impl", op["impl"]), config)))
    kernels = [(name, _parse_kernel(name, value)) for name, value in fields.mapping("kernels", data["kernels"]).items()]
    order = tuple(fields.name("order", name) for name in fields.items("order", data["order"]))
    fields.expect(sorted(order) == sorted(name for name, _ in kernels), "order must name every kernel exactly once")
    fields.expect(bool(ops and order), "a plan must have ops and kernels")
    return Plan(
        workload=fields.name("workload", data["workload"]),
        contract=fields.whole("contract", data["contract"], low=0),
        scale_format=fields.name("scale_format", data["scale_format"]),
        shape=Shape(**fields.record("shape", data["shape"], tuple(Shape.__dataclass_fields__))),
        m_range=_range("m_range", data["m_range"]),
        kv_range=_range("kv_range", data["kv_range"]),
        executor=fields.choice("executor", data["executor"], EXECUTORS),
        ops=tuple(sorted(ops, key=lambda pair: pair[0])),
        kernels=tuple(sorted(kernels, key=lambda pair: pair[0])),
        order=order,
        edges=_parse_edges(data["edges"], order),
    )


def _parse_kernel(name: str, data: Any) -> KernelPlan:
    where = f"kernels.{name}"
    fields.record(where, data, _KERNEL_FIELDS)
    return KernelPlan(
        stream=fields.whole(f"{where}.stream", data["stream"], low=0),
        priority=fields.whole(f"{where}.priority", data["priority"], low=LOWEST_PRIORITY),
        gdc=fields.choice(f"{where}.gdc", data["gdc"], GDC),
        trigger=fields.choice(f"{where}.trigger", data["trigger"], TRIGGERS),
        l2_prefetch_bytes=fields.whole(f"{where}.l2_prefetch_bytes", data["l2_prefetch_bytes"], low=0),
        chain=fields.choice(f"{where}.chain", data["chain"], CHAINS),
    )


def _parse_edges(data: Any, kernels: tuple[str, ...]) -> tuple[tuple[EdgeName, str], ...]:
    edges = []
    for text, kind in fields.mapping("edges", data).items():
        source, arrow, target = text.partition("->")
        known = bool(arrow) and source in kernels and target in kernels
        fields.expect(known, f"edges: {text!r} is not kernel->kernel")
        edges.append(((source, target), fields.choice(f"edges.{text}", kind, EDGE_KINDS)))
    return tuple(sorted(edges))


def _range(where: str, value: Any) -> tuple[int, int]:
    values = fields.items(where, value)
    fields.expect(len(values) == 2, f"{where} must be [low, high]")
    low, high = (fields.whole(where, item, low=1) for item in values)
    fields.expect(low <= high, f"{where} must be [low, high]")
    return low, high
