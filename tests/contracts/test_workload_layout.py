"""The contract version stands for the layout of every tensor: who changes one must change the version, and tune again.

A look-up compares contract version and scale format, not each tensor. That is as exact only while this holds.
"""

from __future__ import annotations

import hashlib
import json
import pkgutil
from dataclasses import astuple

import pytest

from mktune.graph import workloads
from mktune.graph.workload import workload

LAYOUTS = {
    ("glm52_attention_prefix", 1, "fp32"): "ec85d86777292741a19771248d4921616a7c4fa160c2f7280ffc417dded6e08d",
}
"""Workload, contract, scale format → sha256 over name, dtype, dimensions and kind of every tensor, and who uses it."""


def layout(name: str) -> str:
    graph = workload(name).graph
    tensors = sorted(astuple(spec) for spec in graph.tensors.values())
    ports = sorted(
        (call.name, port, spec.dtype, spec.dims)
        for call in graph.calls.values()
        for port, spec in call.op.ports.items()
    )
    return hashlib.sha256(json.dumps([tensors, ports]).encode()).hexdigest()


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(workloads.__path__)])
def test_a_layout_is_that_of_its_contract(name: str) -> None:
    found = workload(name)
    pinned = LAYOUTS.get((name, found.contract, found.scale_format))
    assert pinned == layout(name), "a tensor changed: it is another contract"
