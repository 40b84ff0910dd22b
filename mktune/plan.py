"""A plan: everything that decides how a graph of ops runs at a shape. A frozen value with one canonical JSON form.

Mappings are kept as tuples of pairs, sorted by name, so that a plan can be hashed. Equal plans have equal JSON and so
an equal `plan_id`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mktune.errors import InputError, PlanError
from mktune.shape import Shape

SCHEMA_VERSION = 1
EXECUTORS = ("cuda_graph",)
GDC = ("entry", "prologue", "prefetch")
TRIGGERS = ("exit", "start", "after_wait", "before_epilogue")
CHAINS = ("full", "programmatic")
EDGE_KINDS = ("full", "programmatic", "launch_order")

ConfigValue = int | str
Config = tuple[tuple[str, ConfigValue], ...]
EdgeName = tuple[str, str]


@dataclass(frozen=True)
class OpPlan:
    """How one op is computed: an implementation and its config (sorted pairs; `finalizer` is one of them)."""

    impl: str
    config: Config

    @classmethod
    def of(cls, impl: str, config: Mapping[str, ConfigValue]) -> OpPlan:
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
    schema: int = field(default=SCHEMA_VERSION)

    @cached_property
    def op(self) -> dict[str, OpPlan]:
        """Op name → its plan."""
        return dict(self.ops)

    @cached_property
    def kernel(self) -> dict[str, KernelPlan]:
        """Kernel name → its plan."""
        return dict(self.kernels)

    @cached_property
    def edge(self) -> dict[EdgeName, str]:
        """(producer, consumer) → kind."""
        return dict(self.edges)

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
        """sha256 of the canonical JSON, 64 hex digits. Tables show the first 12."""
        return hashlib.sha256(self.json.encode()).hexdigest()

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
        _expect(isinstance(data, dict), "a plan must be an object")
        schema = data.get("schema")
        if type(schema) is not int or schema != SCHEMA_VERSION:
            newer = isinstance(schema, int) and schema > SCHEMA_VERSION
            hint = "made by a newer mktune; upgrade to read it" if newer else "not a plan that this mktune reads"
            raise PlanError(f"plan schema {schema!r} (this mktune reads {SCHEMA_VERSION}): {hint}")
        _expect_keys("plan", data, _PLAN_FIELDS)
        try:
            return _parse(cls, data)
        except InputError as error:
            raise PlanError(str(error)) from None


_PLAN_FIELDS = [
    "schema",
    "workload",
    "contract",
    "scale_format",
    "shape",
    "m_range",
    "kv_range",
    "executor",
    "ops",
    "kernels",
    "order",
    "edges",
]
_KERNEL_FIELDS = ["stream", "priority", "gdc", "trigger", "l2_prefetch_bytes", "chain"]


def _parse(cls: type[Plan], data: dict[str, Any]) -> Plan:
    _expect_keys("shape", data["shape"], ["requests", "tokens_per_request", "kv"])
    ops = []
    for name, op in _mapping("ops", data["ops"]).items():
        _expect_keys(f"ops.{name}", op, ["impl", "config"])
        config = _mapping(f"ops.{name}.config", op["config"])
        for key, value in config.items():
            _expect(type(value) in (int, str), f"ops.{name}.config.{key} must be a whole number or text")
        ops.append((name, OpPlan.of(_text(f"ops.{name}.impl", op["impl"]), config)))
    kernels = [(name, _parse_kernel(name, value)) for name, value in _mapping("kernels", data["kernels"]).items()]
    order = tuple(_text("order", name) for name in _list("order", data["order"]))
    place = set(order)
    _expect(sorted(order) == sorted(name for name, _ in kernels), "order must name every kernel exactly once")
    edges = []
    for text, kind in _mapping("edges", data["edges"]).items():
        source, arrow, target = text.partition("->")
        _expect(bool(arrow) and source in place and target in place, f"edges: {text!r} is not kernel->kernel")
        edges.append(((source, target), _choice(f"edges.{text}", kind, EDGE_KINDS)))
    return cls(
        workload=_text("workload", data["workload"]),
        contract=_whole("contract", data["contract"]),
        scale_format=_text("scale_format", data["scale_format"]),
        shape=Shape(**data["shape"]),
        m_range=_range("m_range", data["m_range"]),
        kv_range=_range("kv_range", data["kv_range"]),
        executor=_choice("executor", data["executor"], EXECUTORS),
        ops=tuple(sorted(ops, key=lambda pair: pair[0])),
        kernels=tuple(sorted(kernels, key=lambda pair: pair[0])),
        order=order,
        edges=tuple(sorted(edges)),
    )


def _parse_kernel(name: str, data: Any) -> KernelPlan:
    where = f"kernels.{name}"
    _expect_keys(where, data, _KERNEL_FIELDS)
    return KernelPlan(
        stream=_whole(f"{where}.stream", data["stream"]),
        priority=_whole(f"{where}.priority", data["priority"], low=-16),
        gdc=_choice(f"{where}.gdc", data["gdc"], GDC),
        trigger=_choice(f"{where}.trigger", data["trigger"], TRIGGERS),
        l2_prefetch_bytes=_whole(f"{where}.l2_prefetch_bytes", data["l2_prefetch_bytes"]),
        chain=_choice(f"{where}.chain", data["chain"], CHAINS),
    )


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise PlanError(message)


def _expect_keys(where: str, data: Any, keys: list[str]) -> None:
    _mapping(where, data)
    missing = [key for key in keys if key not in data]
    unknown = [key for key in data if key not in keys]
    _expect(not missing, f"{where}: missing {', '.join(missing)}")
    _expect(not unknown, f"{where}: unknown {', '.join(map(repr, unknown))}")


def _mapping(where: str, value: Any) -> dict[str, Any]:
    _expect(isinstance(value, dict), f"{where} must be an object")
    return dict(value)


def _list(where: str, value: Any) -> list[Any]:
    _expect(isinstance(value, list), f"{where} must be a list")
    return list(value)


def _text(where: str, value: Any) -> str:
    _expect(isinstance(value, str) and bool(value), f"{where} must be text")
    return str(value)


def _whole(where: str, value: Any, low: int = 0) -> int:
    _expect(type(value) is int and value >= low, f"{where} must be a whole number from {low}")
    return int(value)


def _range(where: str, value: Any) -> tuple[int, int]:
    values = _list(where, value)
    _expect(len(values) == 2, f"{where} must be [low, high]")
    low, high = (_whole(where, item, low=1) for item in values)
    _expect(low <= high, f"{where} must be [low, high]")
    return low, high


def _choice(where: str, value: Any, allowed: tuple[str, ...]) -> str:
    _expect(value in allowed, f"{where} is {value!r}; allowed: {', '.join(allowed)}")
    return str(value)
