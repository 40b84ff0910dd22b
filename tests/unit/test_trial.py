"""Trials and measurements: plain JSON and back, and what marks a number as simulated."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from hypothesis import given
from hypothesis import strategies as st
from stored_values import make_winner

from mktune.records import measurement_from_dict, winner_from_dict, winner_to_dict
from mktune.trial import Measurement, Policy, Status

_spans = st.floats(min_value=1e-3, max_value=1e6)
_policies = st.builds(
    Policy,
    backend=st.sampled_from(["cuda", "sim"]),
    cold=st.booleans(),
    layers=st.integers(1, 99),
    shared_kv=st.booleans(),
    inputs=st.sampled_from(["random", "zeros"]),
)
_states = st.dictionaries(st.text(min_size=1), _spans, max_size=5).map(lambda found: tuple(sorted(found.items())))
_measurements = st.builds(
    Measurement, _spans, _spans, _spans, st.lists(_spans, max_size=20).map(tuple), _policies, _states
)


@given(_measurements)
def test_a_measurement_survives_json(measurement: Measurement) -> None:
    text = json.dumps(measurement.to_dict(), allow_nan=False)
    assert measurement_from_dict(json.loads(text)) == measurement


def test_every_field_is_in_the_json() -> None:
    measurement = Measurement(10.0, 9.9, 10.1, (10.0,), Policy("cuda"))
    assert set(measurement.to_dict()) == {field.name for field in fields(Measurement)}
    assert set(measurement.to_dict()["policy"]) == {field.name for field in fields(Policy)}


def test_only_the_model_is_simulated() -> None:
    assert Policy("sim").simulated
    assert not Policy("cuda").simulated


def test_the_status_words_are_the_documented_ones() -> None:
    failures = "compile_error build_error launch_error illegal_access out_of_memory hang wrong_result crash lost"
    documented = f"ok pruned noisy {failures}"
    assert [status.value for status in Status] == documented.split()
    assert f"{Status.HANG}" == "hang"


def test_packages_are_in_the_json_of_plans_that_run_any() -> None:
    winner = make_winner()
    assert "packages" not in winner_to_dict(winner)["fingerprint"]
    packed = replace(winner, fingerprint=replace(winner.fingerprint, packages=(("deep_gemm", "2.1.0"),)))
    for known in (winner, packed):
        assert winner_from_dict(json.loads(json.dumps(winner_to_dict(known)))) == known
