"""Winners: one plan served for each key (what is computed, at which shape, on which GPU), the earlier ones kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select, update

from mktune.errors import InputError, UnknownPlanError
from mktune.gpu_name import normalise_gpu
from mktune.plan import Plan
from mktune.records import winner_from_dict, winner_key, winner_ranges, winner_to_dict
from mktune.shape import Shape
from mktune.store.columns import whole_rows
from mktune.store.models import PLAN_KEY, PlanRow, TrialRow
from mktune.store.owner import now
from mktune.store.stored_plan import stored_plan, stored_winner
from mktune.store.studies import sorted_ops
from mktune.trial import Winner, built_alike

_SHORTEST_PREFIX = 4
_LARGEST = 2**31 - 1  # of a column of whole numbers on PostgreSQL


@dataclass(frozen=True)
class Filter:
    """Which winners or spans are asked for; None: all. A GPU's name is compared as `normalise_gpu` writes it."""

    workload: str | None = None
    ops: Sequence[str] | None = None
    shape: Shape | None = None
    gpu: str | None = None
    simulated: bool | None = None
    scale_format: str | None = None

    def matches(self, row: Row[Any]) -> bool:
        """Whether a row with the columns of a winner's key, or with those of a study and its span, is asked for."""
        own = self.shape and (self.shape.requests, self.shape.tokens_per_request, self.shape.kv)
        return (
            self.workload in (None, row.workload)
            and (self.ops is None or ",".join(sorted_ops(self.ops)) == row.ops)
            and own in (None, (row.requests, row.tokens_per_request, row.kv))
            and (self.gpu is None or normalise_gpu(self.gpu) == normalise_gpu(row.gpu))
            and self.simulated in (None, row.simulated)
            and self.scale_format in (None, row.scale_format)
        )


@dataclass(frozen=True)
class Merged:
    """What became of a winner that was stored or imported; true where look-ups get it.

    served    look-ups get it
    changed   it was written; False: it is stored already, or a better record of the same plan is
    replaced  the winner that look-ups got until now, where this one takes its place
    """

    served: bool
    changed: bool = True
    replaced: Winner | None = None

    def __bool__(self) -> bool:
        return self.served


def put(
    connection: Connection, winner: Winner, study: str, own_build: Callable[[Winner], bool], repeats: bool = False
) -> Merged:
    """Store a promoted plan.

    It replaces the plan of its key, except where that one was measured on the same build under the same policy, is
    another plan and is no slower: a short search must not displace the result of a long one. With `repeats` it must
    also be one whose bits repeat. What is not served is kept as history. Raises InputError for a winner that must not
    be served (see `check_winner`).
    """
    check_winner(winner)
    document = connection.execute(select(PlanRow.document).where(*_served_as(winner))).scalar()
    current = None if document is None else stored_winner(document)
    keep = current is not None and _is_better(current, winner, own_build) and (current.repeats or not repeats)
    _store(connection, winner, study, keep=keep)
    return Merged(not keep, replaced=None if keep else current)


def _served_as(winner: Winner) -> list[ColumnElement[bool]]:
    return [*_key_of(winner), PlanRow.replaced.is_(None)]


def _store(connection: Connection, winner: Winner, study: str, *, keep: bool) -> None:
    """As the served plan of its key, or with `keep` as history: the one that is served stays."""
    time = now()
    if not keep:
        connection.execute(update(PlanRow).where(*_served_as(winner)).values(replaced=time))
    values = {
        **winner_key(winner),
        **winner_ranges(winner),
        "plan_id": winner.plan.plan_id,
        "span_us": winner.measurement.span_us,
        "study": study,
        "created": time,
        "replaced": time if keep else None,
        "document": json.dumps(winner_to_dict(winner), sort_keys=True, separators=(",", ":"), allow_nan=False),
    }
    connection.execute(insert(PlanRow).values(values))


