"""`mktune leaderboard --watch`: follows a running study, disturbs nothing, draws a terminal anew, ends with Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from itertools import count
from pathlib import Path

import pytest
from command_line import run
from stored_values import make_plan, make_study, make_trial
from waiting import LIMIT_S, until

from mktune.cli import watch
from mktune.cli.leaderboard import Wanted
from mktune.errors import StoreError
from mktune.search import Stop
from mktune.store import Store

WORKLOAD = "glm52_attention_prefix"
EVERYTHING = Wanted(None, (), None, None, None, None, 10)
PLAIN = ("NO_COLOR", "CI", "TERM")


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "mktune", *args]


def tune(store: Path, trials: int, *more: str) -> list[str]:
    question = ["tune", WORKLOAD, "--ops", "A0,B0", "--m", "16", "--kv", "8192", "--backend", "sim"]
    return command(*question, "--sampler", "random", "--trials", str(trials), "--store", str(store), *more)


def watching(store: Path) -> list[str]:
    return command("leaderboard", "--watch", "--every", "0.05", "--store", str(store))


def read_until(watcher: subprocess.Popen[bytes], pattern: str) -> str:
    """What it says, up to the first line with `pattern`."""
    assert watcher.stdout is not None
    limit = threading.Timer(LIMIT_S, watcher.kill)
    limit.start()
    text = ""
    while not re.search(pattern, text):
        line = watcher.stdout.readline().decode()
        assert line, text
        text += line
    limit.cancel()
    return text


def test_watchers_follow_a_running_study_and_never_disturb_it(tmp_path: Path) -> None:
    place = tmp_path / "x.db"
    watchers = [subprocess.Popen(watching(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    first = [watcher.stdout.readline().decode() for watcher in watchers if watcher.stdout is not None]
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d  nothing is stored yet: there is no store at .*x.db\n", s) for s in first)
    seen = ["", ""]
    for trials, more in ((150, []), (300, ["--resume"])):
        command_line = tune(place, trials, *more)
        search = subprocess.run(command_line, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert search.returncode == 0, search.stderr
        seen = [text + read_until(watcher, f"  {trials} trials") for watcher, text in zip(watchers, seen, strict=True)]
    for watcher in watchers:
        watcher.send_signal(signal.SIGINT)
    ends = [watcher.communicate(timeout=LIMIT_S) for watcher in watchers]
    assert [watcher.returncode for watcher in watchers] == [130, 130]
    for text, (rest, err) in zip(seen, ends, strict=True):
        out = text.encode() + rest
        lines = [line for line in out.decode().splitlines() if "locked by another process" not in line]
        assert b"\x1b" not in out
        assert b"\r" not in out
        assert err == b""
        assert all(re.search("nothing is stored yet|no trial has begun yet|no span|  best ", line) for line in lines)
        done = [int(found[1]) for line in lines if (found := re.search(r"  (\d+) trials", line))]
        assert len(done) > 1, lines
        assert done == sorted(done)
        assert re.search(r"  300 trials.*  best \d+\.\d\d µs simulated  ×\d\.\d\d of serial  [0-9a-f]{12}  ", lines[-1])
    # The last writer leaves one file behind, unless somebody looked in that moment: then the next one does.
    assert {path.name for path in tmp_path.iterdir()} <= {"x.db", "x.db-wal", "x.db-shm"}
    Store.open(place).close()
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]
    with Store.open(place, write=False) as store:
        (study,) = store.studies()
        assert [trial.number for trial in store.trials(study)] == list(range(300))


class Terminal:
    """A program at the other end of a terminal of a given size."""

    def __init__(self, args: list[str], columns: int, rows: int, **environment: str) -> None:
        own, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        clean = {key: value for key, value in os.environ.items() if key not in (*PLAIN, "COLUMNS", "LINES")}
        clean |= {"TERM": "xterm-256color"} | environment
        self.child = subprocess.Popen(args, stdin=other, stdout=other, stderr=other, env=clean, start_new_session=True)
        os.close(other)
        self.end, self.text = own, ""

    def until(self, pattern: str, seconds: float = LIMIT_S) -> str:
        """Read until `pattern` has been written."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text) and time.monotonic() < deadline:
            self._read(0.1)
        assert re.search(pattern, self.text), self.text
        return self.text

    def interrupt(self) -> int:
        self.child.send_signal(signal.SIGINT)
        code = self.child.wait(LIMIT_S)
        while self._read(0.2):
            pass
        os.close(self.end)
        return code

    def _read(self, seconds: float) -> bool:
        if not select.select([self.end], [], [], seconds)[0]:
            return False
        try:
            found = os.read(self.end, 1 << 16)
        except OSError:  # the other end is closed
            return False
        self.text += found.decode()
        return bool(found)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A study of 30 trials."""
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store, "[bold]s[/bold]")
        for number in range(30):
            store.add_trial(study, make_trial(number, make_plan(stages=number), 10.0 + number))
    return tmp_path / "x.db"


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50), (40, 12)])
def test_a_terminal_is_drawn_anew_within_its_size(filled: Path, columns: int, rows: int) -> None:
    before = filled.read_bytes()
    terminal = Terminal(watching(filled), columns, rows)
    terminal.until(r"(?s)(span µs.*){3}")
    with Store.open(filled) as store:
        store.add_trial(store.find_study("[bold]s[/bold]"), make_trial(30, make_plan(stages=40), 5.0))
    terminal.until(r"(?s)31 trials.* 5\.00[ \x1b].*\x1b\[J")
    assert terminal.interrupt() == 130
    assert terminal.text.startswith("\x1b[?25l\x1b[?7l")  # no cursor; what is too long does not wrap
    assert terminal.text.rstrip().endswith("\x1b[?7h\x1b[?25h")
    assert "mktune: error" not in terminal.text
    frames = terminal.text.split("\x1b[J")[:-1]
    assert len(frames) >= 3
    for frame in frames:
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame).replace("\r", "").splitlines()
        assert len(lines) < rows
        assert all(len(line) <= columns or str(filled) in line or " " not in line.strip() for line in lines), lines
        assert "[bold]s[/bold]" in frame
    assert re.search(r"\x1b\[\d+A", frames[1])
    assert "31 trials" in frames[-1]
    assert len(before) > 0


def test_after_a_resize_the_whole_terminal_is_drawn(filled: Path) -> None:
    terminal = Terminal(watching(filled), 100, 30)
    terminal.until("span µs")
    fcntl.ioctl(terminal.end, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
    terminal.until(r"\x1b\[2J\x1b\[H")
    assert terminal.interrupt() == 130


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"CI": "true"}, {"TERM": "dumb"}])
def test_a_plain_terminal_gets_lines(filled: Path, setting: dict[str, str]) -> None:
    terminal = Terminal(watching(filled), 80, 24, **setting)
    text = terminal.until(r"30 trials")
    assert terminal.interrupt() == 130
    assert "\x1b" not in text
    assert "best 10.00 µs" in text


def test_watching_changes_nothing(filled: Path) -> None:
    before = filled.read_bytes()
    watcher = subprocess.Popen(watching(filled), stdout=subprocess.PIPE, text=True)
    assert watcher.stdout is not None
    assert "30 trials" in watcher.stdout.readline()
    watcher.send_signal(signal.SIGTERM)
    assert watcher.wait(LIMIT_S) == 143
    watcher.communicate()
    assert filled.read_bytes() == before
    assert [path.name for path in filled.parent.iterdir()] == ["x.db"]


def test_a_signal_in_the_middle_of_a_look_ends_it_after_that_look(
    filled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever it comes, also inside the database driver, where an exception might be lost."""
    real = watch._found

    def found(*args: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(watch, "_found", found)
    out, err = run(capsys, "leaderboard", "--watch", "--every", "3600", "--store", str(filled), code=130)
    assert "30 trials" in out
    assert err == ""


def test_a_watcher_of_nothing_waits_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[float] = []

    def wait(stop: Stop, seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 5:
            stop.ask()

    monkeypatch.setattr(watch, "_wait", wait)
    place = str(tmp_path / "new" / "x.db")
    out, err = run(capsys, "leaderboard", "--watch", "--every", "7", "--store", place, code=130)
    assert looks == [7.0] * 5
    assert "there is no store at" in out
    assert out.count("\n") == 1  # said once
    assert err == ""
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_ends_it(filled: Path) -> None:
    line = f"{' '.join(watching(filled))} | head -n 1; echo ${{PIPESTATUS[0]}}"
    with Store.open(filled) as store:
        study = store.find_study("[bold]s[/bold]")
        child = subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        numbers = count(30)

        def ended() -> bool:
            store.add_trial(study, make_trial(number := next(numbers), make_plan(stages=number)))  # something to tell
            return child.poll() is not None

        until(ended)
    out, err = child.communicate(timeout=LIMIT_S)
    assert out.splitlines()[-1] == "141"
    assert err == ""


def test_a_store_that_cannot_be_read_now_keeps_what_was_seen(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = watch.Look(str(filled), watch.datetime.now(watch.UTC))
    seen = watch._look(str(filled), EVERYTHING, start)
    assert len(seen.rows) == 10
    assert seen.note == ""

    def locked(*args: object, **named: object) -> Store:
        raise StoreError("the store is locked by another process")

    monkeypatch.setattr(Store, "open", locked)
    after = watch._look(str(filled), EVERYTHING, seen)
    assert (after.rows, after.studies) == (seen.rows, seen.studies)
    assert "locked" in after.note


def test_without_a_filter_the_study_that_did_something_last_is_followed(filled: Path) -> None:
    look = watch.Look(str(filled), watch.datetime.now(watch.UTC))
    with Store.open(filled) as store:
        other = make_study(store, "other")
        assert {row.study for row in watch._look(str(filled), EVERYTHING, look).rows} == {"[bold]s[/bold]"}
        number = store.begin_trial(other, make_plan(stages=3), "tpe")
        found = watch._look(str(filled), EVERYTHING, look)
        assert [each.study.name for each in found.studies] == ["other"]
        assert found.studies[0].counts == {"running": 1}
        assert found.note == "no span of what is wanted yet"
        store.add_trial(other, make_trial(number, make_plan(stages=3)))
    assert {row.study for row in watch._look(str(filled), EVERYTHING, look).rows} == {"other"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--every", "1"], "--every is for --watch"),
        (["--watch", "--json"], "leave out --watch or --json"),
        (["--watch", "--every", "0"], "must be from 0.05"),
        (["--watch", "--every", "nan"], "must be from 0.05"),
        (["--watch", "--every", "inf"], "must be from 0.05"),
        (["--watch", "nope"], "unknown workload 'nope'"),
        (["--watch", "--ops", "Z9"], "unknown op 'Z9'"),
        (["--watch", "--store", "mysql://x"], "a store is"),
    ],
)
def test_wrong_input(filled: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
    _, err = run(capsys, "leaderboard", "--store", str(filled), *more, code=2)
    assert words in err
    assert err.count("\n") == 1
