"""Trials and winners as plain JSON data and back. Reading is strict: a wrong, missing or unknown field is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from mktune import fields
from mktune.errors import InputError
from mktune.plan import Plan
from mktune.trial import Fingerprint, Loss, Measurement, Policy, Winner

Pairs = tuple[tuple[str, Any], ...]
Reader = Callable[[str, Any], Any]


def winner_to_dict(winner: Winner) -> dict[str, Any]:
    """Plain data in the form that `winner_from_dict` reads; `plan_id` stands beside the plan for people and checks."""
    return {
        "plan_id": winner.plan.plan_id,
        "plan": winner.plan.to_dict(),
        "measurement": winner.measurement.to_dict(),
        "fingerprint": fingerprint_to_dict(winner.fingerprint),
        "baseline": winner.baseline,
        "ratio": winner.ratio,
        "ratio_low": winner.ratio_low,
        "ratio_high": winner.ratio_high,
        "noise_floor": winner.noise_floor,
        "kept_baseline": winner.kept_baseline,
        "builtins": dict(winner.builtins),
        "validated": winner.validated,
        "extra": dict(winner.extra),
        "attribution": {name: asdict(loss) for name, loss in winner.attribution},
    }


def winner_key(winner: Winner) -> dict[str, Any]:
    """What a winner is stored and looked up by, in the order of the columns of `mktune_plans`."""
    plan, gpu = winner.plan, winner.fingerprint
    return {
        "workload": plan.workload,
        "contract": plan.contract,
        "scale_format": plan.scale_format,
        "ops": ",".join(sorted(plan.op_names)),
        "requests": plan.shape.requests,
        "tokens_per_request": plan.shape.tokens_per_request,
        "kv": plan.shape.kv,
        "gpu": gpu.gpu,
        "sms": gpu.sms,
        "compute_capability": gpu.compute_capability,
        "simulated": winner.measurement.policy.simulated,
    }


def winner_ranges(winner: Winner) -> dict[str, int]:
    """The shapes that a winner states to serve, as the columns of `mktune_plans` have them."""
    (m_low, m_high), (kv_low, kv_high) = winner.plan.m_range, winner.plan.kv_range
    return {"m_low": m_low, "m_high": m_high, "kv_low": kv_low, "kv_high": kv_high}


def fingerprint_to_dict(found: Fingerprint) -> dict[str, Any]:
    """Plain data in the form that `fingerprint_from_dict` reads.

    Without packages where there are none, as documents were before plans could have any.
    """
    data = asdict(found) | {"packages": dict(found.packages)}
    return data if found.packages else {name: value for name, value in data.items() if name != "packages"}


def winner_from_dict(data: Any, where: str = "winner") -> Winner:
    """The winner in `data`, as any version wrote it. Raises InputError with the field that is wrong; a plan that
    differs from its id is."""
    found = _record(where, {**_ADDED, **data} if isinstance(data, dict) else data, _WINNER)
    plan_id = found.pop("plan_id")
    plan: Plan = found["plan"]
    if plan.plan_id != plan_id:
        raise InputError(f"{where}.plan_id: the plan was changed after it was stored ({plan.short_id} is its id)")
    if not plan.m_range[0] <= plan.shape.m <= plan.m_range[1]:
        raise InputError(f"{where}.plan: m_range {list(plan.m_range)} leaves out its own M = {plan.shape.m}")
    return Winner(**found)


def measurement_from_dict(data: Any, where: str = "measurement") -> Measurement:
    """The measurement in `data`. Raises InputError with the field that is wrong."""
    return Measurement(**_record(where, data, _MEASUREMENT))


def policy_from_dict(data: Any, where: str = "policy") -> Policy:
    """The policy in `data`. Raises InputError with the field that is wrong."""
    return Policy(**_record(where, data, _POLICY))


def _record(where: str, data: Any, readers: Mapping[str, Reader]) -> dict[str, Any]:
    found = fields.record(where, data, readers)
    return {name: read(f"{where}.{name}", found[name]) for name, read in readers.items()}


def _numbers(where: str, value: Any) -> tuple[float, ...]:
    return tuple(fields.number(f"{where}[{i}]", item) for i, item in enumerate(fields.items(where, value)))


def _pairs(read: Reader) -> Reader:
    def read_all(where: str, value: Any) -> Pairs:
        found = fields.mapping(where, value)
        return tuple(sorted((name, read(f"{where}.{name}", item)) for name, item in found.items()))

    return read_all


def _plan(where: str, value: Any) -> Plan:
    try:
        return Plan.from_dict(value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def fingerprint_from_dict(data: Any, where: str = "fingerprint") -> Fingerprint:
    """The fingerprint in `data`. Raises InputError with the field that is wrong."""
    return _read_fingerprint(where, data)


def _read_fingerprint(where: str, value: Any) -> Fingerprint:
    known = {"packages": {}, **value} if isinstance(value, dict) else value
    return Fingerprint(**_record(where, known, _FINGERPRINT))


_POLICY: dict[str, Reader] = {
    "backend": fields.text,
    "cold": fields.flag,
    "layers": fields.whole,
    "shared_kv": fields.flag,
    "inputs": fields.text,
}
_MEASUREMENT: dict[str, Reader] = {
    "span_us": fields.positive,
    "low_us": fields.positive,
    "high_us": fields.positive,
    "samples_us": _numbers,
    "policy": lambda where, value: policy_from_dict(value, where),
    "device_state": _pairs(fields.number),
}
_FINGERPRINT: dict[str, Reader] = {
    "gpu": fields.text,
    "sms": fields.whole,
    "compute_capability": fields.text,
    "driver": fields.text,
    "cuda": fields.text,
    "compiler": fields.text,
    "kernels": fields.text,
    "mktune": fields.text,
    "packages": _pairs(fields.text),
}
_LOSS: dict[str, Reader] = {
    "span_us": fields.positive,
    "loss_us": fields.number,
    "low_us": fields.number,
    "high_us": fields.number,
    "note": fields.text,
}
_WINNER: dict[str, Reader] = {
    "plan_id": fields.text,
    "plan": _plan,
    "measurement": lambda where, value: measurement_from_dict(value, where),
    "fingerprint": _read_fingerprint,
    "baseline": fields.text,
    "ratio": fields.positive,
    "ratio_low": fields.positive,
    "ratio_high": fields.positive,
    "noise_floor": fields.number,
    "kept_baseline": fields.flag,
    "builtins": _pairs(fields.positive),
    "validated": fields.text,
    "extra": _pairs(fields.text),
    "attribution": _pairs(lambda where, value: Loss(**_record(where, value, _LOSS))),
}
_ADDED: dict[str, Any] = {"attribution": {}}
"""What documents of earlier versions lack."""