def merge(connection: Connection, winner: Winner, own_build: Callable[[Winner], bool], repeats: bool = False) -> Merged:
    """Store a winner that another store has promoted.

    A plan that is stored for its key merges with that record: of the same build and policy only the faster span stays.
    A plan of this package's build, as `own_build` tells, keeps its place against one that is not. With `repeats` one
    whose bits repeat comes before a faster one that is not known to, also where it was history. Else as `put`, with its
    errors.
    """
    check_winner(winner)
    key = _key_of(winner)
    query = select(PlanRow.id, PlanRow.document, PlanRow.replaced).where(*key).order_by(PlanRow.id)
    stored = [(row, stored_winner(row.document)) for row in connection.execute(query).all()]
    current = next((known for row, known in stored if row.replaced is None), None)
    keep = current is not None and _keeps_place(current, winner, own_build, repeats)
    for row, known in stored:
        if known == winner or _is_better_record(known, winner, repeats):
            if row.replaced is None or keep or not repeats:
                return Merged(served=row.replaced is None, changed=False)
            _serve_again(connection, winner, row.id)
            return Merged(served=True, replaced=current)
    for row, known in stored:  # what is left of the same plan is slower
        if _comparable(known, winner) and _same_plan(known, winner):
            connection.execute(delete(PlanRow).where(PlanRow.id == row.id))
    _store(connection, winner, "", keep=keep)
    return Merged(not keep, replaced=None if keep else current)


def _serve_again(connection: Connection, winner: Winner, row: int) -> None:
    """The record of `winner` that is history in `row`, in place of what is served."""
    connection.execute(update(PlanRow).where(*_served_as(winner)).values(replaced=now()))
    connection.execute(update(PlanRow).where(PlanRow.id == row).values(replaced=None))


def place_of(winner: Winner) -> tuple[Any, ...]:
    """What a bundle holds only one winner for: a key, and the packages that the plan needs.

    Where one of them is missing, look-ups take the plan beside it that does without.
    """
    return (*winner_key(winner).values(), *(name for name, _ in winner.fingerprint.packages))


def best_of(winners: Iterable[Winner], own_build: Callable[[Winner], bool], repeats: bool = False) -> list[Winner]:
    """One winner for each place in a bundle: of two for the same, the one that `merge` would leave served."""
    kept: dict[tuple[Any, ...], Winner] = {}
    for winner in winners:
        key = place_of(winner)
        current = kept.get(key)
        if current is None or not _keeps_place(current, winner, own_build, repeats):
            kept[key] = winner
    return list(kept.values())


def served(connection: Connection, wanted: Filter, *, history: bool) -> list[Winner]:
    """The winners that match, by key; with `history` also those that were replaced, oldest first."""
    columns = [getattr(PlanRow, name) for name in PLAN_KEY]
    query = select(PlanRow.document, *columns).order_by(*columns, PlanRow.id)
    if not history:
        query = query.where(PlanRow.replaced.is_(None))
    return [stored_winner(row.document) for row in whole_rows(connection.execute(query)) if wanted.matches(row)]


def with_spares(connection: Connection, wanted: Filter, own_build: Callable[[Winner], bool]) -> list[Winner]:
    """The served winners that match, by key, and with one that needs packages the best that needs fewer of them.

    Such a spare is history. It was measured on the same build under the same policy and is no faster, so that a bundle
    of both serves what the store does, and where a package is missing it serves the spare.
    """
    found = []
    for winner in served(connection, wanted, history=False):
        found.append(winner)
        if winner.fingerprint.packages:
            replaced = (*_key_of(winner), PlanRow.replaced.is_not(None))
            query = select(PlanRow.document).where(*replaced).order_by(PlanRow.id)
            earlier = (stored_winner(row.document) for row in whole_rows(connection.execute(query)))
            found += best_of(
                [other for other in earlier if _is_spare(other, winner, own_build)], own_build=lambda spare: True
            )
    return found


def _key_of(winner: Winner) -> list[ColumnElement[bool]]:
    return [getattr(PlanRow, name) == value for name, value in winner_key(winner).items()]


def _is_spare(other: Winner, winner: Winner, own_build: Callable[[Winner], bool]) -> bool:
    fewer = {name for name, _ in other.fingerprint.packages} < {name for name, _ in winner.fingerprint.packages}
    return fewer and _is_faster(winner, other, own_build)


def served_rows(connection: Connection, wanted: Filter) -> list[Row[Any]]:
    """The rows of `PlanRow` that match and are served: their key, plan id, study and document."""
    columns = (PlanRow.plan_id, PlanRow.study, PlanRow.document, *(getattr(PlanRow, name) for name in PLAN_KEY))
    query = select(*columns).where(PlanRow.replaced.is_(None)).order_by(PlanRow.id)
    return [row for row in whole_rows(connection.execute(query)) if wanted.matches(row)]


