"""Groups of fields that are chosen together, and the rules that say which combinations exist.

A group is one categorical for the sampler: its options are the combinations of its fields' values that every rule
allows. Rules may look at facts of the problem (arch, m, kv, requests, tokens_per_request), at fields of the same group
and at fields of groups that were chosen before on the same op. A field that the chosen implementation does not have is
left out of a combination, and what a rule wants of it holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mktune.space.source import Scalar

FACTS = ("arch", "m", "kv", "requests", "tokens_per_request")
"""What a rule may ask of the problem; the rest are fields."""

Values = tuple[tuple[str, Scalar], ...]

_IMPL = "impl"


@dataclass(frozen=True)
class Condition:
    """`name` is one of `allowed`, or a number within `span` (both ends count; None: open)."""

    name: str
    allowed: tuple[Scalar, ...] = ()
    span: tuple[int | None, int | None] | None = None

    def holds(self, known: Mapping[str, Scalar]) -> bool:
        value = known.get(self.name)
        if self.span is None:
            return value in self.allowed
        low, high = self.span
        return isinstance(value, int) and (low is None or value >= low) and (high is None or value <= high)


@dataclass(frozen=True)
class Rule:
    """Where every condition of `when` holds, those of `only` must hold too."""

    when: tuple[Condition, ...]
    only: tuple[Condition, ...]

    def allows(self, known: Mapping[str, Scalar], absent: Collection[str] = ()) -> bool:
        """Of fields that are `absent` nothing is wanted."""
        if not all(condition.holds(known) for condition in self.when):
            return True
        return all(condition.name in absent or condition.holds(known) for condition in self.only)


@dataclass(frozen=True)
class Group:
    """Fields with their values, in a canonical order, and rules. `name` is what the sampler knows it by.

    lacks  implementation → those of the fields that it does not have
    """

    name: str
    fields: tuple[tuple[str, tuple[Scalar, ...]], ...]
    rules: tuple[Rule, ...] = ()
    lacks: tuple[tuple[str, frozenset[str]], ...] = ()
    _offers: dict[tuple[Scalar | None, ...], dict[str, Values]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.fields)

    @cached_property
    def _outside(self) -> tuple[str, ...]:
        names = {condition.name for rule in self.rules for condition in rule.when}
        if self.lacks:
            names.add(_IMPL)
        return tuple(sorted(names.difference(self.field_names)))

    def options(self, known: Mapping[str, Scalar]) -> dict[str, Values]:
        """Label → field values of what exists, given the problem's facts and the fields chosen before."""
        key = tuple(known.get(name) for name in self._outside)
        if key not in self._offers:
            self._offers[key] = self._combinations(known)
        return self._offers[key]

    def _combinations(self, known: Mapping[str, Scalar]) -> dict[str, Values]:
        found = {}
        lacks = dict(self.lacks)
        for values in itertools.product(*(values for _, values in self.fields)):
            combination = dict(zip(self.field_names, values, strict=True))
            absent = lacks.get(str(combination.get(_IMPL, known.get(_IMPL))), frozenset())
            for name in absent:
                combination.pop(name, None)
            merged = {**known, **combination}
            if all(rule.allows(merged, absent) for rule in self.rules):
                found[self.label(combination)] = tuple(sorted(combination.items()))
        return found

    def label(self, values: Mapping[str, Scalar]) -> str:
        """One text per combination: "impl=wgmma block_m=16 block_n=64"."""
        return " ".join(f"{name}={values[name]}" for name in self.field_names if name in values)
