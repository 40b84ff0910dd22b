"""Look-up: the plan whose stated range holds the request, or the reason why there is none; never a guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_values import B300, H200, SHAPE, WORKLOAD, make_plan, make_winner

from mktune.device import Device
from mktune.errors import InputError, PlanNotFound
from mktune.jit.fingerprint import kernels_fingerprint
from mktune.plan import Plan
from mktune.runtime import Hit, Miss, PlanBook, RequestError
from mktune.runtime.result import REASONS
from mktune.shape import Shape
from mktune.trial import Winner

BUILD = kernels_fingerprint(WORKLOAD, ("A0", "B0"))


def served(plan: Plan | None = None, span_us: float = 10.0, **changes: Any) -> Winner:
    """A winner measured with this package's kernels."""
    return make_winner(plan, span_us, **({"kernels": BUILD} | changes))


def ask(book: PlanBook, m: Any = 16, kv: Any = 8192, gpu: Any = "NVIDIA H200", **more: Any) -> Hit | Miss:
    return book.lookup(WORKLOAD, m=m, kv=kv, gpu=gpu, **more)


def reason(found: Hit | Miss) -> str:
    assert isinstance(found, Miss)
    assert not found
    assert found.reason in REASONS
    assert found.message
    assert "\n" not in found.message
    return found.reason


def plan_of(found: Hit | Miss) -> Plan:
    assert isinstance(found, Hit), found
    assert found
    return found.plan


SIXTEEN = PlanBook.of([served()])


@pytest.mark.parametrize(
    "gpu", ["NVIDIA H200", "NVIDIA_H200", " nvidia h200 ", "nvidia  H200", "H200", H200, replace(H200, uuid="x")]
)
def test_names_of_the_same_gpu_hit(gpu: str | Device) -> None:
    assert plan_of(ask(SIXTEEN, gpu=gpu)) == make_plan()


@pytest.mark.parametrize(
    "gpu",
    [
        "NVIDIA H200 NVL",
        "NVIDIA H20",
        "NVIDIA H100",
        "NVIDIA H2000",
        "NVIDIA H200 MIG 1g.18gb",
        "GeForce",
        B300,
        replace(H200, sms=16),
        replace(H200, arch="sm_100a"),
    ],
    ids=str,
)
def test_other_gpus_miss(gpu: str | Device) -> None:
    assert reason(ask(SIXTEEN, gpu=gpu)) == "device"


def test_a_miss_names_the_gpu_that_the_ops_are_stored_for() -> None:
    first = served(make_plan(ops=("A0",)), device=B300)
    book = PlanBook.of([served(), first])
    for gpu, words in (("NVIDIA H20", "is stored for NVIDIA B300"), ("NVIDIA H200", "for NVIDIA B300 these ops are")):
        found = ask(book, gpu=gpu, ops=("A0",))
        assert isinstance(found, Miss)
        assert words in found.message
    found = ask(book, gpu="NVIDIA H20", ops=("D0",))
    assert isinstance(found, Miss)
    assert found.message.endswith(": NVIDIA B300, NVIDIA H200")


def test_an_alias_is_explicit_labelled_and_changes_nothing_else() -> None:
    winners = [served()]
    book = PlanBook.of(winners, aliases={"nvidia_h200_nvl": "NVIDIA H200"})
    found = ask(book, gpu="NVIDIA H200 NVL")
    assert isinstance(found, Hit)
    assert found.alias == "NVIDIA H200 NVL"
    for name in ("NVIDIA H200", "NVIDIA_H200", " nvidia h200 "):
        assert ask(book, gpu=name) == ask(PlanBook.of(winners), gpu=name)
    assert reason(ask(book, gpu="NVIDIA H20")) == "device"
    own = PlanBook.of([*winners, served(make_plan(stages=9), device=replace(H200, name="NVIDIA H200 NVL"))])
    assert plan_of(ask(own, gpu="NVIDIA H200 NVL")).op["B0"].config != make_plan().op["B0"].config


def test_two_kinds_of_one_name_need_a_device() -> None:
    book = PlanBook.of([served(), served(make_plan(stages=9), device=replace(H200, sms=66))])
    assert reason(ask(book)) == "device"
    assert plan_of(ask(book, gpu=H200)) == make_plan()
    assert plan_of(ask(book, gpu=replace(H200, sms=66))) == make_plan(stages=9)


EIGHT = PlanBook.of([served(make_plan(m=8))])


@pytest.mark.parametrize("m", [1, 2, 7, 9, 16, 24, 256, 257, 2048, 2**31 - 1])
def test_m_outside_the_range_is_a_miss(m: int) -> None:
    assert plan_of(ask(EIGHT, m=8)) == make_plan(m=8)
    assert reason(ask(EIGHT, m=m)) == "shape"


