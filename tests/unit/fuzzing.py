"""A mutation fuzzer for everything that mktune reads: files, rows of a store, search spaces and command lines.

An input is made from a good one by `Mutator`, given to a target, and judged: only mktune's own errors may come out,
soon, with no file written and nothing run. `tests/benchmarks/fuzz.py` does this 20,000 times.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from mutation import PWNED, TOKENS, Mutator
from stored_values import B300, H200, make_plan, make_study, make_trial, make_winner

from mktune import packed, resources
from mktune.cli import boundary
from mktune.errors import MktuneError
from mktune.graph.workload import workload
from mktune.runtime import PlanBook
from mktune.shape import Shape
from mktune.space import SearchSpace
from mktune.store import Store, bundle_text

SECONDS = 120.0
"""An input that takes longer hangs, on a machine however busy."""
WORKLOAD = workload("glm52_attention_prefix")


@dataclass(frozen=True)
class Finding:
    """One input that was not taken as it should be."""

    target: str
    given: str
    problem: str


class Hang(BaseException):
    """The time of an input is over."""


# ── what watches ──────────────────────────────────────────────────────────────────────────────────────────────────────

_RUNS = {
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn", "subprocess.Popen",
    "pickle.find_class", "socket.connect", "code.__new__",
}  # fmt: skip
_WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_watched: list[str] | None = None


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _watched is None:
        return
    if event in _RUNS or event in _WRITES:
        _watched.append(f"{event}{args!r}"[:300])
    elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        place = str(args[0])
        if not place.endswith("/dev/null") and ".pyc" not in place:
            _watched.append(f"open{args!r}"[:300])


sys.addaudithook(_audit)


@contextlib.contextmanager
def watched(events: list[str], seconds: float = SECONDS) -> Iterator[None]:
    """Note in `events` every write of a file and every program that is started; Hang after `seconds`."""
    global _watched

    def over(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _watched = events
    try:
        yield
    finally:
        _watched = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ── what is fuzzed ────────────────────────────────────────────────────────────────────────────────────────────────────


class Fuzzer:
    """All targets, in a folder of their own that nothing may change. The working directory must be `folder`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.mutate = folder, Mutator(seed)
        self.chance = self.mutate.random
        self.slowest = (0.0, "")
        self.refused = 0
        winners = [make_winner(make_plan(m=m)) for m in (8, 16)] + [make_winner(device=B300, backend="sim")]
        self._bundle = bundle_text(winners)
        self._plan = json.dumps(make_plan().to_dict(), indent=1)
        self._space = (resources.search_spaces() / f"{WORKLOAD.name}.yaml").read_text()
        self._store = self._filled(folder / "good.db", winners)
        (folder / "good.json").write_text(self._bundle)
        (folder / "plan.json").write_text(self._plan)

    @property
    def targets(self) -> dict[str, Callable[[], Finding | None]]:
        return {
            "bundle": self.bundle,
            "plan file": self.plan_file,
            "store file": self.store_file,
            "rows": self.rows,
            "search space": self.space,
            "command line": self.command_line,
        }

    def bundle(self) -> Finding | None:
        """A file that should be a bundle: looked up in, and imported."""
        content = self._bundle_like()
        path = self._file("x.json", content)

        return self._judge("bundle", content, lambda: _look_up(path)) or self._command(
            "bundle", ["import", str(path), "--store", "new.db"]
        )

    def plan_file(self) -> Finding | None:
        """A file that should be a plan or a bundle of one, shown."""
        good = json.loads(self._plan)
        content = self.mutate.text(self._plan) if self.chance.random() < 0.5 else _bytes(self.mutate.json(good))
        path = self._file("p.json", content)
        return self._command("plan file", ["show", str(path), *self.chance.choice(([], ["--json"]))], content)

    def store_file(self) -> Finding | None:
        """A file that should be a store, with bytes changed, read in every way."""
        data = bytearray(self._store)
        for _ in range(self.chance.choice((1, 1, 3, 20))):
            if not data:
                break
            start = self.chance.randrange(len(data)) // self.chance.choice((1, 1, 100))
            size = self.chance.choice((1, 4, 100, 4096))
            data[start : start + size] = bytes(self.chance.randrange(256) for _ in range(min(size, len(data) - start)))
            if self.chance.random() < 0.1:
                del data[self.chance.randrange(len(data)) :]
        path = self._file("s.db", bytes(data))
        return self._judge("store file", bytes(data[:64]), lambda: _read_store(path))

    def rows(self) -> Finding | None:
        """A sound store whose rows hold what nobody wrote."""
        path = self._file("s.db", self._store)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA ignore_check_constraints=ON")
        changed = []
        for _ in range(self.chance.choice((1, 1, 2))):
            table = self.chance.choice(("plans", "trials", "measurements", "studies", "devices"))
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info(mktune_{table})")]
            column = self.chance.choice(columns)
            old = connection.execute(f"SELECT {column} FROM mktune_{table} LIMIT 1").fetchone()
            value = self._cell(old[0] if old else None)
            with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeError):
                connection.execute(f"UPDATE mktune_{table} SET {column} = ?", (value,))
                changed.append(f"{table}.{column} = {value!r}"[:200])
        connection.commit()
        connection.close()
        return self._judge("rows", "; ".join(changed), lambda: _read_store(path))

    def space(self) -> Finding | None:
        """A search space, loaded and drawn from."""
        content = self.mutate.text(self._space)
        path = self._file("space.yaml", content)

        def load() -> None:
            SearchSpace.load(WORKLOAD, ("A0", "B0"), Shape.from_m(16, 8192), H200, path)

        return self._judge("search space", content, load)

    def command_line(self) -> Finding | None:
        """A command with arguments that nobody means."""
        args = CommandLines(self.chance).next()
        return self._command("command line", args)

    def _bundle_like(self) -> bytes:
        data = json.loads(self._bundle)
        kind = self.chance.randrange(4)
        if kind == 0:
            return self.mutate.text(self._bundle)
        if kind == 1:
            return _bytes(self.mutate.json(data))
        winner = self.chance.choice(data["winners"])
        changed = self.mutate.json(winner["plan"])
        winner["plan"] = changed
        winner["plan_id"] = hashlib.sha256(_bytes(changed)).hexdigest()  # so that more than the id is looked at
        return _bytes(data) if kind == 2 else _bytes(self.mutate.json(data))

    def _cell(self, old: Any) -> Any:
        if isinstance(old, bytes):  # a packed document: wrong as it is, or inside
            new = self._cell(_unpacked(old))
            if isinstance(new, str) and self.chance.randrange(4):
                return packed.pack(new)
            return self.mutate.content(old) if self.chance.randrange(2) else new
        kind = self.chance.randrange(4)
        if kind == 0 and isinstance(old, str) and old.startswith(("{", "[")):
            return _bytes(self.mutate.json(json.loads(old))).decode(errors="replace")
        if kind == 1 and isinstance(old, str):
            return self.mutate.text(old).decode(errors="replace")
        if kind == 2:
            return self.chance.choice(TOKENS).encode(errors="surrogatepass")
        return self.chance.choice([None, 0, -1, 2**62, 1e308, float("inf"), "", b"\xff", "x" * 9000, "nan", "0099"])

    def _file(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def _filled(self, path: Path, winners: list[Any]) -> bytes:
        with Store.open(path) as store:
            study = make_study(store)
            for number in range(4):
                store.add_trial(study, make_trial(number))
            for winner in winners:
                store.put_winner(study, winner)
        return path.read_bytes()

    def _command(self, target: str, args: list[str], given: object = None) -> Finding | None:
        def call() -> None:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = boundary.run(args)
            self.refused += code != 0
            problem = _badly_told(code, out.getvalue(), err.getvalue(), "--json" in args)
            if problem:
                raise AssertionError(problem)

        return self._judge(target, given if given is not None else args, call, writes=_may_write(args))

    def _judge(self, target: str, given: object, action: Callable[[], object], writes: bool = False) -> Finding | None:
        before = None if writes else self._state()
        events: list[str] = []
        start, problem = time.perf_counter(), ""
        try:
            with watched(events):
                action()
        except MktuneError as error:
            self.refused += 1
            problem = "more than one line" if "\n" in str(error) else ""
        except Hang:
            problem = f"hangs: no answer after {SECONDS} s"
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
            problem = f"{type(error).__name__}: {error} ({places})"
        took = time.perf_counter() - start
        self.slowest = max(self.slowest, (took, f"{target} {given!r}"[:200]))
        runs = [event for event in events if event.split("(")[0] in _RUNS]
        if not problem and (runs or (events and not writes)):
            problem = f"did {events[0]}"
        if not problem and before is not None and self._state() != before:
            problem = f"files changed: {[name for name in self._state().items() if name not in before.items()]!r}"[:300]
        if not problem and any(PWNED in names for _, _, names in os.walk(self.folder)):
            problem = "ran code"
        if writes:
            self._tidy()
        return Finding(target, repr(given)[:2000], problem) if problem else None

    def _state(self) -> dict[str, tuple[int, int]]:
        found = {}
        for place, _, names in os.walk(self.folder):
            for name in names:
                stat = os.lstat(os.path.join(place, name))
                found[os.path.join(place, name)] = (stat.st_size, stat.st_mtime_ns)
        return found

    def _tidy(self) -> None:
        """Take away what a command was allowed to write."""
        kept = {"good.db", "good.json", "plan.json"}
        for place, folders, names in os.walk(self.folder, topdown=False):
            for name in names:
                if place != str(self.folder) or name not in kept:
                    os.remove(os.path.join(place, name))
            for name in folders:
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.join(place, name))
        (self.folder / "good.db").write_bytes(self._store)


