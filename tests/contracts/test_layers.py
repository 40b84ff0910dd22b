"""Dependencies point one way, and each foreign package is used in its own room only. Read from the sources."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import mktune

_PACKAGE = Path(mktune.__file__).parent
_ROOMS = {path.name for path in _PACKAGE.iterdir() if (path / "__init__.py").exists()}

# Which rooms a room may import, besides itself and the values (the modules directly under mktune/).
_MAY_IMPORT: dict[str, set[str]] = {
    "graph": set(),
    "ops": {"graph"},
    "space": {"graph", "ops", "lowering", "validity"},
    "lowering": {"graph", "ops"},
    "validity": {"graph", "ops", "lowering"},
    "jit": {"graph", "ops", "lowering"},
    "backends": {"graph", "ops", "lowering", "validity", "jit"},
    "executors": {"graph", "ops", "lowering", "jit", "backends"},
    "measure": {"graph", "ops", "space", "validity", "lowering", "jit", "backends", "executors"},
    "search": {"graph", "ops", "space", "validity", "lowering", "jit", "backends", "executors", "measure", "store"},
    "store": set(),
    "runtime": {"graph", "ops", "validity", "lowering", "jit", "backends", "executors"},
    "cli": _ROOMS,
}

# Single files that may import more, each with its reason.
_EXCEPTIONS: dict[str, set[str]] = {
    "__main__.py": {"cli"},
    "graph/workloads/glm52_attention_prefix.py": {"ops"},  # a workload is made of ops
    "backends/cuda.py": {"executors", "measure"},  # a back end is how measuring is reached by name; nothing below asks
    "backends/sim.py": {"measure"},  # finalists are decided by the same rules as measured ones
    "backends/recorded.py": {"measure"},  # likewise
    "runtime/sources.py": {"store"},  # a PostgreSQL store is read through it, imported only then
}

_ONLY_IN: dict[str, tuple[str, ...]] = {
    "rich": ("cli/",),
    "typer": ("cli/",),
    "sqlalchemy": ("store/",),
    "alembic": ("store/",),
    "psycopg": (),
    "optuna": ("search/",),
    "matplotlib": ("cli/",),
    "scipy": (),
    "yaml": ("space/",),
    "pickle": (),
    "cloudpickle": (),
    "marshal": (),
    "shelve": (),
    "dill": (),
}

_FILES = sorted(path.relative_to(_PACKAGE).as_posix() for path in _PACKAGE.rglob("*.py") if "_data" not in path.parts)


@cache
def _tree(name: str) -> ast.Module:
    return ast.parse((_PACKAGE / name).read_text(encoding="utf-8"))


def _module(name: str) -> list[str]:
    """The dotted parts of a file's package."""
    return ["mktune", *name.split("/")[:-1]]


def _imports(name: str) -> list[str]:
    """Every module that a file imports anywhere, in functions too, except for type checkers only."""
    found: list[str] = []
    for node in _run_time_nodes(_tree(name)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _module(name)[: len(_module(name)) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{start}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            first = node.args[0] if node.args else None
            text = first.values[0] if isinstance(first, ast.JoinedStr) else first
            found += [text.value] if isinstance(text, ast.Constant) and isinstance(text.value, str) else []
    return found


def _run_time_nodes(node: ast.AST) -> list[ast.AST]:
    nodes = [node]
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            nodes += [found for other in child.orelse for found in _run_time_nodes(other)]
        else:
            nodes += _run_time_nodes(child)
    return nodes


def _rooms_imported(name: str) -> set[str]:
    parts = [module.split(".") for module in _imports(name)]
    return {part[1] for part in parts if part[0] == "mktune" and len(part) > 1 and part[1] in _ROOMS}


def test_every_room_has_its_rule() -> None:
    assert set(_MAY_IMPORT) == _ROOMS


@pytest.mark.parametrize("name", _FILES)
def test_rooms_import_only_what_lies_before_them(name: str) -> None:
    room = name.split("/")[0] if "/" in name else ""
    allowed = (_MAY_IMPORT[room] | {room} if room else set()) | _EXCEPTIONS.get(name, set())
    assert _rooms_imported(name) - allowed == set()


def test_every_exception_is_needed() -> None:
    for name, rooms in _EXCEPTIONS.items():
        assert rooms <= _rooms_imported(name), name


@pytest.mark.parametrize("name", _FILES)
def test_foreign_packages_stay_in_their_rooms(name: str) -> None:
    for module in _imports(name):
        places = _ONLY_IN.get(module.partition(".")[0])
        assert places is None or name.startswith(places), f"{name} imports {module}"


@pytest.mark.parametrize("name", _FILES)
def test_torch_is_never_imported_at_the_top(name: str) -> None:
    """Nor what comes with it or a GPU; numpy comes with the searches' own packages too."""
    top = [node for node in ast.iter_child_nodes(_tree(name)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in top if isinstance(node, ast.ImportFrom)}
    never = ("torch", "cuda") if name.startswith("search/") else ("torch", "numpy", "cuda")
    assert not {module for module in modules if module.partition(".")[0] in never}


@pytest.mark.parametrize("name", [name for name in _FILES if name != "knobs.py"])
def test_only_knobs_looks_at_the_environment(name: str) -> None:
    text = [ast.unparse(node) for node in ast.walk(_tree(name)) if isinstance(node, ast.Attribute | ast.Name)]
    used = [what for what in text if what in ("os.environ", "os.getenv", "environ", "getenv")]
    assert used == [], f"{name} reads the environment"


@pytest.mark.parametrize("name", _FILES)
def test_nothing_loads_code_from_data(name: str) -> None:
    calls = {ast.unparse(node.func) for node in ast.walk(_tree(name)) if isinstance(node, ast.Call)}
    forbidden = {
        "torch.load",
        "eval",
        "exec",
        "yaml.load",
        "yaml.unsafe_load",
        "yaml.full_load",
        "numpy.load",
        "np.load",
    }
    assert calls & forbidden == set()
