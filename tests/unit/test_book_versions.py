"""What is checked and reported: a field that differs is a miss with its reason, or a marked hit where accepted."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from stored_values import H200, make_plan
from test_book import BUILD, ask, plan_of, reason, served

from mktune.device import Device
from mktune.errors import InputError
from mktune.runtime import Hit, Miss, PlanBook, log, versions
from mktune.trial import Winner


@pytest.fixture(autouse=True)
def _fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_said", set())


def _packaged(version: str, span_us: float = 10.0, **fingerprint: Any) -> Winner:
    winner = served(span_us=span_us)
    packages = (("deep-gemm", version),)
    return replace(winner, fingerprint=replace(winner.fingerprint, packages=packages, **fingerprint))


@pytest.fixture
def deep_gemm(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Package → the version that is installed."""
    found = {"deep-gemm": "2.2.0"}
    monkeypatch.setattr(versions, "installed", lambda name: found.get(name, ""))
    return found


OTHERS: dict[str, tuple[Winner, Device, str, str]] = {
    "kernels": (served(kernels="f" * 64), H200, "build", f"kernels {'f' * 12} (here {BUILD[:12]})"),
    "driver": (served(), replace(H200, driver="590.1"), "driver", "driver 580.95 (here 590.1)"),
    "cuda": (served(), replace(H200, cuda="13.1"), "cuda", "CUDA 13.0 (here 13.1)"),
    "packages": (_packaged("2.1.0"), H200, "packages", "deep-gemm 2.1.0 (here 2.2.0)"),
}


