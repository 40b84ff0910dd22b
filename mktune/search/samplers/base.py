"""What proposes plans. One file per sampler in this folder; its module name is the sampler's name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import random
from abc import ABC, abstractmethod
from functools import cache

from mktune.errors import InputError, SetupError
from mktune.plan import Plan
from mktune.space import Choices, SearchSpace
from mktune.trace import CriticalPath

DEFAULT = "staged"
"""The sampler where none is named: of the whole workload it finds more than the others, in the model's space at 100 to
300 trials (tests/benchmarks/search_rate.py)."""


EXTRA = {"gp": ("scipy", "torch")}
"""Sampler → packages of the extra `search` that it needs."""


class Sampler(ABC):
    """Proposes choices of a space and learns from what came of them. One instance serves one search, one thread.

    Must be deterministic: the same seed and the same sequence of calls give the same proposals.
    """

    wants_ops = False
    """Whether each op is to be measured alone before the search."""
    wants_path = False
    """Whether `know_path` is to be told of every plan that is better than all before."""
    can_withdraw = False
    """Whether `withdraw` leaves nothing behind: then proposals may be sought, and most of them given back."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self.space = space
        self.draw = random.Random(seed)

    @abstractmethod
    def ask(self) -> tuple[Choices, Plan]:
        """A proposal. It may be invalid or have been proposed before: the caller counts that and asks again."""

    @abstractmethod
    def tell(self, choices: Choices, span_us: float | None) -> None:
        """A plan was measured (None: it failed). Also called for plans that others proposed."""

    def reject(self, choices: Choices, invalid: bool) -> None:  # noqa: B027 (few samplers care)
        """A proposal of this sampler was not measured: invalid, or else a duplicate of one that was."""

    def withdraw(self, choices: Choices) -> None:  # noqa: B027 (few samplers remember what they proposed)
        """A proposal of this sampler was not measured, and may be proposed again. Only where it `can_withdraw`."""

    def know_path(self, choices: Choices, path: CriticalPath) -> None:  # noqa: B027 (few samplers want it)
        """What the span of a plan of this space hung on; the plan is better than all before."""

    def know_op(self, op: str, choices: Choices, span_us: float) -> None:  # noqa: B027 (few samplers want it)
        """`op` with these choices for its config took so long alone. Before the first `ask`."""


def at_random(space: SearchSpace, draw: random.Random) -> tuple[Choices, Plan]:
    """Every option of every question equally likely."""
    return space.walk(lambda question: draw.choice(list(question.options)))


@cache
def sampler_names() -> tuple[str, ...]:
    """Names of every sampler, sorted."""
    from mktune.search import samplers

    return tuple(sorted(module.name for module in pkgutil.iter_modules(samplers.__path__) if module.name != "base"))


def missing_packages(name: str) -> tuple[str, ...]:
    """Packages that the sampler needs and that are not installed."""
    return tuple(package for package in EXTRA.get(name, ()) if importlib.util.find_spec(package) is None)


def make_sampler(name: str, space: SearchSpace, seed: int, process: int = 0) -> Sampler:
    """The sampler of that name. Workers of one study get different seeds. Raises InputError with the known names."""
    check_sampler(name)
    found = importlib.import_module(f"mktune.search.samplers.{name}").SAMPLER(space, mixed_seed(seed, process))
    assert isinstance(found, Sampler)
    return found


def check_sampler(name: str) -> None:
    """Raises InputError for a sampler that does not exist, SetupError for one whose packages are missing."""
    if name not in sampler_names():
        raise InputError(f"unknown sampler {name!r}; known: {', '.join(sampler_names())}")
    if missing := missing_packages(name):
        raise SetupError(f"sampler {name} needs {', '.join(missing)}: pip install 'mktune[search]'")


def mixed_seed(seed: int, process: int) -> int:
    """32 bits that differ for every pair of seed and process (but for chance)."""
    return int.from_bytes(hashlib.sha256(f"{seed} {process}".encode()).digest()[:4], "big")
