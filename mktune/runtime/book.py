"""The book of plans: an unchanging copy of what was stored when it was opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from mktune.device import Device
from mktune.errors import PlanNotFound
from mktune.gpu_name import normalise_gpu
from mktune.location import StoreLocation
from mktune.runtime.entries import Entry, Rules
from mktune.runtime.matching import match
from mktune.runtime.request import make_request
from mktune.runtime.result import Hit, Miss
from mktune.runtime.sources import Reading, read_default, read_store
from mktune.shape import Shape
from mktune.trial import Winner

_NUMBERS = (int, type(None))
_REMEMBERED = 65536  # answers; then they are forgotten and found anew


class PlanBook:
    """See the module. May be shared by threads and used after a fork. Two books of one store may differ in age."""

    def __init__(self, entries: Sequence[Entry], rules: Rules) -> None:
        """Use `open`, or `of` for winners at hand."""
        self._entries = tuple(entries)
        self._rules = rules
        self._answers: dict[object, Hit | Miss] = {}

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str] | None = None,
        *,
        any_build: bool = False,
        aliases: Mapping[str, str] | None = None,
    ) -> PlanBook:
        """The plans of a store (SQLite path or URL, PostgreSQL URL) or of a file that `mktune export` wrote.

        place      None: the default store and the plans that ship with mktune; the store's come first
        any_build  also serve plans measured with other kernel sources than this package's; `Hit.differs` says so
        aliases    name of a GPU → name of the GPU whose plans it may use; `Hit.alias` says so

        A place that is missing, locked, damaged or of a newer mktune is a book without its plans, and one warning in
        the log `mktune.runtime` unless it is just missing. Raises InputError for a URL that names no such place.
        """
        store, bundle = read_default() if place is None else (read_store(StoreLocation.parse(place)), Reading(()))
        return cls._of(store, bundle, any_build, aliases)

    @classmethod
    def of(
        cls, winners: Sequence[Winner], *, any_build: bool = False, aliases: Mapping[str, str] | None = None
    ) -> PlanBook:
        """A book of these winners; the rest as in `open`."""
        return cls._of(Reading(tuple(winners), "no plans were given"), Reading(()), any_build, aliases)

    @classmethod
    def _of(cls, store: Reading, bundle: Reading, any_build: bool, aliases: Mapping[str, str] | None) -> PlanBook:
        sources: tuple[tuple[Literal["store", "bundle"], Reading], ...] = (("store", store), ("bundle", bundle))
        entries = [Entry(winner, source) for source, reading in sources for winner in reading.winners]
        notes = "; ".join(reading.note for _, reading in sources if reading.note)
        names = {normalise_gpu(name): normalise_gpu(gpu) for name, gpu in (aliases or {}).items()}
        return cls(entries, Rules(notes, names, any_build, entries))

    @property
    def winners(self) -> tuple[Winner, ...]:
        """Everything in the book."""
        return tuple(entry.winner for entry in self._entries)

    def lookup(
        self,
        workload: str,
        shape: Shape | None = None,
        *,
        gpu: str | Device,
        m: int | None = None,
        kv: int | None = None,
        tokens_per_request: int | None = None,
        ops: Sequence[str] | None = None,
        allow_simulated: bool = False,
    ) -> Hit | Miss:
        """The plan to run, or why there is none.

        shape            or else `m` and `kv` (with `tokens_per_request`, by default gcd(m, 8))
        gpu              its name; a `Device` also has its SM count and compute capability checked
        ops              names of the ops that the plan must compute; None: the stored plan that covers the most ops
        allow_simulated  also serve plans that only a model has timed

        A plan answers where its own M and KV ranges hold the request and tokens per request are equal. Of several, the
        one with the smallest M that covers the request's, then the nearest KV, then the store's before the bundle's.
        Raises RequestError (an InputError and a ValueError) for what can be no request, such as m=True or m="8".
        """
        if type(m) not in _NUMBERS or type(kv) not in _NUMBERS or type(tokens_per_request) not in _NUMBERS:
            # True and 8.0 equal 1 and 8, so they would find those answers; this raises what they deserve.
            return self._answer(workload, shape, (m, kv, tokens_per_request), gpu, ops, allow_simulated)
        key = (workload, shape, m, kv, tokens_per_request, gpu, ops, allow_simulated)
        try:
            found = self._answers.get(key)
        except TypeError:  # ops as a list
            return self._answer(workload, shape, (m, kv, tokens_per_request), gpu, ops, allow_simulated)
        if found is None:
            found = self._answer(workload, shape, (m, kv, tokens_per_request), gpu, ops, allow_simulated)
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            self._answers[key] = found
        return found

    def get(
        self,
        workload: str,
        shape: Shape | None = None,
        *,
        gpu: str | Device,
        m: int | None = None,
        kv: int | None = None,
        tokens_per_request: int | None = None,
        ops: Sequence[str] | None = None,
        allow_simulated: bool = False,
    ) -> Hit:
        """`lookup`, but a miss is raised as PlanNotFound with its reason."""
        found = self.lookup(
            workload,
            shape,
            gpu=gpu,
            m=m,
            kv=kv,
            tokens_per_request=tokens_per_request,
            ops=ops,
            allow_simulated=allow_simulated,
        )
        if isinstance(found, Miss):
            raise PlanNotFound(found.reason, found.message)
        return found

    def __len__(self) -> int:
        return len(self._entries)

    def _answer(
        self,
        workload: str,
        shape: Shape | None,
        numbers: tuple[int | None, int | None, int | None],
        gpu: str | Device,
        ops: Sequence[str] | None,
        allow_simulated: bool,
    ) -> Hit | Miss:
        return match(make_request(workload, shape, numbers, gpu, ops, allow_simulated), self._rules)