def _look_up(path: Path) -> None:
    """A book never raises for what is in a file: a plan, or a miss with its reason."""
    book = PlanBook.open(path)
    for gpu in ("NVIDIA H200", "NVIDIA B300"):
        for ops in (None, ("A0", "B0")):
            found = book.lookup(WORKLOAD.name, m=16, kv=8192, gpu=gpu, ops=ops, allow_simulated=True)
            assert found or found.reason, found


def _unpacked(document: bytes) -> str:
    try:
        return packed.unpack(document, "a store").decode(errors="replace")
    except MktuneError:  # changed before
        return ""


def _read_store(path: Path) -> None:
    """Everything that reads a store; what each finds wrong is told, and does not hide what the others find."""
    _look_up(path)
    raised: MktuneError | None = None
    with Store.open(path, write=False) as store:
        for look in (store.leaderboard, store.winners, store.studies, store.activity, store.damage):
            try:
                look()
            except MktuneError as error:
                raised = error
        for study in store.studies():
            store.trials(study, lost=True)
            store.running(study)
            store.trial_counts(study)
    if raised is not None:
        raise raised


def _badly_told(code: int, out: str, err: str, as_json: bool) -> str:
    if code not in (0, 2, 3, 4, 5):
        return f"exit {code}: {err[-300:]}"
    if "Traceback" in err or "internal error" in err:
        return err[-300:]
    if code and not err.splitlines()[-1].startswith("mktune: error: "):
        return f"the last line is {err.splitlines()[-1:]}"
    if code and as_json:
        json.loads(out)
    return ""


