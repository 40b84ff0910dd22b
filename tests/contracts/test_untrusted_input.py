"""Nothing in the package can run what it reads: no pickle, no eval, no unsafe YAML, no shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mktune

PACKAGE = Path(mktune.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle", "joblib", "code"}
UNSAFE_BUILTINS = {"eval", "exec", "compile", "__import__"}
UNSAFE_CALLS = {
    ("torch", "load"), ("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load"), ("yaml", "load_all"),
    ("numpy", "load"), ("np", "load"), ("os", "system"), ("os", "popen"),
}  # fmt: skip
UNSAFE_METHODS = {"recv", "send"}  # of multiprocessing's connections: they pickle


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) of everything in a module that could run what was read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            yield node.lineno, str(node.module)
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in UNSAFE_BUILTINS:
                yield node.lineno, function.id
            elif isinstance(function, ast.Attribute):
                owner = function.value.id if isinstance(function.value, ast.Name) else ""
                if (owner, function.attr) in UNSAFE_CALLS or function.attr in UNSAFE_METHODS:
                    yield node.lineno, f"{owner}.{function.attr}"
            yield from (
                (node.lineno, "shell=True")
                for word in node.keywords
                if word.arg == "shell" and not (isinstance(word.value, ast.Constant) and word.value.value is False)
            )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_can_run_what_it_reads(path: Path) -> None:
    assert list(names(ast.parse(path.read_text()))) == []


def test_the_look_finds_what_it_looks_for() -> None:
    code = "import pickle\nfrom dill import x\neval('1')\nimport torch\ntorch.load(1)\nrun(1, shell=True)\na.recv()"
    assert [line for line, _ in names(ast.parse(code))] == [1, 2, 3, 5, 6, 7]
