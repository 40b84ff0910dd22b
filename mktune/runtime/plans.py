"""A snapshot: the plans of a book by workload, GPU and tokens per request, and under which terms they are served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from mktune.errors import MktuneError
from mktune.gpu_name import normalise_gpu
from mktune.runtime.entries import Entry, Reading, is_row
from mktune.runtime.log import warn
from mktune.runtime.pins import pinned
from mktune.runtime.versions import is_known

if TYPE_CHECKING:
    from mktune.plan import Plan

_FEW = 4096  # lists of plans by M that are kept

Group: TypeAlias = tuple[str, str, int]
"""Workload, normalised name of the GPU (empty: not known), tokens per request."""


@dataclass(frozen=True)
class Terms:
    """What a book was opened with; see `PlanBook.open`. Names of GPUs are normalised."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    accept: frozenset[str] = frozenset()
    pins: tuple[str, ...] = ()
    assert_hit: bool = False


class Plans:
    """Nothing in it changes once it is made, but for what is kept of answers already worked out."""

    def __init__(self, readings: Sequence[Reading], terms: Terms) -> None:
        self.readings = tuple(readings)
        self.terms = terms
        chosen = pinned(readings, terms.pins) if terms.pins else readings
        self.count = sum(len(reading.rows) for reading in chosen)
        self._chosen = chosen
        self._entries: dict[Group, list[Entry]] = {}
        self._near: dict[tuple[Group, int], list[Entry]] = {}
        self._builds: dict[tuple[object, ...], str] = {}

    @cached_property
    def _rows(self) -> dict[Group, list[tuple[Reading, list[tuple[Any, ...]]]]]:
        """Not made when the book is opened, but by its first look-up."""
        found: dict[Group, list[tuple[Reading, list[tuple[Any, ...]]]]] = {}
        for reading in self._chosen:
            for (workload, gpu, tokens), rows in _grouped(reading.rows).items():
                name = normalise_gpu(gpu) if isinstance(gpu, str) and is_known(gpu) else ""
                found.setdefault((workload, name, tokens), []).append((reading, rows))
        return found

    @property
    def notes(self) -> str:
        """Why places gave no plans."""
        return "; ".join(reading.note for reading in self.readings if reading.note)

    @cached_property
    def workloads(self) -> tuple[str, ...]:
        """Those that some plan is for, sorted."""
        return tuple(sorted({workload for workload, _, _ in self._rows if isinstance(workload, str)}))

    def of(self, group: Group) -> list[Entry]:
        """The plans of a group; made at the first look-up that asks for it."""
        found = self._entries.get(group)
        if found is None:
            found = []
            for reading, rows in self._rows.get(group, ()):
                whole = [raw for raw in rows if is_row(raw)]
                if len(whole) < len(rows):
                    warn(f"{reading.where}: the keys of {len(rows) - len(whole)} plans are damaged; they are not used")
                found += [Entry(raw, reading.source, reading.where) for raw in whole]
            self._entries[group] = found
        return found

    def near(self, group: Group, m: int) -> list[Entry]:
        """The plans of a group whose stated range holds M."""
        found = self._near.get((group, m))
        if found is None:
            found = [entry for entry in self.of(group) if entry.m_low <= m <= entry.m_high]
            if len(self._near) >= _FEW:
                self._near.clear()
            self._near[group, m] = found
        return found

    def has(self, workload: str, gpu: str) -> bool:
        """Whether some plan of a workload is for a GPU."""
        return any(group[:2] == (workload, gpu) for group in self._rows)

    def of_gpu(self, workload: str, gpu: str) -> list[Entry]:
        """The plans of a workload on a GPU, for any tokens per request."""
        groups = [group for group in self._rows if group[:2] == (workload, gpu)]
        return [entry for group in groups for entry in self.of(group)]

    def everything(self) -> Iterator[Entry]:
        """Every plan."""
        return (entry for group in self._rows for entry in self.of(group))

    def gpus(self, workload: str, ops: tuple[str, ...] | None) -> list[str]:
        """The names of the GPUs that some plan for `ops` (None: any) of a workload is stored for."""
        wanted = None if ops is None else ",".join(ops)
        found = {
            entry.gpu
            for group in self._rows
            if group[0] == workload
            for entry in self.of(group)
            if wanted in (None, entry.ops)
        }
        return sorted(found)

    def build_of(self, plan: Plan) -> str:
        """What this package compiles the plan's kernels from, as in `Fingerprint.kernels`; empty without kernels."""
        from mktune.jit.fingerprint import Sources, kernels_fingerprint

        key = Sources.of(plan)
        if key not in self._builds:
            try:
                self._builds[key] = kernels_fingerprint(*key)
            except MktuneError:  # a workload, an op, a kernel or a package that is not here
                self._builds[key] = ""
        return self._builds[key]


def _grouped(rows: Sequence[tuple[Any, ...]]) -> dict[tuple[str, str, int], list[tuple[Any, ...]]]:
    """Rows by their first three columns."""
    found: dict[tuple[str, str, int], list[tuple[Any, ...]]] = {}
    for row in rows:
        found.setdefault(row[:3], []).append(row)
    return found