@pytest.mark.parametrize("bad", [0, -1, True, False, 8.0, "8", None, 2**31, 2**40, [8], 8j])
@pytest.mark.parametrize("name", ["m", "kv", "tokens_per_request"])
def test_what_is_no_size_is_an_error_also_after_the_right_answer_was_given(name: str, bad: Any) -> None:
    if (name, bad) == ("tokens_per_request", None):
        return
    right = {"m": 8, "kv": 8192, "tokens_per_request": 8}
    assert ask(EIGHT, **right)
    with pytest.raises(ValueError, match=name) as caught:
        ask(EIGHT, **(right | {name: bad}))
    assert isinstance(caught.value, RequestError | InputError)


@pytest.mark.parametrize(
    "request_",
    [
        {"workload": 1},
        {"gpu": ""},
        {"gpu": None},
        {"gpu": 1},
        {"ops": "A0"},
        {"ops": 5},
        {"ops": iter(())},
        {"ops": ()},
        {"ops": [1]},
        {"shape": (2, 8, 8192)},
        {"shape": SHAPE, "m": 16},
        {"m": 16, "kv": 8192, "tokens_per_request": 3},
        {"m": 16, "kv": 4, "tokens_per_request": 8},
        {"m": 16},
        {},
    ],
    ids=lambda asked: " ".join(f"{name}={type(value).__name__}" for name, value in asked.items()),
)
def test_what_is_no_request_is_an_error(request_: dict[str, Any]) -> None:
    sizes = {} if {"m", "shape"} & set(request_) or not request_ else {"m": 8, "kv": 8192}
    with pytest.raises(RequestError):
        EIGHT.lookup(**({"workload": WORKLOAD, "gpu": "H200"} | sizes | request_))


def test_the_plan_whose_range_holds_m_is_taken() -> None:
    book = PlanBook.of([served(make_plan(m=16, m_range=(9, 16))), served(make_plan(m=32, m_range=(17, 32)))])
    assert plan_of(ask(book, m=24)).shape.m == 32
    assert plan_of(ask(book, m=16)).shape.m == 16
    assert reason(ask(book, m=40)) == "shape"
    assert reason(ask(book, m=8)) == "shape"


def test_the_smallest_cover_then_the_nearest_kv() -> None:
    sizes = [(m, kv) for m in (16, 32, 64) for kv in (4096, 8192, 16384)]
    book = PlanBook.of([served(make_plan(m, kv, m_range=(8, m))) for m, kv in sizes])
    for m, kv, expected in [
        (16, 4096, (16, 4096)),
        (16, 4097, (16, 8192)),
        (24, 1024, (32, 4096)),
        (40, 9000, (64, 16384)),
        (8, 8192, (16, 8192)),
    ]:
        plan = plan_of(ask(book, m=m, kv=kv))
        assert (plan.shape.m, plan.shape.kv) == expected
    assert reason(ask(book, kv=16385)) == "shape"


def test_a_plan_tuned_for_fewer_rows_or_less_context_gives_way_to_one_that_covers() -> None:
    rows = [served(make_plan(16, m_range=(8, 40))), served(make_plan(64, m_range=(8, 64)))]
    assert plan_of(ask(PlanBook.of(rows), m=24)).shape.m == 64  # 16 is nearer
    assert plan_of(ask(PlanBook.of(rows[:1]), m=24)).shape.m == 16
    ranges = [(4096, (8, 16384)), (65536, (8, 65536))]
    contexts = [served(replace(make_plan(16, kv), kv_range=ends)) for kv, ends in ranges]
    assert plan_of(ask(PlanBook.of(contexts), kv=8192)).shape.kv == 65536  # 4096 is nearer


@given(st.integers(1, 256), st.integers(8, 20000), st.sampled_from([1, 2, 4, 8]))
def test_a_hit_always_holds_the_request_and_a_miss_means_that_none_does(m: int, kv: int, tokens: int) -> None:
    if m % tokens:
        return
    found = ask(_MANY, m=m, kv=kv, tokens_per_request=tokens)
    fits = [
        winner.plan
        for winner in _MANY.winners
        if winner.plan.shape.tokens_per_request == tokens
        and winner.plan.m_range[0] <= m <= winner.plan.m_range[1]
        and winner.plan.kv_range[0] <= kv <= winner.plan.kv_range[1]
    ]
    if not fits:
        assert reason(found) == "shape"
        return
    plan = plan_of(found)
    assert plan in fits
    covering = [other.shape.m for other in fits if other.shape.m >= m]
    if covering:
        assert plan.shape.m == min(covering)


