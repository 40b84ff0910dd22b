"""A recording: what a bench said of every valid plan of a part of a search space, in one small file.

JSON lines, compressed with gzip. The first line says what was measured and with what; then one line a plan:

    ["", "8c1f09a2b3d4", "0120", "ok", 3512, 4, 6, [0, -3, 5, …], []]

part ("" or the op that ran alone), key of the plan (the beginning of its lowered id), options taken (one base-36 digit
for each question asked), status, span, how far its interval reaches below and above, samples as differences from the
span, and the critical path where it was traced: each kernel's place among the plan's, and how long it held the path.
Times are whole numbers of 10 ns. Of many samples, blocks in the order taken are kept, each as its median. A plan that
failed has zeros.
"""

from __future__ import annotations

import gzip
import io
import json
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mktune import fields, strict_json
from mktune.backends.base import Problem
from mktune.device import Device
from mktune.errors import InputError
from mktune.graph.workload import workload
from mktune.plan import Plan
from mktune.records import fingerprint_from_dict, fingerprint_to_dict, policy_from_dict
from mktune.shape import Shape
from mktune.trial import Fingerprint, Outcome, Policy, Status

KIND, VERSION = "mktune recording", 1
UNIT_US = 0.01
BLOCKS = 8
"""Samples kept of a plan, at most."""
KEY_DIGITS = 12
"""Of a lowered id: two of 10,000 plans share their first 48 bits once in 5 million recordings."""


