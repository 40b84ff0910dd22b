"""Proposals beside a measurement: what the queue, what is told and what needs no compiler have of the one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from fake_bench import space_of
from waiting import LIMIT_S, until

from mktune.plan import Plan
from mktune.search import proposals as module
from mktune.search.proposals import AHEAD, DEEP, Proposals
from mktune.search.samplers.random import RandomSampler
from mktune.space import Choices


class Held(RandomSampler):
    """Can be held up in the middle of an ask."""

    def __init__(self) -> None:
        super().__init__(space_of(None), 0)
        self.asked = 0
        self.going = threading.Event()
        self.going.set()

    def ask(self) -> tuple[Choices, Plan]:
        self.asked += 1
        assert self.going.wait(LIMIT_S)
        return super().ask()


@pytest.fixture
def sampler() -> Held:
    return Held()


@pytest.fixture
def proposals(sampler: Held) -> Iterator[Proposals]:
    """Of a search that has begun: so many were told that what needs no compiler is sought."""
    with Proposals(sampler.space, sampler, "held", []) as made:
        for _ in range(DEEP):
            tell_one(made)
        made.made()
        yield made


def tell_one(proposals: Proposals) -> None:
    proposal = proposals.take()
    assert proposal is not None
    proposals.tell(proposal, 20.0)


def test_where_nothing_is_compiled_the_queue_fills_and_is_not_sought_beside(
    proposals: Proposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SEEK_S", 0.0)  # one each
    looked_at: list[Plan] = []

    def none(plan: Plan) -> bool:
        looked_at.append(plan)
        return False

    def when_full(plan: Plan) -> bool:
        return len(proposals.waiting()) == DEEP

    assert proposals.take(when_full, none) is not None
    assert 0 < len(looked_at) <= AHEAD
    tell_one(proposals)
    assert proposals.take(when_full, none) is not None
    assert AHEAD < len(looked_at) <= 2 * AHEAD  # once more, since one was told


def test_what_needs_no_compiler_waits_for_nothing_that_is_being_proposed(proposals: Proposals, sampler: Held) -> None:
    beside = proposals.take(lambda plan: False, lambda plan: True)
    assert beside is not None
    proposals.refill(2 * AHEAD)
    queued = proposals.made()
    sampler.going.clear()
    for plan in queued:
        taken = proposals.take()
        assert taken is not None
        assert taken.plan == plan
    asked = sampler.asked
    others = [proposals.take() for _ in range(2)]  # the queue's first is held up
    until(lambda: sampler.asked > asked)
    assert not proposals.waiting()
    assert None not in others
    assert len({plan.plan_id for plan in [*queued, beside.plan, *(each.plan for each in others if each)]}) == (
        len(queued) + 3
    )
    sampler.going.set()


def test_it_ends_also_while_nothing_may_be_made(proposals: Proposals, sampler: Held) -> None:
    tell_one(proposals)
    with proposals.held():
        proposals.refill(DEEP)
        proposals.close()
    asked = sampler.asked
    proposals.close()
    assert sampler.asked == asked
