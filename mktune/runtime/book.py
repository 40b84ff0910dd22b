"""The book of plans: look-ups in an unchanging copy of what was stored when it was opened, or refreshed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mktune import knobs
from mktune.device import Device
from mktune.errors import PlanNotFound
from mktune.gpu_name import normalise_gpu
from mktune.runtime.entries import Reading, row_of
from mktune.runtime.forks import uncut
from mktune.runtime.log import warn
from mktune.runtime.plans import Plans, Terms
from mktune.runtime.request import make_request
from mktune.runtime.result import Hit, Miss
from mktune.runtime.versions import accepted
from mktune.shape import Shape

if TYPE_CHECKING:
    from mktune.trial import Winner

_NUMBERS = (int, type(None))
_REMEMBERED = 8192  # answers; then they are forgotten and found anew

# Two, so that answers need not wait while a place is read.
_READING, _ANSWERING = uncut(), uncut()

Numbers = tuple[int | None, int | None, int | None]


class _Snapshot:
    """Plans, and the answers that were found in them. Swapped as one, so that no answer outlives its plans."""

    __slots__ = ("answers", "plans")

    def __init__(self, plans: Plans) -> None:
        self.plans = plans
        self.answers: dict[object, Hit | Miss] = {}


class PlanBook:
    """See the module. May be shared by threads and used after a fork: it keeps no file, connection or lock open.

    A fork waits until no book of the process reads a place or works an answer out. It cannot wait for what else in the
    process uses SQLite in another thread at that moment: a child of such a fork may look plans up but not `refresh`.
    """

    def __init__(self, read: Callable[[], Sequence[Reading]], terms: Terms) -> None:
        """Use `open`, or `of` for winners at hand."""
        self._read, self._terms = read, terms
        with _READING:
            self._snapshot = _Snapshot(Plans(read(), terms))

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str] | None = None,
        *,
        accept: Iterable[str] = (),
        any_build: bool = False,
        aliases: Mapping[str, str] | None = None,
        pin: str | Iterable[str] | None = None,
        assert_hit: bool | None = None,
    ) -> PlanBook:
        """The plans of a store (SQLite path or URL, PostgreSQL URL) or of a file that `mktune export` wrote.

        place       None: the default store and the plans that ship with mktune; see `lookup` for which comes first
        accept      also serve plans that were measured with another one of these: "kernels" (their sources), "driver",
                    "cuda", "packages"; `Hit.differs` and one warning say so
        any_build   short for accepting "kernels"
        aliases     name of a GPU → name of the GPU whose plans it may use; `Hit.alias` says so
        pin         ids of plans, or their beginnings: no look-up gives another plan, and what differs from here is
                    accepted. A request that none of them may answer is a miss. None: what MKTUNE_PIN says
        assert_hit  a miss is raised by `lookup`, with the key's field that differs. None: what MKTUNE_ASSERT_HIT says

        A place that is missing, locked, damaged or of a newer mktune is a book without its plans, and one warning in
        the log `mktune.runtime` unless it is just missing. Raises InputError for a URL that names no such place, for a
        field that cannot be accepted, and for a pin that is no plan id or the beginning of several.
        """
        with _READING:
            # Not to be paid for by whoever only imports this.
            from mktune.location import StoreLocation
            from mktune.runtime.sources import read_default, read_store

            terms = _terms(accept, any_build, aliases, pin, assert_hit)
            if place is None:
                return cls(read_default, terms)
            location = StoreLocation.parse(place)
            return cls(lambda: [read_store(location)], terms)

    @classmethod
    def of(
        cls,
        winners: Sequence[Winner],
        *,
        accept: Iterable[str] = (),
        any_build: bool = False,
        aliases: Mapping[str, str] | None = None,
        pin: str | Iterable[str] | None = None,
        assert_hit: bool | None = None,
    ) -> PlanBook:
        """A book of these winners; the rest as in `open`."""
        reading = Reading([row_of(winner) for winner in winners], "store", "the book", "no plans were given")
        return cls(lambda: [reading], _terms(accept, any_build, aliases, pin, assert_hit))

    def refresh(self) -> PlanBook:
        """Read the place again; the book itself, which from now on answers from what is stored there now.

        What cannot be read at this time, because it is locked or damaged, keeps the plans of before, with a warning.
        Look-ups of other threads get the old answers or the new ones, never a mixture.
        """
        with _READING:
            before = {reading.where: reading for reading in self._snapshot.plans.readings}
            readings = [before.get(new.where, new) if new.failed else new for new in self._read()]
            self._snapshot = _Snapshot(Plans(readings, self._terms))
        return self

    @property
    def winners(self) -> tuple[Winner, ...]:
        """Everything in the book that can be read."""
        with _ANSWERING:
            return tuple(entry.winner for entry in self._snapshot.plans.everything() if entry.winner is not None)

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
        scale_format: str | None = None,
    ) -> Hit | Miss:
        """The plan to run, or why there is none.

        shape            or else `m` and `kv` (with `tokens_per_request`, by default gcd(m, 8))
        gpu              its name; a `Device` also has its SM count, compute capability, driver and CUDA compared
        ops              names of the ops that the plan must compute; None: the stored plan that covers the most ops
        allow_simulated  also serve plans that only a model has timed
        scale_format     how the caller's scales are represented; None: as the workload's own are, fp32

        A plan answers only where its own M and KV ranges hold the request, tokens per request are equal, and it may be
        built for that shape on that GPU. Of several, the one tuned at the smallest M that covers the request's, then at
        the smallest KV that does, then the store's before the bundle's; `mktune.runtime.matching` has the whole rule.
        Raises RequestError (an InputError and a ValueError) for what can be no request, such as m=True or m="8", and
        PlanNotFound for a miss of a book that asserts hits.
        """
        snapshot, numbers = self._snapshot, (m, kv, tokens_per_request)
        if type(m) not in _NUMBERS or type(kv) not in _NUMBERS or type(tokens_per_request) not in _NUMBERS:
            # True and 8.0 equal 1 and 8, so they would find those answers; this raises what they deserve.
            return _answer(snapshot, workload, shape, numbers, gpu, ops, allow_simulated, scale_format)
        key = (workload, shape, m, kv, tokens_per_request, gpu, ops, allow_simulated, scale_format)
        try:
            found = snapshot.answers.get(key)
        except TypeError:  # ops as a list
            return _answer(snapshot, workload, shape, numbers, gpu, ops, allow_simulated, scale_format)
        if found is None:
            found = _answer(snapshot, workload, shape, numbers, gpu, ops, allow_simulated, scale_format)
            if len(snapshot.answers) >= _REMEMBERED:
                snapshot.answers.clear()
            snapshot.answers[key] = found
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
        scale_format: str | None = None,
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
            scale_format=scale_format,
        )
        if isinstance(found, Miss):
            raise PlanNotFound(found.reason, found.message)
        return found

    def __len__(self) -> int:
        return self._snapshot.plans.count


def _terms(
    accept: Iterable[str],
    any_build: bool,
    aliases: Mapping[str, str] | None,
    pin: str | Iterable[str] | None,
    assert_hit: bool | None,
) -> Terms:
    names = {normalise_gpu(name): normalise_gpu(gpu) for name, gpu in (aliases or {}).items()}
    pins = knobs.pins() if pin is None else (pin,) if isinstance(pin, str) else tuple(pin)
    accepts = accepted(accept) | ({"kernels"} if any_build else frozenset())
    return Terms(names, accepts, pins, knobs.assert_hit() if assert_hit is None else assert_hit)


def _answer(
    snapshot: _Snapshot,
    workload: str,
    shape: Shape | None,
    numbers: Numbers,
    gpu: str | Device,
    ops: Sequence[str] | None,
    allow_simulated: bool,
    scale_format: str | None,
) -> Hit | Miss:
    with _ANSWERING:
        from mktune.runtime.matching import match

        plans = snapshot.plans
        request = make_request(workload, shape, numbers, gpu, ops, allow_simulated, scale_format)
        found = match(request, plans)
        if isinstance(found, Hit):
            if found.differs:
                warn(f"plans of {workload} are served that were measured with {'; '.join(found.differs)}")
        elif plans.terms.assert_hit:
            from mktune.runtime.nearest import nearest

            raise PlanNotFound(found.reason, f"{found.message}; {nearest(request, plans)} (MKTUNE_ASSERT_HIT)")
        return found
