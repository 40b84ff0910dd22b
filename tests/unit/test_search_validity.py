"""What a search measures has passed the check; what has not is counted and never built."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_bench import H200, FakeBackend, search, space_of

from mktune.space.draft import Draft
from mktune.store import Store
from mktune.validity import check


@pytest.mark.parametrize("sampler", ["random", "local", "tpe"])
def test_no_plan_that_the_check_refuses_is_prepared_measured_or_stored(
    tmp_path: Path, sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A space that offers any kernel to read before its wait what others make.
    monkeypatch.setattr(Draft, "complete_at_start", lambda draft, kernel: set(draft.kernels))
    backend = FakeBackend()
    with Store.open(tmp_path / "x.db") as store:
        result = search(store, backend, 60, space=space_of(None), sampler=sampler)
        (study,) = store.studies()
        stored = [trial.plan for trial in store.trials(study)]
    assert result.invalid > 0 or sampler == "local"  # which changes a valid plan
    assert len(backend.bench.measured) == len(stored) == 60
    for plan in backend.bench.measured:
        assert check(plan, H200) == []
    valid = {plan.plan_id for plan in backend.bench.measured}
    assert {plan.plan_id for plan in stored} == valid
