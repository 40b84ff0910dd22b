"""How the example engine finds its plans: the book's where it has one, else the serial plan, after one warning.

What it does on a GPU: tests/gpu/test_engine_captures.py.
"""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from examples.decode_loop import WORKLOAD, StepPlans
from stored_values import H200, make_winner
from waiting import LIMIT_S

from mktune.graph.builtin import make_plan
from mktune.jit.fingerprint import kernels_fingerprint
from mktune.runtime import PlanBook
from mktune.shape import Shape
from mktune.validity import check

KV = 1024
TUNED = Shape(16, 1, KV)


def plan(shape=TUNED, mode="branches+pdl"):
    return make_plan(WORKLOAD, None, shape, H200.arch, mode)


def book():
    return PlanBook.of([make_winner(plan(), kernels=kernels_fingerprint(WORKLOAD.name))])


def test_a_hit_is_the_books_plan_also_for_fewer_rows_and_less_context(caplog):
    plans = StepPlans(book(), H200)
    for shape in (TUNED, Shape(9, 1, KV), Shape(16, 1, 300)):
        assert plans.find(shape) == plan()
    assert plans.missed == []
    assert caplog.records == []


@pytest.mark.parametrize("shape", [Shape(8, 1, KV), Shape(17, 1, KV), Shape(16, 1, KV + 1), Shape(2, 8, KV)])
def test_a_miss_is_the_serial_plan_of_that_shape(shape):
    found = StepPlans(book(), H200).find(shape)
    assert found == plan(shape, "serial")
    assert found.shape == shape
    assert check(found, H200) == []


def test_misses_are_warned_of_once_with_the_first_ones_reason(caplog):
    plans = StepPlans(book(), H200)
    missed = [Shape(4, 1, KV), Shape(200, 1, KV), Shape(4, 1, KV)]
    for shape in (TUNED, *missed, TUNED):
        plans.find(shape)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the serial plan" in record.getMessage()
    assert "no plan for M=4 KV=1024" in record.getMessage()
    assert plans.missed == missed


def test_an_empty_book_and_another_gpu_are_misses_too(caplog):
    other = StepPlans(book(), H200.__class__("NVIDIA B300", "sm_103a", 148, 232448, 126 << 20, 8e12))
    assert other.find(TUNED) == make_plan(WORKLOAD, None, TUNED, "sm_103a", "serial")
    assert StepPlans(PlanBook.of([]), H200).find(TUNED) == plan(mode="serial")
    assert len(caplog.records) == 2  # one for each loop


def test_finding_plans_needs_neither_torch_nor_cuda():
    code = """
import sys
sys.modules["torch"] = sys.modules["cuda"] = None
from examples.decode_loop import StepPlans
from mktune.device import Device
from mktune.runtime import PlanBook
from mktune.shape import Shape
gpu = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)
print(StepPlans(PlanBook.open(), gpu).find(Shape(16, 1, 1024)).shape.m)
"""
    tests = Path(__file__).resolve().parents[1]
    path = [str(tests), *sys.path]
    run = f"import sys; sys.path[:] = {path!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == "16\n", done.stderr
    assert done.stderr.count("\n") == 1  # the warning, which Python prints where nobody configured logging
