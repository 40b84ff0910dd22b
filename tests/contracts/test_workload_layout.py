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
from mktune.graph.workload import Workload, workload

LAYOUTS = {
    ("glm52_attention_prefix", 1, "ue8m0"): "922466a55d30fa9ad46f2ec0151f1511a392e524a960d0c65a083c01e55d7d53",
    ("glm52_attention_prefix", 1, "fp32"): "ec85d86777292741a19771248d4921616a7c4fa160c2f7280ffc417dded6e08d",
}
"""Workload, contract, scale format → sha256 over name, dtype, dimensions and kind of every tensor, and who uses it."""


def layout(found: Workload) -> str:
    graph = found.graph
    tensors = sorted(astuple(spec) for spec in graph.tensors.values())
    ports = sorted(
        (call.name, port, spec.dtype, spec.dims)
        for call in graph.calls.values()
        for port, spec in call.op.ports.items()
    )
    return hashlib.sha256(json.dumps([tensors, ports]).encode()).hexdigest()


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(workloads.__path__)])
def test_a_layout_is_that_of_its_contract(name: str) -> None:
    for scale_format in workload(name).scale_formats:
        found = workload(name, scale_format)
        pinned = LAYOUTS.get((name, found.contract, scale_format))
        assert pinned == layout(found), f"a tensor of {scale_format} changed: it is another contract"


def test_no_two_scale_formats_share_a_layout() -> None:
    assert len(set(LAYOUTS.values())) == len(LAYOUTS)
