"""Several GPUs of one host: which ones are alike, each with a worker process of its own, found by its UUID."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_bench import H200, PROBLEM, Budget, space_of, study_of
from fake_device import FakeDevice
from fake_host import SETTINGS
from waiting import LIMIT_S

from mktune.backends.cuda import CudaBackend
from mktune.errors import InputError, SetupError
from mktune.executors import discovery
from mktune.measure.cuda_bench import PROCESSES
from mktune.search import tune
from mktune.shape import Shape
from mktune.store import Store
from mktune.trial import ALONE, Status

VISIBLE = [
    replace(H200, uuid="GPU-a"),
    replace(H200, uuid="GPU-b"),
    replace(H200, name="NVIDIA A10", sms=72, uuid="GPU-c"),
    replace(H200, uuid="GPU-d"),
]


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that shows three GPUs of one kind and one of another."""
    monkeypatch.setattr(discovery, "find_device", lambda index=0: VISIBLE[index])
    monkeypatch.setattr(discovery, "device_count", lambda: len(VISIBLE))


@pytest.mark.usefixtures("four_gpus")
def test_all_gpus_of_the_first_ones_kind_are_beside_it() -> None:
    first = CudaBackend()
    assert [backend.device.uuid for backend in first.beside(None)] == ["GPU-b", "GPU-d"]
    assert [backend.device.uuid for backend in first.beside(1)] == ["GPU-b"]
    assert first.beside(0) == []
    assert [backend.device.uuid for backend in CudaBackend(3).beside(None)] == ["GPU-a", "GPU-b"]
    with pytest.raises(InputError, match="5 GPUs are asked for, and 3 NVIDIA H200 are visible here"):
        first.beside(4)


@pytest.mark.usefixtures("four_gpus")
def test_benches_side_by_side_compile_once() -> None:
    first, second = CudaBackend(), CudaBackend(1)
    with first.open(PROBLEM) as bench, second.open_beside(bench) as other:
        assert other.compiler is bench.compiler
        assert other.problem == bench.problem
        assert other._worker is not bench._worker


@pytest.mark.usefixtures("four_gpus")
def test_cells_of_a_grid_share_the_processes_of_every_gpu_and_one_set_of_compilers() -> None:
    first, second = CudaBackend(), CudaBackend(1)
    other_cell = replace(PROBLEM, shape=Shape.from_m(32, 8192))
    with first.kept(), second.kept():
        made = []
        for problem in (PROBLEM, other_cell):
            with first.open(problem) as bench, second.open_beside(bench) as other:
                made.append((bench._worker, other._worker, bench.compiler, other.compiler))
                assert other.problem == problem
        assert made[0] == made[1]
        bench_worker, other_worker, compiler, others_compiler = made[0]
        assert bench_worker is not other_worker
        assert compiler is others_compiler
        with first.open(replace(PROBLEM, seed=1)) as bench, second.open_beside(bench) as other:
            assert other._worker is not other_worker
            assert other.compiler is bench.compiler
    with first.open(PROBLEM) as bench, second.open_beside(bench) as other:
        assert other._worker is not other_worker


def test_a_worker_process_finds_its_gpu_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process knows as number 0 may be number 1 here."""
    uuids = [bytes(range(16)), bytes(range(16, 32))]

    class Uuid:
        def __init__(self, data: bytes) -> None:
            self.bytes = data

    answers: dict[str, Callable[..., Any]] = {
        "cuInit": lambda flags: None,
        "cuDeviceGetCount": lambda: 2,
        "cuDeviceGet": lambda index: index,
        "cuDeviceGetUuid": lambda handle: Uuid(uuids[handle]),
    }
    monkeypatch.setattr(discovery, "call", lambda name, *args: answers[name](*args))
    assert discovery.index_of("GPU-10111213-1415-1617-1819-1a1b1c1d1e1f") == 1
    assert discovery.index_of("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") == 0
    with pytest.raises(SetupError, match="is not visible to this process"):
        discovery.index_of("GPU-ffffffff-0000-0000-0000-000000000000")


class FakeGpu(FakeDevice):
    """One of several, each with its lock."""

    def __init__(self, uuid: str) -> None:
        super().__init__(deadline=LIMIT_S)  # none of its candidates hangs
        self.device = replace(H200, uuid=uuid)


def test_each_gpu_has_one_process_for_the_whole_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real worker processes: through ops alone, the search and promotion, on whichever thread each is asked."""
    monkeypatch.setenv(SETTINGS, json.dumps({"salt": "0", "fates": False}))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    backends = [FakeGpu("GPU-a"), FakeGpu("GPU-b")]
    space = space_of()
    with Store.open(tmp_path / "x.db") as store:
        study = study_of(store, space, sampler="staged")
        result = tune(space, backends[0], store, study, Budget(16), others=backends[1:])
        trials = [trial for each in store.studies() for trial in store.trials(each)]
    assert {trial.outcome.status for trial in trials} == {Status.OK}
    assert set(Counter(trial.gpu for trial in result.trials)) == {"GPU-a", "GPU-b"}
    assert set(Counter(trial.gpu for trial in trials if trial.source == ALONE)) == {"GPU-a", "GPU-b"}
    first, second = (backend.benches[0]._worker.starts for backend in backends)
    assert second == 1
    assert first == 1 + PROCESSES  # promotion begins afresh
    assert result.winner is not None