@pytest.mark.parametrize("field", sorted(OTHERS))
def test_each_field_that_differs_is_a_miss_or_a_marked_hit_where_it_is_accepted(
    field: str, deep_gemm: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    winner, device, why, words = OTHERS[field]
    assert set(OTHERS) == set(versions.CHECKED)
    missed = ask(PlanBook.of([winner]), gpu=device)
    assert reason(missed) == why
    for other in set(versions.CHECKED) - {field}:
        assert reason(ask(PlanBook.of([winner], accept=[other]), gpu=device)) == why
    assert caplog.records == []
    book = PlanBook.of([winner], accept=field)
    for m in (16, 16, 12):
        found = ask(book, m=m, gpu=device)
        if m == 16:
            assert isinstance(found, Hit)
            assert found.differs == (words,)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert words in warned[0].message


def test_several_fields_are_all_named_and_must_all_be_accepted() -> None:
    device = replace(H200, driver="590.1", cuda="13.1")
    assert reason(ask(PlanBook.of([served()]), gpu=device)) == "driver"
    assert reason(ask(PlanBook.of([served()], accept=["driver"]), gpu=device)) == "cuda"
    found = ask(PlanBook.of([served()], accept=["driver", "cuda"]), gpu=device)
    assert isinstance(found, Hit)
    assert found.differs == ("driver 580.95 (here 590.1)", "CUDA 13.0 (here 13.1)")
    assert ask(PlanBook.of([served()], accept=versions.CHECKED), gpu=H200).differs == ()


def test_a_name_alone_asks_about_no_machine() -> None:
    assert plan_of(ask(PlanBook.of([served()]), gpu="NVIDIA H200")) == make_plan()


@pytest.mark.parametrize("text", ["", "unknown", "N/A", "none"])
def test_what_is_not_known_equals_nothing_not_even_itself(text: str) -> None:
    winner = served()
    unknown = replace(winner, fingerprint=replace(winner.fingerprint, driver=text))
    assert reason(ask(PlanBook.of([unknown]), gpu=H200)) == "driver"
    assert reason(ask(PlanBook.of([winner]), gpu=replace(H200, driver=text))) == "driver"
    assert reason(ask(PlanBook.of([unknown]), gpu=replace(H200, driver=text))) == "driver"
    assert reason(ask(PlanBook.of([served(kernels=text)]))) == "build"


def test_a_gpu_that_is_not_known_equals_nothing() -> None:
    for name in ("unknown", "none"):
        nameless = served(device=replace(H200, name=name))
        assert reason(ask(PlanBook.of([nameless]), gpu=name)) == "device"
    blank = replace(H200, sms=0)
    assert reason(ask(PlanBook.of([served(device=blank)]), gpu=blank)) == "device"
    assert reason(ask(PlanBook.of([served()]), gpu=replace(H200, arch=""))) == "device"


def test_a_package_that_is_not_installed_is_a_miss(deep_gemm: dict[str, str]) -> None:
    deep_gemm.clear()
    found = ask(PlanBook.of([_packaged("2.1.0")]))
    assert reason(found) == "packages"
    assert isinstance(found, Miss)
    assert "deep-gemm 2.1.0 (here not installed)" in found.message


def test_the_nearest_version_is_by_number_not_by_letters(deep_gemm: dict[str, str]) -> None:
    stored = [_packaged(version, span) for version, span in (("2.9.0", 1.0), ("2.10.0", 9.0), ("3.0.0", 0.5))]
    for here, nearest in (("2.11.0", "2.10.0"), ("2.8.5", "2.9.0"), ("2.10.1", "2.10.0"), ("4.0", "3.0.0")):
        deep_gemm["deep-gemm"] = here
        for order in (stored, stored[::-1]):
            assert reason(ask(PlanBook.of(order))) == "packages"
            found = ask(PlanBook.of(order, accept=["packages"]))
            assert isinstance(found, Hit)
            assert found.differs == (f"deep-gemm {nearest} (here {here})",)


def test_accepting_more_changes_no_answer_that_needs_nothing_accepted() -> None:
    exact = served(make_plan(m=32, m_range=(9, 32)))
    nearer = served(make_plan(m=16, m_range=(9, 16)), 1.0, kernels="f" * 64)
    for accept in ((), versions.CHECKED):
        assert plan_of(ask(PlanBook.of([nearer, exact], accept=accept))) == exact.plan
    assert plan_of(ask(PlanBook.of([nearer], accept=["kernels"]))) == nearer.plan


def test_any_build_accepts_kernels_and_nothing_else() -> None:
    book = PlanBook.of([served(kernels="f" * 64)], any_build=True)
    assert isinstance(ask(book, gpu=H200), Hit)
    assert reason(ask(book, gpu=replace(H200, driver="1"))) == "driver"


@pytest.mark.parametrize("field", ["gpu", "contract", "", "Driver", "schema"])
def test_a_field_of_the_key_cannot_be_accepted(field: str) -> None:
    with pytest.raises(InputError, match="kernels, driver, cuda, packages"):
        PlanBook.of([], accept=[field])


def test_a_model_depends_on_none_of_them() -> None:
    model = served(backend="sim", kernels="")
    found = ask(PlanBook.of([model]), gpu=replace(H200, driver="1"), allow_simulated=True)
    assert isinstance(found, Hit)
    assert found.differs == ()


@pytest.mark.parametrize("policy", [{"cold": False}, {"inputs": "zeros"}, {"inputs": "unknown"}])
def test_a_plan_measured_under_another_policy_is_a_miss(policy: dict[str, Any]) -> None:
    winner = served()
    measurement = replace(winner.measurement, policy=replace(winner.measurement.policy, **policy))
    other = replace(winner, measurement=measurement)
    assert reason(ask(PlanBook.of([other]))) == "policy"
    assert reason(ask(PlanBook.of([other], accept=versions.CHECKED))) == "policy"
    assert plan_of(ask(PlanBook.of([other, served(make_plan(stages=9))]))) == make_plan(stages=9)


def test_a_workload_that_this_mktune_does_not_have_is_a_miss() -> None:
    stranger = served(replace(make_plan(), workload="stranger"))
    for accept in ((), versions.CHECKED):
        found = PlanBook.of([stranger], accept=accept).lookup("stranger", m=16, kv=8192, gpu="H200")
        assert reason(found) == "workload"