@dataclass(frozen=True)
class Header:
    """What a recording is of.

    base   the plan that fixed choices are taken from
    free   question → labels of its options
    parts  op → policy of the bench that measured it alone
    """

    problem: Problem
    device: Device
    policy: Policy
    fingerprint: Fingerprint
    base: Plan
    free: Mapping[str, tuple[str, ...]]
    parts: Mapping[str, Policy]

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the form that `header_from_dict` reads."""
        return {
            "kind": KIND,
            "version": VERSION,
            "workload": self.problem.workload,
            "ops": list(self.problem.ops),
            "shape": asdict(self.problem.shape),
            "seed": self.problem.seed,
            "device": asdict(self.device),
            "policy": asdict(self.policy),
            "fingerprint": fingerprint_to_dict(self.fingerprint),
            "base": self.base.to_dict(),
            "free": {name: list(labels) for name, labels in self.free.items()},
            "parts": {op: asdict(policy) for op, policy in self.parts.items()},
        }


@dataclass(frozen=True)
class Row:
    """One plan: see the module. Times in µs; `path` is empty where nothing was traced."""

    part: str
    key: str
    options: str
    status: Status
    span_us: float = 0.0
    low_us: float = 0.0
    high_us: float = 0.0
    samples_us: tuple[float, ...] = ()
    path: tuple[tuple[int, float], ...] = ()

    @property
    def ok(self) -> bool:
        return self.status is Status.OK


def row_of(part: str, key: str, options: str, outcome: Outcome, path: Sequence[tuple[int, float]] = ()) -> Row:
    """The row of a plan that ended as `outcome`."""
    found = outcome.measurement
    if outcome.status is not Status.OK or found is None:
        return Row(part, key[:KEY_DIGITS], options, outcome.status)
    samples = tuple(block_medians(found.samples_us))
    spans = (found.span_us, found.low_us, found.high_us)
    return Row(part, key[:KEY_DIGITS], options, outcome.status, *spans, samples, tuple(path))


def block_medians(samples: Sequence[float]) -> list[float]:
    """At most `BLOCKS` medians of samples that followed each other."""
    size = max(1, -(-len(samples) // BLOCKS))
    return [statistics.median(samples[start : start + size]) for start in range(0, len(samples), size)]


def encode_row(row: Row) -> str:
    """One line of the file."""
    span = _units(row.span_us)
    reach = (span - _units(row.low_us), _units(row.high_us) - span)
    samples = [_units(sample) - span for sample in row.samples_us]
    path = [(place, _units(held)) for place, held in row.path]
    return _line([row.part, row.key, row.options, row.status.value, span, *reach, samples, path])


def encode_header(header: Header) -> str:
    """The first line of the file."""
    return _line(header.to_dict())


def pack(header: Header, rows: Iterable[Row]) -> bytes:
    """The content of a recording; equal for equal recordings."""
    lines = [encode_header(header), *sorted({encode_row(row) for row in rows})]
    held = io.BytesIO()
    with gzip.GzipFile(fileobj=held, mode="wb", mtime=0, filename="") as file:
        file.write("".join(lines).encode())
    return held.getvalue()


def unpack(content: bytes, where: str) -> tuple[Header, list[Row]]:
    """What `pack` wrote. Raises InputError with the line that is wrong."""
    lines = _text(content, where).splitlines()
    if not lines:
        raise InputError(f"{where} is empty")
    header = header_from_dict(strict_json.loads(lines[0], where), where)
    rows = [
        row_from_list(strict_json.loads(line, f"{where}:{n}"), f"{where}:{n}") for n, line in enumerate(lines[1:], 2)
    ]
    return header, rows


def read(path: Path) -> tuple[Header, list[Row]]:
    """The recording in a file. Raises InputError."""
    return unpack(strict_json.read(path), str(path))


def header_from_dict(data: Any, where: str) -> Header:
    """The header in `data`. Raises InputError with the field that is wrong."""
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise InputError(f"{where} is no recording (`mktune record` writes one)")
    if data.get("version") != VERSION:
        raise InputError(f"{where} is a recording of version {data.get('version')!r}; this mktune reads {VERSION}")
    found = fields.record(where, data, _HEADER)
    shape = Shape(**fields.record("shape", found["shape"], tuple(Shape.__dataclass_fields__)))
    ops = tuple(fields.name("ops", op) for op in fields.items("ops", found["ops"]))
    parts = fields.mapping("parts", found["parts"]).items()
    base = Plan.from_dict(found["base"])
    known = workload(fields.name("workload", found["workload"]), base.scale_format)
    return Header(
        Problem.of(known, ops, shape, fields.whole("seed", found["seed"], low=0)),
        _device(found["device"]),
        policy_from_dict(found["policy"]),
        fingerprint_from_dict(found["fingerprint"]),
        base,
        {name: _labels(name, labels) for name, labels in fields.mapping("free", found["free"]).items()},
        {op: policy_from_dict(policy, f"parts.{op}") for op, policy in parts},
    )


def row_from_list(data: Any, where: str) -> Row:
    """The row in `data`. Raises InputError with what is wrong."""
    values = fields.items(where, data)
    fields.expect(len(values) == 9, f"{where} must have nine entries")
    part, key, options = (fields.text(where, value) for value in values[:3])
    status = Status(fields.choice(where, values[3], [status.value for status in Status]))
    span, below, above = (fields.whole(where, value) for value in values[4:7])
    samples = [fields.whole(where, value) for value in fields.items(where, values[7])]
    path = tuple(_step(where, value) for value in fields.items(where, values[8]))
    if status is not Status.OK:
        return Row(part, key, options, status)
    fields.expect(span > 0 and bool(samples), f"{where}: a plan that ran has a span and samples")
    return Row(
        part, key, options, status, _us(span), _us(span - below), _us(span + above),
        tuple(_us(span + sample) for sample in samples), path,
    )  # fmt: skip


_HEADER = (
    "kind", "version", "workload", "ops", "shape", "seed", "device", "policy", "fingerprint", "base", "free", "parts",
)  # fmt: skip


def _device(data: Any) -> Device:
    found = fields.record("device", data, tuple(Device.__dataclass_fields__))
    for name in ("name", "arch", "uuid", "driver", "cuda"):
        fields.text(f"device.{name}", found[name])
    for name in ("sms", "smem_per_block", "l2_bytes"):
        fields.whole(f"device.{name}", found[name], low=1)
    fields.positive("device.bandwidth", found["bandwidth"])
    return Device(**found)


def _step(where: str, value: Any) -> tuple[int, float]:
    pair = fields.items(where, value)
    fields.expect(len(pair) == 2, f"{where}: a step of a path has a kernel and a time")
    return fields.whole(where, pair[0], low=0), _us(fields.whole(where, pair[1]))


def _labels(name: str, labels: Any) -> tuple[str, ...]:
    return tuple(fields.name(f"free.{name}", label) for label in fields.items(f"free.{name}", labels))


def _text(content: bytes, where: str) -> str:
    if content[:2] != b"\x1f\x8b":
        raise InputError(f"{where} is no recording: it is not compressed with gzip")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return strict_json.check_size(file.read(strict_json.MAX_BYTES + 1), where).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{where} is damaged: {error}") from None


def _line(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n"


def _units(us: float) -> int:
    return round(us / UNIT_US)


def _us(units: int) -> float:
    return round(units * UNIT_US, 2)
