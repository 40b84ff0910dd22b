"""A worker's host that answers as `CudaHost` does, without a GPU: candidates measure, hang, fault, die or are wrong.

What becomes of a plan depends on its text and on a salt alone (`fate`), so that a test knows it beforehand. The host's
"context" is poisoned as a real one is: a fault shows when the device is waited for, and every later request meets it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from typing import Any

from mktune.errors import CandidateError
from mktune.trial import Status

SETTINGS = "MKTUNE_TEST_FAKE_HOST"
"""The environment variable that holds the settings, as JSON: salt, log (a file), noise, fates, spans, other."""

FATES = {
    "hang": (Status.HANG, 10),
    "stray": (Status.ILLEGAL_ACCESS, 4),  # an asynchronous fault
    "refused": (Status.LAUNCH_ERROR, 2),
    "segfault": (Status.CRASH, 2),
    "memory": (Status.OUT_OF_MEMORY, 2),
    "wrong": (Status.WRONG_RESULT, 10),
    "linger": (Status.OK, 2),  # measures well, and its process dies of it later: when it is asked next, or after that
}
"""Name → how its trial must end, and how many plans of a hundred meet it."""


def number_of(text: str, salt: str) -> int:
    return int(hashlib.sha256(f"{salt} {text}".encode()).hexdigest()[:8], 16)


def fate(plan: str, salt: str) -> str:
    """What becomes of the plan with this JSON text; "good" for most."""
    drawn = number_of(plan, salt) % 100
    for name, (_, share) in FATES.items():
        if drawn < share:
            return name
        drawn -= share
    return "good"


def status_of_fate(name: str) -> Status:
    return FATES[name][0] if name in FATES else Status.OK


class FakeHost:
    """Made in the worker process. Each candidate that is begun is a line of the log: process, poisoned, fate, plan."""

    def __init__(self, **options: Any) -> None:
        settings = json.loads(os.environ[SETTINGS])
        self._salt, self._log = settings["salt"], settings.get("log")
        self._noise, self._spans = settings.get("noise", 0.0), settings.get("spans", {})
        self._other = settings.get("other")
        self._draw = random.Random(settings.get("seed", 0))
        self._are_fated = settings.get("fates", True)
        self._poisoned = False
        self._dies_at = ""

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        arguments = {name: value for name, value in request.items() if name != "do"}
        if request["do"] == self._dies_at:
            os._exit(1)
        try:
            reply: dict[str, Any] = getattr(self, f"_do_{request['do']}")(**arguments)
            return reply
        finally:
            if self._poisoned:
                raise CandidateError(Status.ILLEGAL_ACCESS, "cuCtxSynchronize: illegal address")

    def _do_open(self, ops: list[str], shape: list[int]) -> dict[str, Any]:
        return {"made": False}

    def _do_calibrate(self) -> dict[str, Any]:
        return {"timer_tick_ns": 32.0, "event_quantum_us": 0.032, "empty_graph_us": 1.25}

    def _do_verify(self, plan: str) -> dict[str, Any]:
        self._meet(plan)
        return {}

    def _do_validate(self, plan: str, effort: dict[str, int]) -> dict[str, Any]:
        self._meet(plan)
        return {"validated": "540 replays of a fake", "repeats": {"deterministic": "yes"}, "probe": "3 kernels held"}

    def _do_rounds(self, plans: dict[str, str], rounds: int) -> dict[str, Any]:
        for plan in plans.values():
            self._meet(plan)
        return {"samples": {n: self._samples(p, 2 * rounds) for n, p in plans.items()}, "device_state": {}}

    def _do_trial(self, plan: str, incumbent_us: float | None, budget: dict[str, Any]) -> dict[str, Any]:
        if self._log:
            with open(self._log, "a") as log:
                log.write(json.dumps([os.getpid(), self._poisoned, self._fate(plan), plan]) + "\n")
        self._meet(plan)
        samples = sorted(self._samples(plan, 97))
        return {
            "status": "ok",
            "reason": "",
            "samples": samples,
            "span": [samples[48], samples[38], samples[58]],  # the median and its interval of 95 %
            "device_state": {"sm_mhz_before": 1980.0},
            "seconds": {"measure": 0.0},
        }

    def _fate(self, plan: str) -> str:
        return fate(plan, self._salt) if self._are_fated else "good"

    def _meet(self, plan: str) -> None:
        met = self._fate(plan)
        if met == "hang":
            time.sleep(600)
        elif met == "stray":
            self._poisoned = True
        elif met == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif met == "linger":
            self._dies_at = ("open", "trial")[number_of(plan, "when") % 2]
        elif met != "good":
            raise CandidateError(status_of_fate(met), f"as fated: {met}")

    def _samples(self, plan: str, count: int) -> list[float]:
        span = self._spans.get(plan) or self._other or 10.0 + number_of(plan, "span") % 1000 / 100
        return [span * self._draw.gauss(1.0, self._noise) for _ in range(count)]
