"""Where a local search is stuck: excursions."""

from __future__ import annotations

import itertools

from fake_bench import space_of

from mktune.search.excursions import BEGINNINGS, PATIENCE, STUCK, Excursions
from mktune.search.samplers.local import DISTURBED, LocalSampler, name_of
from mktune.space import Choices, question_stem

NUMBERS = itertools.count()


def a_plan() -> Choices:
    return {"number": str(next(NUMBERS))}


def tell_others(excursions: Excursions, count: int, span_us: float | None = 10.0) -> None:
    for _ in range(count):
        choices = a_plan()
        excursions.tell(name_of(choices), choices, span_us)


def stuck() -> Excursions:
    """At 10 µs."""
    found = Excursions()
    tell_others(found, STUCK + 1)
    return found


def own(excursions: Excursions, span_us: float | None) -> Choices:
    """A proposal of the excursion, told."""
    choices = a_plan()
    excursions.propose(name_of(choices))
    excursions.tell(name_of(choices), choices, span_us)
    return choices


def test_one_begins_once_so_many_trials_gained_nothing() -> None:
    excursions = Excursions()
    tell_others(excursions, STUCK)  # the first of them was a gain
    assert not excursions.wants_next()
    tell_others(excursions, 1, None)
    assert excursions.wants_next()
    tell_others(excursions, 1, 9.995)  # a twentieth of a percent: noise
    assert excursions.wants_next()
    tell_others(excursions, 1, 9.9)
    assert not excursions.wants_next()


def test_no_more_copies_are_on_their_way_than_may_be() -> None:
    excursions = stuck()
    names = [name_of(a_plan()) for _ in range(BEGINNINGS)]
    for name in names:
        assert excursions.wants_next()
        excursions.propose(name)
    assert not excursions.wants_next()
    excursions.withdraw(names[0])
    assert excursions.wants_next()
    excursions.withdraw(names[0])
    excursions.withdraw(name_of(a_plan()))  # none of its own
    excursions.propose(name_of(a_plan()))
    assert not excursions.wants_next()
    excursions.tell(names[1], {}, None)  # it failed: another may begin
    assert excursions.wants_next()


def test_it_is_judged_by_its_own_best_and_not_by_that_of_all() -> None:
    excursions = stuck()
    slow, slower, slowest = own(excursions, 13.0), own(excursions, 14.0), own(excursions, 15.0)
    tell_others(excursions, 5, 10.5)
    assert excursions.best == [(13.0, slow), (14.0, slower), (15.0, slowest)]
    faster = [own(excursions, 12.0 - number / 10) for number in range(4)]
    assert [choices for _, choices in excursions.best] == faster[::-1]


def test_it_ends_when_it_gains_nothing_and_another_begins() -> None:
    excursions = stuck()
    late = a_plan()
    excursions.propose(name_of(late))
    for _ in range(PATIENCE):
        own(excursions, 13.0)
    assert excursions.best
    own(excursions, 12.0)
    for _ in range(PATIENCE):
        assert excursions.best
        own(excursions, 12.5)
    assert not excursions.best
    assert excursions.wants_next()
    excursions.tell(name_of(late), late, 11.0)
    assert not excursions.best  # of the one before
    own(excursions, 14.0)
    assert len(excursions.best) == 1


def test_one_that_only_fails_ends_too() -> None:
    excursions = stuck()
    for _ in range(PATIENCE + 1):
        assert excursions.wants_next()
        own(excursions, None)
    assert excursions.wants_next()


def test_a_sampler_that_is_stuck_gives_one_op_and_some_of_the_graph_other_answers() -> None:
    sampler = LocalSampler(space_of(None), 0)
    base, _ = sampler.ask()
    for _ in range(STUCK + 1):
        sampler.tell(base, 10.0)
    ops, graphs = set(), set()
    for _ in range(40):
        choices, _ = sampler.elsewhere()
        sampler.reject(choices, invalid=False)
        changed = {name for name in choices if name in base and choices[name] != base[name]}
        configs = {name.partition(".")[0] for name in changed if sampler.space.is_config(name)}
        assert len(configs) <= 1
        ops |= configs
        graphs |= {question_stem(name) for name in changed if not sampler.space.is_config(name)}
    assert len(ops) > 1
    assert len(graphs) > DISTURBED


def test_a_sampler_that_is_stuck_changes_what_an_excursion_has_found() -> None:
    sampler = LocalSampler(space_of(None), 0)
    base, _ = sampler.ask()
    for _ in range(STUCK + 1):
        sampler.tell(base, 10.0)
    start, _ = sampler.elsewhere()
    sampler.tell(start, 20.0)
    near = [sampler.elsewhere()[0] for _ in range(20)]
    shared = [sum(each.get(name) == label for name, label in start.items()) for each in near]
    apart = [sum(each.get(name) == label for name, label in base.items()) for each in near]
    assert sum(shared) > sum(apart)
    sampler.tell(near[0], 9.0)  # a gain: the best of all is changed again
    assert not sampler._excursions.wants_next()
