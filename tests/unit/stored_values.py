"""Plans, trials and winners for tests of the store and the look-up."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from mktune import packed
from mktune.device import Device
from mktune.plan import KernelPlan, OpPlan, Plan
from mktune.shape import Shape
from mktune.store import Store, Study
from mktune.trial import Fingerprint, Loss, Measurement, Outcome, Policy, Status, Trial, Winner

WORKLOAD = "glm52_attention_prefix"
H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12, "GPU-1", "580.95", "13.0")
B300 = Device("NVIDIA B300", "sm_103a", 148, 232448, 126 << 20, 8e12)
SHAPE = Shape.from_m(16, 8192)


def make_plan(
    m: int = 16,
    kv: int = 8192,
    *,
    stages: int = 4,
    m_range: tuple[int, int] | None = None,
    kv_range: tuple[int, int] | None = None,
    ops: tuple[str, ...] = ("A0", "B0"),
) -> Plan:
    """A plan of A0 → B0; another `stages` is another plan for the same problem."""
    config = {"block_m": 16, "block_n": 64, "split_k": 4, "stages": stages, "warps": 4, "finalizer": "kernel"}
    known = {"A0": OpPlan.of("mktune", {"threads": 192}), "B0": OpPlan.of("wgmma", config)}
    kernels = ("A0", "B0p", "B0f") if "B0" in ops else ("A0",)
    edges = ((("A0", "B0p"), "programmatic"), (("B0p", "B0f"), "full")) if "B0" in ops else ()
    return Plan(
        workload=WORKLOAD,
        contract=1,
        scale_format="fp32",
        shape=Shape.from_m(m, kv),
        m_range=m_range or (m, m),
        kv_range=kv_range or (1, kv),
        ops=tuple((name, known[name]) for name in ops),
        kernels=tuple((name, KernelPlan()) for name in kernels),
        order=kernels,
        edges=edges,
    ).canonical()


def make_measurement(span_us: float = 10.0, backend: str = "cuda", samples: int = 5) -> Measurement:
    values = tuple(span_us + 0.01 * i for i in range(samples))
    policy = Policy(backend, cold=True, layers=8)
    return Measurement(span_us, span_us - 0.1, span_us + 0.1, values, policy, (("sm_mhz_before", 1980.0),))


def make_trial(
    number: int, plan: Plan | None = None, span_us: float = 10.0, source: str = "tpe", backend: str = "cuda"
) -> Trial:
    outcome = Outcome(Status.OK, "", make_measurement(span_us, backend), (("measure", 0.5),))
    plan = plan or make_plan(stages=number)
    return Trial(number, plan, outcome, source, "2025-01-01T00:00:00+00:00", (("ask", 0.01),))


def make_fingerprint(kernels: str, device: Device = H200) -> Fingerprint:
    return Fingerprint(
        gpu=device.name,
        sms=device.sms,
        compute_capability=device.compute_capability,
        driver=device.driver,
        cuda=device.cuda,
        compiler="nvrtc 13.0.88",
        kernels=kernels,
        mktune="0.1.0",
    )


def make_winner(
    plan: Plan | None = None,
    span_us: float = 10.0,
    *,
    backend: str = "cuda",
    device: Device = H200,
    kernels: str = "0" * 64,
    **changes: object,
) -> Winner:
    winner = Winner(
        plan=plan or make_plan(),
        measurement=make_measurement(span_us, backend),
        fingerprint=make_fingerprint(kernels, device),
        baseline="branches+pdl",
        ratio=0.8,
        ratio_low=0.79,
        ratio_high=0.81,
        noise_floor=0.004,
        kept_baseline=False,
        builtins=(("branches+pdl", 11.0), ("serial", 12.5)),
        validated="" if backend == "sim" else "300 replays, 3 delays",
        attribution=(("pdl", Loss(11.5, 1.5, 1.4, 1.6)), ("tiles", Loss(10.2, 0.2, -0.1, 0.3, "with waits of B0"))),
    )
    return replace(winner, **changes)


def make_study(store: Store, name: str = "s", **changes: object) -> Study:
    values: dict[str, object] = {
        "workload": WORKLOAD,
        "ops": ("A0", "B0"),
        "shape": SHAPE,
        "device": H200,
        "backend": "cuda",
        "sampler": "tpe",
        "seed": 7,
        "contract": 1,
    }
    return store.study(name, **(values | changes))


def needing(winner: Winner, version: str = "1") -> Winner:
    """The same of a plan that runs kernels of a package."""
    kernels = f"{winner.fingerprint.kernels}+{'1' * 64}"
    return replace(winner, fingerprint=replace(winner.fingerprint, kernels=kernels, packages=(("p", version),)))


def with_packing(connection: sqlite3.Connection) -> sqlite3.Connection:
    """`connection` with the SQL functions `pack` and `unpack`, to damage the document of a winner in place."""
    connection.create_function("pack", 1, packed.pack)
    connection.create_function("unpack", 1, lambda stored: packed.unpack(stored, "a test").decode())
    return connection
