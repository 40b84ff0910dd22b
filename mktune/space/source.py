"""Reads a YAML file into values that remember their line, so that every complaint can name the place.

Only plain YAML is read: aliases, tags, duplicate keys and deep nesting are refused before anything is built, so a
hostile file costs no more than its own length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml

from mktune.errors import SpaceError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 12

Scalar = int | str
_READ = {"tag:yaml.org,2002:int": int, "tag:yaml.org,2002:str": str}


@dataclass(frozen=True)
class Node:
    """A value of the file with its place, "file:line"."""

    place: str
    value: Scalar | dict[str, Node] | list[Node]

    def fail(self, message: str) -> NoReturn:
        raise SpaceError(f"{self.place}: {message}")

    def mapping(self, required: Iterable[str] = (), optional: Iterable[str] | None = ()) -> dict[str, Node]:
        """The entries; keys must be those named. `optional` None: any further key is fine."""
        if not isinstance(self.value, dict):
            self.fail(f"must be a mapping, not {self._kind}")
        needed = list(required)
        if missing := [key for key in needed if key not in self.value]:
            self.fail(f"missing {', '.join(missing)}")
        if optional is not None:
            allowed = [*needed, *optional]
            for key, entry in self.value.items():
                if key not in allowed:
                    entry.fail(f"unknown key {key!r}; allowed: {', '.join(allowed)}")
        return self.value

    def items(self) -> list[Node]:
        """The entries of a list that is not empty."""
        if not isinstance(self.value, list) or not self.value:
            self.fail(f"must be a list that is not empty, not {self._kind}")
        return self.value

    def scalar(self) -> Scalar:
        if isinstance(self.value, dict | list):
            self.fail(f"must be a whole number or text, not {self._kind}")
        return self.value

    def text(self, allowed: Iterable[str] | None = None) -> str:
        value = self.scalar()
        if not isinstance(value, str):
            self.fail(f"must be text, not {value!r}")
        return value if allowed is None else str(self.one_of(allowed))

    def one_of(self, allowed: Iterable[Scalar]) -> Scalar:
        value, known = self.scalar(), list(allowed)
        if not any(type(value) is type(item) and value == item for item in known):
            self.fail(f"{value!r} is not one of: {', '.join(map(str, known))}")
        return value

    def scalars(self) -> list[Node]:
        """The entries of a list of different scalars; one scalar stands for a list of one."""
        if not isinstance(self.value, dict | list):
            return [self]
        seen: set[Scalar] = set()
        for item in self.items():
            if item.scalar() in seen:
                item.fail(f"{item.value!r} stands twice in this list")
            seen.add(item.scalar())
        return self.items()

    @property
    def _kind(self) -> str:
        if isinstance(self.value, dict):
            return "a mapping"
        return f"a list of {len(self.value)}" if isinstance(self.value, list) else repr(self.value)


def read(path: Path) -> Node:
    """The file's one document. Raises SpaceError, with file:line where there is one."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # never more: the file may have no end
    except OSError as error:
        raise SpaceError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # a name with a NUL in it
        raise SpaceError(f"{path}: cannot be read: {error}") from None
    if len(data) > MAX_BYTES:
        raise SpaceError(f"{path}: larger than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8")
        _refuse_unsafe(path, text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise SpaceError(f"{path}: not UTF-8 at byte {error.start}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise SpaceError(f"{path}:{line}: malformed YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise SpaceError(f"{path}:1: malformed YAML: {' '.join(str(error).split())}") from None
    if root is None:
        raise SpaceError(f"{path}:1: the file is empty")
    return _build(path, root)


def _refuse_unsafe(path: Path, text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise SpaceError(f"{path}:{line}: anchors and aliases are not read; write the values out")
        if tag := getattr(event, "tag", None):
            raise SpaceError(f"{path}:{line}: tags are not read: {tag!r}")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise SpaceError(f"{path}:{line}: nested deeper than {MAX_DEPTH}")


def _build(path: Path, node: yaml.Node) -> Node:
    place = f"{path}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode):
        return Node(place, _build_mapping(path, node))
    if isinstance(node, yaml.SequenceNode):
        return Node(place, [_build(path, item) for item in node.value])
    if node.tag not in _READ:
        raise SpaceError(f"{place}: {_short(node.value)} is neither a whole number nor text (quote it to make it text)")
    try:
        return Node(place, yaml.constructor.SafeConstructor().construct_object(node))
    except ValueError:
        raise SpaceError(f"{place}: {_short(node.value)} is not a whole number") from None


def _build_mapping(path: Path, node: yaml.MappingNode) -> dict[str, Node]:
    entries: dict[str, Node] = {}
    for key_node, value_node in node.value:
        key = _build(path, key_node)
        if not isinstance(key.value, str):
            key.fail(f"a key must be text, not {key.value!r}")
        if key.value in entries:
            key.fail(f"key {key.value!r} stands twice")
        entries[key.value] = _build(path, value_node)
    return entries


def _short(text: str) -> str:
    """The value as a message shows it."""
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
