"""What a book holds: plans by workload and GPU, and what decides whether one of them is this package's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from mktune.errors import MktuneError
from mktune.gpu_name import normalise_gpu
from mktune.plan import Plan
from mktune.trial import Winner


@dataclass(frozen=True)
class Entry:
    """One stored plan and where it came from."""

    winner: Winner
    source: Literal["store", "bundle"]

    @property
    def plan(self) -> Plan:
        return self.winner.plan

    @cached_property
    def gpu(self) -> str:
        return normalise_gpu(self.winner.fingerprint.gpu)

    @property
    def simulated(self) -> bool:
        return self.winner.measurement.policy.simulated

    @property
    def kind(self) -> str:
        """What tells GPUs of one name apart, in words."""
        fingerprint = self.winner.fingerprint
        return f"{fingerprint.sms} SMs of compute capability {fingerprint.compute_capability}"

    @cached_property
    def ranges(self) -> tuple[int, int, int, int]:
        """Least and greatest M, least and greatest KV."""
        return (*self.plan.m_range, *self.plan.kv_range)

    def holds(self, m: int, kv: int) -> bool:
        """Whether the plan's own ranges hold M and KV."""
        low, high, kv_low, kv_high = self.ranges
        return low <= m <= high and kv_low <= kv <= kv_high


class Rules:
    """What a book knows besides a request: its plans by workload and GPU, aliases, and which build is its own.

    notes  why a place gave no plans, for messages
    """

    def __init__(self, notes: str, aliases: Mapping[str, str], any_build: bool, entries: Sequence[Entry]) -> None:
        self.notes = notes
        self.aliases = dict(aliases)
        self.any_build = any_build
        self.by_workload: dict[str, list[Entry]] = {}
        self.by_gpu: dict[tuple[str, str], list[Entry]] = {}
        self.by_tokens: dict[tuple[str, str, int], list[Entry]] = {}
        for entry in entries:
            self.by_workload.setdefault(entry.plan.workload, []).append(entry)
            self.by_gpu.setdefault((entry.plan.workload, entry.gpu), []).append(entry)
            tokens = entry.plan.shape.tokens_per_request
            self.by_tokens.setdefault((entry.plan.workload, entry.gpu, tokens), []).append(entry)
        self._builds: dict[tuple[str, tuple[str, ...]], str] = {}

    def build_of(self, plan: Plan) -> str:
        """What this package compiles the plan's kernels from, as in `Fingerprint.kernels`; "none" without kernels."""
        from mktune.jit.fingerprint import kernels_fingerprint

        key = (plan.workload, plan.op_names)
        if key not in self._builds:
            try:
                self._builds[key] = kernels_fingerprint(*key)
            except MktuneError:  # a workload, an op or a kernel that this mktune does not have
                self._builds[key] = "none"
        return self._builds[key]

    def same_build(self, entry: Entry) -> bool:
        """True where the plan's span is that of this package's kernels (a model's span never depends on them)."""
        return entry.simulated or entry.winner.fingerprint.kernels == self.build_of(entry.plan)