_MANY = PlanBook.of(
    [
        served(make_plan(m, kv, m_range=(max(1, m - spread), min(256, m + spread)), kv_range=(1 if m % 3 else 64, kv)))
        for m, spread in [(1, 0), (4, 2), (8, 7), (16, 8), (24, 1), (100, 60), (256, 100)]
        for kv in (512, 4096, 16384)
    ]
)


def test_tokens_per_request_are_equal() -> None:
    assert reason(ask(SIXTEEN, tokens_per_request=4)) == "shape"
    assert plan_of(ask(SIXTEEN, tokens_per_request=8)) == make_plan()
    assert plan_of(SIXTEEN.lookup(WORKLOAD, Shape(2, 8, 100), gpu=H200)) == make_plan()
    assert reason(SIXTEEN.lookup(WORKLOAD, Shape(4, 4, 100), gpu=H200)) == "shape"


def test_contract_and_scale_format_are_part_of_the_key() -> None:
    old, scaled = replace(make_plan(), contract=2), replace(make_plan(), scale_format="ue8m0")
    assert reason(ask(PlanBook.of([served(old)]))) == "contract"
    assert reason(ask(PlanBook.of([served(scaled)]))) == "layout"
    assert plan_of(ask(PlanBook.of([served(scaled), served(old), served()]))) == make_plan()


def test_ops_are_those_asked_for_or_the_most_that_are_stored() -> None:
    norm = make_plan(ops=("A0",), stages=4)
    norm_build = kernels_fingerprint(WORKLOAD, ("A0",))
    book = PlanBook.of([served(norm, 1.0, kernels=norm_build), served()])
    assert plan_of(ask(book)) == make_plan()
    assert plan_of(ask(book, ops=["B0", "A0"])) == make_plan()
    assert plan_of(ask(book, ops=("A0",))) == norm
    found = ask(book, ops=("A0", "C0"))
    assert reason(found) == "ops"
    assert isinstance(found, Miss)
    assert "A0,B0" in found.message


def test_workload_and_empty_book_are_reasons() -> None:
    assert reason(SIXTEEN.lookup("other", m=16, kv=8192, gpu="H200")) == "workload"
    assert reason(ask(PlanBook.of([]))) == "store"


def test_a_simulated_plan_is_served_only_when_asked_and_after_measured_ones() -> None:
    model = make_winner(make_plan(stages=9), 1.0, backend="sim", kernels="")
    book = PlanBook.of([model])
    assert reason(ask(book)) == "simulated"
    found = ask(book, allow_simulated=True)
    assert isinstance(found, Hit)
    assert found.simulated
    both = PlanBook.of([model, served()])
    assert plan_of(ask(both)) == make_plan()
    assert plan_of(ask(both, allow_simulated=True)) == make_plan()


def test_other_kernel_sources_are_a_miss_unless_any_build_will_do() -> None:
    winner = served(kernels="f" * 64)
    assert reason(ask(PlanBook.of([winner]))) == "build"
    found = ask(PlanBook.of([winner], any_build=True))
    assert isinstance(found, Hit)
    assert found.differs == (f"kernels {'f' * 12} (here {BUILD[:12]})",)
    assert plan_of(ask(PlanBook.of([winner, served(make_plan(stages=9))]))) == make_plan(stages=9)


def test_one_byte_of_a_kernel_counts_and_a_readme_does_not(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    from mktune import resources

    copy = tmp_path / "kernels"
    shutil.copytree(resources.kernels(), copy)
    monkeypatch.setattr(resources, "kernels", lambda: copy)
    (copy / "README.md").write_text("a note")
    (copy / "standalone" / "another_op.cu").write_text("// of another op")
    assert plan_of(ask(PlanBook.of([served()]))) == make_plan()
    with (copy / "ops" / "add_rmsnorm_quant.cuh").open("a") as file:
        file.write("\n")
    assert reason(ask(PlanBook.of([served()]))) == "build"


def test_get_raises_with_the_reason() -> None:
    assert SIXTEEN.get(WORKLOAD, m=16, kv=8192, gpu="H200").plan == make_plan()
    with pytest.raises(PlanNotFound) as caught:
        SIXTEEN.get(WORKLOAD, m=17, kv=8192, gpu="H200")
    assert caught.value.reason == "shape"
    assert caught.value.exit_code == 5


def test_repeated_answers_are_the_same_object_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mktune.runtime.book._REMEMBERED", 10)
    book = PlanBook.of([served()])
    assert ask(book) is ask(book)
    for kv in range(8, 108):
        ask(book, kv=kv)
    assert len(book._snapshot.answers) <= 10
