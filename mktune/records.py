"""Trials and winners as plain JSON data and back. Reading is strict: a wrong, missing or unknown field is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from mktune.errors import InputError
from mktune.plan import Plan
from mktune.trial import Fingerprint, Measurement, Policy, Winner

Pairs = tuple[tuple[str, Any], ...]
Reader = Callable[[str, Any], Any]


def winner_to_dict(winner: Winner) -> dict[str, Any]:
    """Plain data in the form that `winner_from_dict` reads; `plan_id` stands beside the plan for people and checks."""
    return {
        "plan_id": winner.plan.plan_id,
        "plan": winner.plan.to_dict(),
        "measurement": winner.measurement.to_dict(),
        "fingerprint": asdict(winner.fingerprint),
        "baseline": winner.baseline,
        "ratio": winner.ratio,
        "ratio_low": winner.ratio_low,
        "ratio_high": winner.ratio_high,
        "noise_floor": winner.noise_floor,
        "kept_baseline": winner.kept_baseline,
        "builtins": dict(winner.builtins),
        "validated": winner.validated,
        "extra": dict(winner.extra),
    }


def winner_from_dict(data: Any, where: str = "winner") -> Winner:
    """The winner in `data`. Raises InputError with the field that is wrong; a plan that differs from its id is."""
    fields = _record(where, data, _WINNER)
    plan_id = fields.pop("plan_id")
    plan: Plan = fields["plan"]
    if plan.plan_id != plan_id:
        raise InputError(f"{where}.plan_id: the plan was changed after it was stored ({plan.plan_id[:12]} is its id)")
    if not plan.m_range[0] <= plan.shape.m <= plan.m_range[1]:
        raise InputError(f"{where}.plan: m_range {list(plan.m_range)} leaves out its own M = {plan.shape.m}")
    return Winner(**fields)


def measurement_from_dict(data: Any, where: str = "measurement") -> Measurement:
    """The measurement in `data`. Raises InputError with the field that is wrong."""
    return Measurement(**_record(where, data, _MEASUREMENT))


def policy_from_dict(data: Any, where: str = "policy") -> Policy:
    """The policy in `data`. Raises InputError with the field that is wrong."""
    return Policy(**_record(where, data, _POLICY))


def _record(where: str, data: Any, fields: Mapping[str, Reader]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{where} must be an object")
    missing = [name for name in fields if name not in data]
    unknown = [name for name in data if name not in fields]
    if missing or unknown:
        what = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(map(repr, unknown))}"
        raise InputError(f"{where}: {what}")
    return {name: read(f"{where}.{name}", data[name]) for name, read in fields.items()}


def _typed(kind: type, name: str) -> Reader:
    def read(where: str, value: Any) -> Any:
        if type(value) is not kind:
            raise InputError(f"{where} must be {name}")
        return value

    return read


def _number(where: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise InputError(f"{where} must be a number")
    return float(value)


def _positive(where: str, value: Any) -> float:
    number = _number(where, value)
    if number <= 0:
        raise InputError(f"{where} must be above 0")
    return number


def _numbers(where: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise InputError(f"{where} must be a list of numbers")
    return tuple(_number(f"{where}[{i}]", item) for i, item in enumerate(value))


def _pairs(read: Reader) -> Reader:
    def read_all(where: str, value: Any) -> Pairs:
        if not isinstance(value, dict):
            raise InputError(f"{where} must be an object")
        return tuple(sorted((name, read(f"{where}.{name}", item)) for name, item in value.items()))

    return read_all


def _plan(where: str, value: Any) -> Plan:
    try:
        return Plan.from_dict(value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


_text, _flag, _whole = _typed(str, "text"), _typed(bool, "true or false"), _typed(int, "a whole number")

_POLICY: dict[str, Reader] = {
    "backend": _text,
    "cold": _flag,
    "layers": _whole,
    "shared_kv": _flag,
    "inputs": _text,
}
_MEASUREMENT: dict[str, Reader] = {
    "span_us": _positive,
    "low_us": _positive,
    "high_us": _positive,
    "samples_us": _numbers,
    "policy": lambda where, value: policy_from_dict(value, where),
    "device_state": _pairs(_number),
}
_FINGERPRINT: dict[str, Reader] = {
    "gpu": _text,
    "sms": _whole,
    "compute_capability": _text,
    "driver": _text,
    "cuda": _text,
    "compiler": _text,
    "kernels": _text,
    "mktune": _text,
}
_WINNER: dict[str, Reader] = {
    "plan_id": _text,
    "plan": _plan,
    "measurement": lambda where, value: measurement_from_dict(value, where),
    "fingerprint": lambda where, value: Fingerprint(**_record(where, value, _FINGERPRINT)),
    "baseline": _text,
    "ratio": _positive,
    "ratio_low": _positive,
    "ratio_high": _positive,
    "noise_floor": _number,
    "kept_baseline": _flag,
    "builtins": _pairs(_positive),
    "validated": _text,
    "extra": _pairs(_text),
}
