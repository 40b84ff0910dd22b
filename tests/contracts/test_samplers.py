"""What every sampler keeps to, whatever it proposes. A new file in mktune/search/samplers is tested by being there."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from fake_bench import space_of, spans

from mktune.errors import InputError, SetupError
from mktune.graph.builtin import builtin_plans
from mktune.plan import Plan
from mktune.search import DEFAULT_SAMPLER, sampler_names
from mktune.search.samplers.base import Sampler, make_sampler, missing_packages

OPS = [("A0", "B0"), None]
INSTALLED = [name for name in sampler_names() if not missing_packages(name)]


def run(sampler: Sampler, asks: int, seeded: bool = True) -> list[Plan]:
    """Ask and tell as a search does: built-in plans first, every third proposal invalid, every fifth failing."""
    space = sampler.space
    if seeded:
        for plan in builtin_plans(space.workload, tuple(space.graph.calls), space.shape, "sm_90a").values():
            choices = space.to_choices(plan)
            assert choices is not None
            sampler.tell(choices, spans(plan))
    plans = []
    for number in range(asks):
        choices, plan = sampler.ask()
        assert space.to_choices(plan) == choices
        plans.append(plan)
        if number % 3 == 2:
            sampler.reject(choices, invalid=number % 2 == 0)
        else:
            sampler.tell(choices, None if number % 5 == 4 else spans(plan))
    return plans


@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.parametrize("ops", OPS)
def test_proposals_lie_in_the_space_and_repeat_with_the_seed(name: str, ops: tuple[str, ...] | None) -> None:
    space = space_of(ops)
    first = run(make_sampler(name, space, 3), 25)
    assert run(make_sampler(name, space, 3), 25) == first
    assert run(make_sampler(name, space, 4), 25) != first
    assert run(make_sampler(name, space, 3, process=1), 25) != first


@pytest.mark.parametrize("name", INSTALLED)
def test_it_begins_without_having_been_told_anything(name: str) -> None:
    assert len(run(make_sampler(name, space_of(), 0), 5, seeded=False)) == 5


@pytest.mark.parametrize("name", INSTALLED)
def test_several_proposals_may_be_open_at_once_and_end_in_any_order(name: str) -> None:
    sampler = make_sampler(name, space_of(), 0)
    waiting = []
    for _ in range(20):
        waiting.append(sampler.ask())
        if len(waiting) == 4:
            choices, plan = waiting.pop(1)
            sampler.tell(choices, spans(plan))
    assert len(waiting) == 3


@pytest.mark.parametrize("name", INSTALLED)
def test_nothing_but_failures_does_not_stop_it(name: str) -> None:
    sampler = make_sampler(name, space_of(), 0)
    for _ in range(30):
        choices, _ = sampler.ask()
        sampler.tell(choices, None)


@pytest.mark.parametrize("name", [name for name in INSTALLED if name != "random"])
def test_it_learns(name: str) -> None:
    """Where one choice decides the span, what is proposed late takes it more often than chance would."""

    def span(plan: Plan) -> float:
        noise = hashlib.sha256(plan.json.encode()).digest()[0] / 2560
        return (5.0 if dict(plan.op["B0"].config).get("split_k") == 4 else 10.0) + noise

    sampler = make_sampler(name, space_of(), 1)
    taken = []
    for _ in range(120):
        choices, plan = sampler.ask()
        sampler.tell(choices, span(plan))
        taken.append(dict(plan.op["B0"].config).get("split_k") == 4)
    assert sum(taken[60:]) > 20  # chance: about 9 of 60, and 20 once in 5,000 times


def test_names_are_those_of_the_files() -> None:
    folder = Path(sys.modules["mktune.search.samplers"].__path__[0])
    assert set(sampler_names()) == {file.stem for file in folder.glob("*.py")} - {"__init__", "base"}
    assert {"random", "tpe"} < set(sampler_names())
    assert DEFAULT_SAMPLER in sampler_names()


@pytest.mark.skipif(len(INSTALLED) == len(sampler_names()), reason="the packages of every sampler are installed")
def test_a_sampler_whose_packages_are_missing_says_what_to_install() -> None:
    with pytest.raises(SetupError, match=r"sampler gp needs .*: pip install 'mktune\[search\]'"):
        make_sampler("gp", space_of(), 0)


@pytest.mark.parametrize("name", ["", "base", "cma", "../tpe", "TPE"])
def test_an_unknown_sampler_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InputError, match=r"unknown sampler .*; known: gp, local, random, staged, tpe, trace_guided"):
        make_sampler(name, space_of(), 0)
