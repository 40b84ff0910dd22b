"""Winners: one served plan for each key, history kept, and what may not be a winner is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from stored_values import (
    B300,
    H200,
    SHAPE,
    WORKLOAD,
    make_measurement,
    make_plan,
    make_study,
    make_trial,
    make_winner,
    needing,
)

from mktune.errors import InputError
from mktune.shape import Shape
from mktune.store import Store
from mktune.trial import Winner


def test_a_winner_reads_back_as_it_was_stored(tmp_path: Path) -> None:
    winner = make_winner(extra=(("peer", "10.4"),))
    with Store.open(tmp_path / "x.db") as store:
        assert store.put_winner(make_study(store), winner)
    with Store.open(tmp_path / "x.db", write=False) as store:
        assert store.winners() == [winner]


def _with_gpu(**changes: object) -> Winner:
    return make_winner(device=replace(H200, **changes))


@pytest.mark.parametrize(
    "other",
    [
        make_winner(replace(make_plan(), workload="other")),
        make_winner(replace(make_plan(), contract=2)),
        make_winner(replace(make_plan(), scale_format="ue8m0")),
        make_winner(make_plan(ops=("A0",))),
        make_winner(make_plan(m=8)),
        make_winner(make_plan(kv=4096)),
        make_winner(replace(make_plan(), shape=Shape(4, 4, 8192))),
        _with_gpu(name="NVIDIA H200 NVL"),
        _with_gpu(sms=66),
        _with_gpu(arch="sm_100a"),
        make_winner(backend="sim"),
    ],
    ids="workload contract scale_format ops m kv tokens gpu sms cc simulated".split(),  # noqa: SIM905
)
def test_each_field_of_the_key_keeps_its_own_winner(tmp_path: Path, other: Winner) -> None:
    first = make_winner()
    with Store.open(tmp_path / "x.db") as store:
        assert store.put_winner(None, first)
        assert store.put_winner(None, other)
        found = store.winners()
    assert len(found) == 2
    assert first in found
    assert other in found


def test_a_faster_plan_replaces_and_the_old_one_is_history(tmp_path: Path) -> None:
    slow, fast = make_winner(make_plan(stages=2), 11.0), make_winner(make_plan(stages=3), 10.0)
    with Store.open(tmp_path / "x.db") as store:
        assert store.put_winner(None, slow)
        assert store.put_winner(None, fast)
        assert store.winners() == [fast]
        assert store.winners(history=True) == [slow, fast]


def test_a_slower_plan_of_the_same_build_is_history_at_once(tmp_path: Path) -> None:
    slow, fast = make_winner(make_plan(stages=2), 11.0), make_winner(make_plan(stages=3), 10.0)
    with Store.open(tmp_path / "x.db") as store:
        assert store.put_winner(None, fast)
        assert not store.put_winner(None, slow)
        assert store.winners() == [fast]
        assert store.winners(history=True) == [fast, slow]


@pytest.mark.parametrize(
    ("found", "stays"),
    [
        ((("deterministic", "yes"), ("batch invariant", "yes")), True),
        ((("deterministic", "yes"), ("batch invariant", "one request: nothing stands beside it")), True),
        ((("deterministic", "yes"), ("batch invariant", "no: h_s of the first request")), False),
        ((("deterministic", "no: 2 of 540 replays"), ("batch invariant", "yes")), False),
        ((("clocks", "timer step 32 ns"),), False),
    ],
)
def test_where_bits_must_repeat_a_faster_plan_stays_only_if_its_bits_do(
    tmp_path: Path, found: tuple[tuple[str, str], ...], stays: bool
) -> None:
    fast, slow = make_winner(extra=found), make_winner(make_plan(stages=9), 11.0)
    with Store.open(tmp_path / "x.db") as store:
        store.put_winner(None, fast)
        assert not store.put_winner(None, slow)
        assert store.put_winner(None, slow, repeats=True).served != stays
        assert [winner.plan for winner in store.winners()] == [fast.plan if stays else slow.plan]


@pytest.mark.parametrize("how", ["put", "merge"])
@pytest.mark.parametrize("first", ["plain", "provided"])
def test_the_faster_stays_also_where_one_runs_kernels_of_a_package(tmp_path: Path, how: str, first: str) -> None:
    plain = make_winner(span_us=20.0)
    other = make_winner(make_plan(stages=6), 10.0)
    provided, other = needing(other, "1"), needing(other, "2")
    with Store.open(tmp_path / "x.db") as store:

        def give(winner: Winner) -> object:
            return store.put_winner(None, winner) if how == "put" else store.merge_winners([winner], lambda _: True)

        for winner in sorted((plain, provided), key=lambda winner: winner is not plain, reverse=first == "provided"):
            give(winner)
        assert store.winners() == [provided]
        slower = replace(other, measurement=make_measurement(30.0))
        give(slower)
        assert store.winners() == [slower]  # another version of the package is another build


@pytest.mark.parametrize("how", ["put", "merge"])
@pytest.mark.parametrize(("own", "simulated", "stays"), [(2, False, True), (1, False, False), (2, True, False)])
def test_the_faster_stays_also_where_each_shares_kernels_with_others(
    tmp_path: Path, how: str, own: int, simulated: bool, stays: bool
) -> None:
    """One runs fused kernels, the other a second kernel of an op: of one build only if both are this package's.

    own        how many are, the second first
    simulated  by a model, whose spans are every package's own
    """
    ops, backend = "0" * 64, "sim" if simulated else "cuda"
    fast = make_winner(make_plan(stages=3), 10.0, backend=backend, kernels=f"{ops}+{'f' * 64}")
    slow = make_winner(make_plan(stages=2), 11.0, backend=backend, kernels=f"{ops}+{'5' * 64}")
    ours = [slow, fast][:own]
    with Store.open(tmp_path / "x.db") as store:
        for winner in (fast, slow):
            if how == "put":
                store.put_winner(None, winner, own_build=lambda winner: winner in ours)
            else:
                store.merge_winners([winner], lambda winner: winner in ours)
        assert store.winners(simulated=simulated) == [fast if stays else slow]


def test_another_build_or_a_new_measurement_of_the_plan_replaces_though_slower(tmp_path: Path) -> None:
    fast = make_winner(make_plan(stages=3), 10.0)
    rebuilt = make_winner(make_plan(stages=2), 11.0, kernels="1" * 64)
    again = make_winner(make_plan(stages=2), 12.0, kernels="1" * 64)
    with Store.open(tmp_path / "x.db") as store:
        assert all(store.put_winner(None, winner) for winner in (fast, rebuilt, again))
        assert store.winners() == [again]


@pytest.mark.parametrize(
    ("winner", "reason"),
    [
        (make_winner(validated=""), "not validated"),
        (make_winner(measurement=replace(make_measurement(), span_us=math.nan)), "span_us"),
        (make_winner(measurement=replace(make_measurement(), span_us=0.0)), "above 0"),
        (make_winner(measurement=replace(make_measurement(), samples_us=(1.0, math.inf))), r"samples_us\[1\]"),
        (make_winner(ratio=math.inf), "ratio"),
        (make_winner(device=replace(H200, name="")), "GPU"),
        (make_winner(device=replace(H200, sms=0)), "GPU"),
        (
            make_winner(
                measurement=replace(make_measurement(), policy=replace(make_measurement().policy, inputs="zeros"))
            ),
            "zeros",
        ),
        (make_winner(make_plan(m_range=(17, 32))), "m_range"),
    ],
    ids="unvalidated nan zero infinite ratio nameless smless zeros range".split(),  # noqa: SIM905
)
def test_what_may_not_be_served_is_refused(tmp_path: Path, winner: Winner, reason: str) -> None:
    with Store.open(tmp_path / "x.db") as store:
        with pytest.raises(InputError, match=reason):
            store.put_winner(None, winner)
        assert store.winners(history=True) == []


def test_winners_are_filtered(tmp_path: Path) -> None:
    measured, simulated = make_winner(), make_winner(make_plan(m=8), backend="sim", device=B300)
    with Store.open(tmp_path / "x.db") as store:
        store.put_winner(None, measured)
        store.put_winner(None, simulated)
        assert store.winners(workload=WORKLOAD, ops=("B0", "A0"), gpu="nvidia_h200", shape=SHAPE) == [measured]
        assert store.winners(simulated=True) == [simulated]
        assert store.winners(simulated=False) == [measured]
        assert store.winners(gpu="NVIDIA H20") == []
        assert store.winners(ops=("A0",)) == []


def test_a_plan_is_found_by_the_start_of_its_id(tmp_path: Path) -> None:
    tried, won = make_plan(stages=3), make_plan(stages=2)
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        store.add_trial(study, make_trial(0, tried))
        store.put_winner(None, make_winner(won))
        for plan in (tried, won):
            assert store.find_plan(plan.plan_id[:12]) == plan
            assert store.find_plan(f" {plan.plan_id.upper()} ") == plan
        with pytest.raises(InputError, match="no stored plan"):
            store.find_plan("0000000000")


@pytest.mark.parametrize("prefix", ["", "abc", "xyzw", "%", "____", "abcd'--"])
def test_what_is_no_plan_id_is_refused(tmp_path: Path, prefix: str) -> None:
    with Store.open(tmp_path / "x.db") as store, pytest.raises(InputError, match="hexadecimal"):
        store.find_plan(prefix)


def test_an_ambiguous_id_lists_the_plans(tmp_path: Path) -> None:
    plans = [make_plan(stages=stages) for stages in range(2000)]
    groups: dict[str, list[int]] = {}
    for number, plan in enumerate(plans):
        groups.setdefault(plan.plan_id[:4], []).append(number)
    prefix, numbers = next((prefix, numbers) for prefix, numbers in groups.items() if len(numbers) > 1)
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        for number in numbers:
            store.add_trial(study, make_trial(number, plans[number]))
        with pytest.raises(InputError, match=f"{len(numbers)} plans start with '{prefix}'"):
            store.find_plan(prefix)
