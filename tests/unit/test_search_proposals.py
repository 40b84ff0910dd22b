"""Proposals beside a measurement: what the queue, what is told and what needs no compiler have of the one thread."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_bench import small_space_file, space_of
from waiting import LIMIT_S, until

from mktune.plan import Plan
from mktune.search import extras
from mktune.search import proposals as proposals_module
from mktune.search.proposals import AHEAD, DEEP, MANY, PATIENCE, Proposal, Proposals
from mktune.search.samplers.random import RandomSampler
from mktune.space import Choices
from mktune.validity import check


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
    monkeypatch.setattr(extras, "SEEK_S", 0.0)  # one each
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


def test_nothing_is_made_while_it_is_held_and_it_ends_also_then(proposals: Proposals, sampler: Held) -> None:
    tell_one(proposals)
    proposals.made()
    asked = sampler.asked
    with proposals.held():
        proposals.refill(DEEP)
        with pytest.raises(TimeoutError):
            proposals._queue[-1].result(0.2)
        assert sampler.asked == asked
        proposals.close()
    assert sampler.asked <= asked + 1
    proposals.close()


def test_it_ends_in_the_midst_of_proposals_that_are_all_known(
    proposals: Proposals, sampler: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposals.refill(1)
    (plan,) = proposals.made()
    again, twice = (sampler.space.to_choices(plan) or {}, plan), threading.Event()

    def ask() -> tuple[Choices, Plan]:
        sampler.asked += 1
        if sampler.asked == asked + PATIENCE:
            twice.set()
            assert sampler.going.wait(LIMIT_S)
        return again

    monkeypatch.setattr(sampler, "ask", ask)
    monkeypatch.setattr(proposals, "_ask", lambda rejected: ask())
    asked = sampler.asked
    sampler.going.clear()
    proposals.refill(2 * DEEP)
    assert twice.wait(LIMIT_S)
    closing = threading.Thread(target=proposals.close)
    closing.start()
    until(lambda: proposals._closed)
    sampler.going.set()
    closing.join(LIMIT_S)
    assert sampler.asked == asked + PATIENCE


def test_while_extras_are_found_half_as_many_wait_for_compilers(proposals: Proposals) -> None:
    for _ in range(4 * DEEP):
        assert proposals.take(lambda plan: False, lambda plan: True) is not None
        proposals._thread.submit(lambda: None).result()  # as a measurement takes longer than four proposals
    assert DEEP / 4 <= len(proposals.waiting()) <= DEEP / 2 + 1


def test_the_first_proposals_are_not_sought(sampler: Held) -> None:
    looked_at: list[Plan] = []
    with Proposals(sampler.space, sampler, "held", []) as made:
        for _ in range(DEEP):
            until(lambda: take_when_full(made, looked_at) is not None)
        assert not looked_at


def take_when_full(proposals: Proposals, looked_at: list[Plan]) -> Proposal | None:
    def none(plan: Plan) -> bool:
        looked_at.append(plan)
        return False

    return proposals.take(lambda plan: len(proposals.waiting()) == DEEP, none)


class Stuck(RandomSampler):
    """Proposes one plan and no other: the rest is found by going through the space."""

    def ask(self) -> tuple[Choices, Plan]:
        return next(iter(self.space))


def test_of_a_small_space_nothing_is_withdrawn_and_nothing_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals_module, "PATIENCE", MANY)
    path = small_space_file(tmp_path)
    path.write_text(path.read_text().replace("stages: [6]", "stages: [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]"))
    space = space_of(path=path)
    valid = sum(not check(plan, space.device) for _, plan in space)
    assert DEEP + DEEP // 4 < valid < 2 * DEEP
    taken = Counter[str]()
    with Proposals(space, Stuck(space, 0), "stuck", []) as made:

        def ready(plan: Plan) -> bool:
            return len(taken) < DEEP or bool(made.exhausted)

        while (proposal := made.take(ready, lambda plan: False)) is not None:
            taken[proposal.plan.plan_id] += 1
            made.tell(proposal, 20.0)
    assert set(taken.values()) == {1}
    assert len(taken) == valid


@pytest.mark.parametrize("told", ["given", "of a sampler that keeps what it proposed"])
def test_what_must_not_be_withdrawn_is_not_sought(sampler: Held, told: str) -> None:
    looked_at: list[Plan] = []
    given = [(f"given {number}", sampler.ask()[1]) for number in range(DEEP)] if told == "given" else []
    sampler.can_withdraw = told == "given"
    with Proposals(sampler.space, sampler, "held", given) as made:
        for _ in range(DEEP):
            tell_one(made)
        assert take_when_full(made, looked_at) is not None
    assert not looked_at


def test_a_limit_holds_with_extras_and_all_of_it_is_used(sampler: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "SEEK_S", 0.0)
    draw, taken = random.Random(0), 0
    with Proposals(sampler.space, sampler, "held", [], limit=5 * DEEP) as made:
        while (proposal := made.take(lambda plan: draw.random() < 0.01, lambda plan: draw.random() < 0.3)) is not None:
            taken += 1
            made.tell(proposal, 20.0)
    assert taken == 5 * DEEP
