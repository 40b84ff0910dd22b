"""Importing the look-up is light: no CUDA, no torch, no tuner; it works where none of them can be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from stored_values import WORKLOAD, make_winner

from mktune.jit.fingerprint import kernels_fingerprint
from mktune.store import Store

_HEAVY = ("torch", "cuda", "numpy", "optuna", "typer", "rich", "sqlalchemy", "alembic", "yaml", "psycopg")


def _python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _loaded(code: str) -> set[str]:
    return set(
        json.loads(_python(f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))").splitlines()[-1])
    )


def test_importing_and_looking_up_load_nothing_heavy(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        store.put_winner(None, make_winner(kernels=kernels_fingerprint(WORKLOAD, ("A0", "B0"))))
    look = f"from mktune.runtime import PlanBook; assert PlanBook.open({str(tmp_path / 'x.db')!r})"
    look += f".lookup({WORKLOAD!r}, m=16, kv=8192, gpu='NVIDIA H200')"
    for code in ("import mktune, mktune.runtime", look):
        assert {name.partition(".")[0] for name in _loaded(code)} & set(_HEAVY) == set()


def test_a_look_up_works_where_nothing_heavy_can_be_imported(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        store.put_winner(None, make_winner(kernels=kernels_fingerprint(WORKLOAD, ("A0", "B0"))))
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {_HEAVY!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from mktune.runtime import PlanBook
print(PlanBook.open(sys.argv[1]).get({WORKLOAD!r}, m=16, kv=100, gpu="h200").plan.plan_id)
"""
    assert _python(code, str(tmp_path / "x.db")).strip() == make_winner().plan.plan_id


def test_the_store_loads_no_torch_and_no_cuda() -> None:
    loaded = {name.partition(".")[0] for name in _loaded("import mktune.store")}
    assert loaded & {"torch", "cuda", "numpy", "optuna", "typer", "rich"} == set()


def test_importing_beside_torch_starts_no_cuda() -> None:
    torch = pytest.importorskip("torch")
    del torch
    code = "import mktune, mktune.store, mktune.runtime, torch; assert not torch.cuda.is_initialized(); print('no')"
    assert _python(code).strip() == "no"


def test_an_unknown_name_is_an_attribute_error_and_load_is_lazy() -> None:
    import mktune.runtime

    with pytest.raises(AttributeError, match="nothing"):
        _ = mktune.runtime.nothing
    assert "mktune.runtime.replay" not in _loaded("import mktune.runtime")