def find_plan(connection: Connection, prefix: str) -> Plan:
    """The one stored plan whose id starts with `prefix`. Raises InputError where more than one is,
    UnknownPlanError where there is none."""
    start = prefix.strip().lower()
    if len(start) < _SHORTEST_PREFIX or not set(start) <= set("0123456789abcdef"):
        raise InputError(f"a plan id is at least {_SHORTEST_PREFIX} hexadecimal digits, not {prefix!r}")
    trials = select(TrialRow.plan_id).where(TrialRow.plan_id.startswith(start))
    ids = sorted(
        set(
            connection.execute(trials.union(select(PlanRow.plan_id).where(PlanRow.plan_id.startswith(start)))).scalars()
        )
    )
    if not ids:
        raise UnknownPlanError(f"no stored plan has an id that starts with {start!r}")
    if len(ids) > 1:
        raise InputError(
            f"{len(ids)} plans start with {start!r}: {', '.join(name[:16] for name in ids[:5])}; add digits"
        )
    text = connection.execute(select(TrialRow.plan).where(TrialRow.plan_id == ids[0]).limit(1)).scalar()
    if text is not None:
        return stored_plan(text)
    return stored_winner(
        connection.execute(select(PlanRow.document).where(PlanRow.plan_id == ids[0]).limit(1)).scalar_one()
    ).plan


def check_winner(winner: Winner) -> None:
    """Raise InputError unless the winner reads back as it is and may be served."""
    winner_from_dict(json.loads(json.dumps(winner_to_dict(winner))))
    for name, value in (winner_key(winner) | winner_ranges(winner)).items():
        if isinstance(value, int) and value > _LARGEST:
            raise InputError(f"{name} is more than a store holds ({_LARGEST})")
    policy = winner.measurement.policy
    if not winner.fingerprint.gpu or not winner.fingerprint.compute_capability or winner.fingerprint.sms < 1:
        raise InputError("a winner needs the GPU that it was measured on: name, SM count and compute capability")
    if policy.inputs != "random":
        raise InputError(f"a plan measured with inputs {policy.inputs!r} cannot be a winner; only random ones count")
    if not policy.simulated and not winner.validated:
        raise InputError("a measured plan that was not validated cannot be a winner")


def _is_better(current: Winner, new: Winner, own_build: Callable[[Winner], bool]) -> bool:
    """True where `current` keeps its place against `new`."""
    return _is_faster(current, new, own_build) and not _same_plan(current, new)


def _is_faster(one: Winner, other: Winner, own_build: Callable[[Winner], bool]) -> bool:
    """`one` is no slower, where they can be compared."""
    return _comparable(one, other, _both_own(one, other, own_build)) and _no_slower(one, other)


def _both_own(one: Winner, other: Winner, own_build: Callable[[Winner], bool]) -> bool:
    """Measured on one build, this package's; not so for a model, whose spans any package takes for its own."""
    return not other.measurement.policy.simulated and own_build(one) and own_build(other)


def _is_better_record(known: Winner, new: Winner, repeats: bool) -> bool:
    """True where `known` is a record of the same plan that `new` does not better: see `_keeps_place`."""
    if not (_comparable(known, new) and _same_plan(known, new)):
        return False
    return known.repeats if repeats and known.repeats != new.repeats else _no_slower(known, new)


def _keeps_place(current: Winner, new: Winner, own_build: Callable[[Winner], bool], repeats: bool) -> bool:
    """True where `current` keeps its place against an imported `new`."""
    if _comparable(current, new, _both_own(current, new, own_build)):
        if repeats and current.repeats != new.repeats:
            return current.repeats
        return (current.measurement.span_us, current.plan.plan_id) <= (new.measurement.span_us, new.plan.plan_id)
    return own_build(current) and not own_build(new)


def _comparable(left: Winner, right: Winner, alike: bool = False) -> bool:
    """Measured on the same build under the same policy. A plan may run kernels of a package that the other does not.

    alike  the build is known to be the same: of two plans that share kernels with different others, hashes cannot tell
    """
    ours, theirs = left.fingerprint, right.fingerprint
    same = replace(ours, kernels="", packages=()) == replace(theirs, kernels="", packages=())
    versions = dict(theirs.packages)
    shared = all(versions.get(name, version) == version for name, version in ours.packages)
    alike = alike or built_alike(ours.kernels, theirs.kernels)
    return same and shared and alike and left.measurement.policy == right.measurement.policy


def _no_slower(current: Winner, new: Winner) -> bool:
    return current.measurement.span_us <= new.measurement.span_us


def _same_plan(left: Winner, right: Winner) -> bool:
    return left.plan.plan_id == right.plan.plan_id