def _bytes(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _may_write(args: list[str]) -> bool:
    return bool(args) and args[0] in ("tune", "worker", "import", "export", "record", "trace")


class CommandLines:
    """Command lines near to right ones. None can cost more than a moment, or reach a file outside the folder."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        from mktune.cli.app import app

        self._commands = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]

    def next(self) -> list[str]:
        name = self._chance.choice([*self._commands, *self._commands, "leaderboard", "lookup", "show", self._word()])
        command = self._commands.get(name)
        args = [name]
        for parameter in command.params if command else ():
            args += self._given(parameter)
        for _ in range(self._chance.choice((0, 0, 0, 1, 3))):
            args.insert(self._chance.randrange(len(args) + 1), self._word())
        return [*args, *self._harmless(args)]

    def _given(self, parameter: Any) -> list[str]:
        if parameter.name in ("watch", "help"):
            return []
        if parameter.param_type_name == "argument":
            return [self._value(parameter.name)] if self._chance.random() < 0.9 else []
        if self._chance.random() > (0.8 if parameter.required else 0.35):
            return []
        flag = self._chance.choice([each for each in parameter.opts if each.startswith("--")])
        if parameter.is_flag:
            return [flag]
        value = self._value(parameter.name)
        return [f"{flag}={value}"] if self._chance.random() < 0.3 else [flag, value]

    def _value(self, name: str) -> str:
        known = GOOD_VALUES.get(name, ("1",))
        return self._chance.choice(known) if self._chance.random() < 0.6 else self._word()

    def _word(self) -> str:
        word = self._chance.choice([*TOKENS, *WORDS]).replace("\0", self._chance.choice(("", "\0")))
        return word.lstrip("/")

    def _harmless(self, args: list[str]) -> list[str]:
        """Arguments behind all others that keep a command cheap, or make sure that it is refused."""
        if "tune" in args:
            return ["--trials", "1", "--sampler", "random", "--backend", "sim", "--ops", "A0", "--store", "new.db"]
        if {"run", "ablate", "grow", "edge"} & set(args):
            return ["--backend", "sim"]
        if {"compile", "doctor", "check"} & set(args):
            return ["--refused", "--refused"]  # the first may be taken for the value of an option
        return ["--store", "good.db"] if self._chance.random() < 0.5 else []


GOOD_VALUES: dict[str, tuple[str, ...]] = {
    "workload": (WORKLOAD.name,),
    "m": ("16", "8", "1,16", "0", "-1", "257", "8.0", "1e3", "٣"),
    "kv": ("8192", "4096", "0", "131073", "8192,4096"),
    "ops": ("A0,B0", "A0", "B0,A0", "A0,E1", ""),
    "tokens_per_request": ("8", "1", "3", "0"),
    "gpu": ("NVIDIA H200", "h200", "NVIDIA B300", "", "NVIDIA H20"),
    "alias": ("a=b", "NVIDIA H200 NVL=NVIDIA H200", "=", "a="),
    "study": ("s", "none", "[bold]", "x'; DROP TABLE mktune_trials;--"),
    "limit": ("1", "10", "0", "999999999999999999999"),
    "store": ("good.db", "sqlite:///good.db", "none.db", "good.json", "mysql://u:p@h", "sqlite://", "plan.json"),
    "plan": ("serial", "branches+pdl", "plan.json", "good.json", "none.json", make_plan().short_id, "abcd", "zzzz"),
    "files": ("good.json", "plan.json", "good.db", "none.json"),
    "out": ("out.json", "a/b/out.json", "good.db/x.json", ".", "plan.json"),
    "space": ("good.json", "none.yaml", "good.db"),
    "producer": ("A0", "B0", "Z9"),
    "consumer": ("B0", "A0", "C0"),
    "seconds": ("0.01", "nan", "inf", "-1", "1e-9"),
    "every": ("1", "nan"),
    "backend": ("sim", "cuda", "rocm"),
    "sim_gpu": ("h200", "b300", "h900"),
    "arch": ("sm_90a", "sm_103a", "sm_1"),
    "seed": ("0", "7", str(2**32), "-1"),
    "mode": ("serial", "branches", "x"),
}
"""Name of a parameter → values that are right, or nearly."""
WORDS = [
    "--json", "--help", "--version", "-h", "--store", "--m", "--completion", "bash", "--ops=", "-", "=x", "--=", "-m",
    "--kv=1",
    "\N{ARABIC-INDIC DIGIT THREE}", "\x7f", "a b", "*", "?", "~", "~nobody", "%2e%2e", "good.db\0", "\udcff", "é" * 300,
]  # fmt: skip
