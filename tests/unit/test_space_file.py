"""The search space file: what is wrong is named with its line and what is allowed, and nothing hostile is built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_bench import WORKLOAD
from waiting import LIMIT_S

from mktune import resources
from mktune.errors import SpaceError
from mktune.graph.workload import workload, workload_names
from mktune.space.file import load

SHIPPED = (resources.search_spaces() / f"{WORKLOAD.name}.yaml").read_text()


def refused(tmp_path: Path, text: str | bytes) -> str:
    """The one-line message with which a file of this text is refused."""
    path = tmp_path / "space.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpaceError) as caught:
        load(WORKLOAD, path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}:")
    return message.removeprefix(f"{path}:")


def changed(old: str, new: str) -> tuple[str, int]:
    """The shipped file with its first `old` replaced, and the line where that stands."""
    assert old in SHIPPED
    return SHIPPED.replace(old, new, 1), SHIPPED[: SHIPPED.index(old)].count("\n") + 1


@pytest.mark.parametrize("name", workload_names())
def test_every_workload_has_a_space(name: str) -> None:
    known = workload(name)
    assert load(known).ops.keys() == set(known.ops)
    assert resources.search_space(name).is_file()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("threads: [192, 384, 768]", "threads: [192, 400]", "400 is not one of: 192, 384, 768"),
        ("threads: [192, 384, 768]", "threads: [192, 192]", "192 stands twice"),
        ("threads: [192, 384, 768]", "threads: []", "list that is not empty"),
        ("threads: [192, 384, 768]", "threads: [1.5]", "neither a whole number nor text"),
        ("threads: [192, 384, 768]", "threads: {a: 1}", "list that is not empty, not a mapping"),
        ("threads: [192, 384, 768]", "thread: [192]", "unknown key 'thread'; allowed: impl, threads"),
        ("impl: [wgmma, mma_sync, deep_gemm]", "impl: [wmma]", "'wmma' is not one of: deep_gemm, mma_sync, wgmma"),
        ("ops: [A0]", "ops: [A1]", "'A1' is not one of: A0, B0"),
        ("only: {warps: 8}", "only: {stages: 2}", "unknown key 'stages'"),
        ("when: {impl: mma_sync, block", "when: {imp: mma_sync, block", "unknown key 'imp'"),
        ("when: {impl: mma_sync, block_m: 128", "when: {block_m: 96", "96 is not one of: 8, 16, 32, 64, 128"),
        ("{at_most: 16}", "{at_most: many}", "must be a whole number, not 'many'"),
        ("{at_most: 16}", "{below: 16}", "unknown key 'below'; allowed: at_least, at_most"),
        ("group: wait", "group: waits", "'waits' is not one of: wait, trigger"),
        ("gdc: [entry, prologue]", "gdc: [late]", "'late' is not one of: entry, prologue, prefetch"),
        ("l2_prefetch_bytes: [0]", "l2_prefetch_bytes: [-1]", "must be a whole number from 0, not -1"),
        ("kinds: [full, programmatic, launch_order]", "kinds: [pdl]", "'pdl' is not one of: full, programmatic"),
        ("gate: [C0]", "gate: [C0, B1]", "B1 stands in more than one branch"),
        ("at_most: 4\n", "at_most: 9\n", "9 is not one of: 1, 2, 3, 4, 5"),
        ("format: 1", "format: 2", "2 is not one of: 1"),
        ("workload: glm52_attention_prefix", "workload: other", "'other' is not one of: glm52_attention_prefix"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_what_is_allowed(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    text, line = changed(old, new)
    message = refused(tmp_path, text)
    assert says in message
    # A mistake in a section (a branch, a missing field) is reported where the section's value starts.
    assert int(message.partition(":")[0]) in range(line - 4, line + 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "1: the file is empty"),
        ("- 1\n", "1: must be a mapping, not a list of 1"),
        ("a: [1, 2\nb: 3\n", "2: malformed YAML"),
        ("a: 1\n\tb: 2\n", "2: malformed YAML"),
        ("format: 1\nformat: 1\n", "2: key 'format' stands twice"),
        ("format: 1\n", "1: missing workload, ops"),
        ("1: 2\n", "1: a key must be text, not 1"),
        ("format: 0x\n? [a]\n: 1\n", "2: a key must be text"),
        ("a: &x [1]\nb: *x\n", "1: anchors and aliases are not read"),
        ("a: 1\nb: *x\n", "2: anchors and aliases are not read"),
        ("a: !!python/object/apply:os.system ['true']\n", "1: tags are not read"),
        ("a: !x 1\n", "1: tags are not read"),
        ("a: " + "[" * 500 + "]" * 500, "1: nested deeper than 12"),
        ("a: " + "9" * 5000, "1: "),
        (b"a: \xff\n", "not UTF-8 at byte 3"),
        (b"a: \x00\n", "malformed YAML"),
        ("#" * 300_000, "larger than 262144 bytes"),
    ],
)
def test_what_is_not_a_plain_space_is_refused_in_one_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    assert says in (":" + refused(tmp_path, text)).replace(": ", ": ", 1)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load(WORKLOAD, tmp_path / "nowhere.yaml")


def test_hostile_yaml_costs_no_time_no_memory_and_runs_nothing(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
    planted = f'threads: !!python/object/apply:os.system ["touch {tmp_path}/pwned"]'
    (tmp_path / "bomb.yaml").write_text(bomb)
    (tmp_path / "tag.yaml").write_text(changed("threads: [192, 384, 768]", planted)[0])
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from mktune.errors import SpaceError\n"
        "from mktune.space.source import read\n"
        "resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        read(Path(name))\n"
        "    except SpaceError as error:\n"
        "        print(error)\n"
        "assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10\n"
    )
    files = [str(tmp_path / "bomb.yaml"), str(tmp_path / "tag.yaml")]
    command = [sys.executable, "-c", script, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)  # a bomb takes for ever
    assert len(done.stdout.splitlines()) == 2
    assert not (tmp_path / "pwned").exists()


def test_a_field_in_no_group_or_in_two_is_refused(tmp_path: Path) -> None:
    ring = "stages: [2, 3, 4, 5, 6, 8, 12]  # pages of 64 tokens"
    text, _ = changed(ring, "stages: [2]\n      kv_split: [64, 128, 256, 512, 1024]")
    assert "E1: kv_split stands in an earlier group already" in refused(tmp_path, text)
    text, _ = changed("      finalizer_threads: [128, 256, 512]\n    rules:\n", "    rules:\n")
    text = text.replace("      - {when: {finalizer: last_arriver}, only: {finalizer_threads: 256}}", "      []")
    assert "must be a list that is not empty" in refused(tmp_path, text)
    text = text.replace("    rules:\n      []\n", "")
    assert "B0: no group has finalizer_threads" in refused(tmp_path, text)


def test_a_kernel_without_its_group_is_refused(tmp_path: Path) -> None:
    text, _ = changed("[A0, B0f, B1f, D1f, D2r, E1s]\n    group: wait", "[A0, B0f, B1f, E1s]\n    group: wait")
    assert "no wait group for D1f, D2r" in refused(tmp_path, text)
    text, _ = changed("into: [A0, B0p, ", "into: [A0, ")
    assert "no entry for B0p" in refused(tmp_path, text)


def test_the_order_of_values_means_nothing(tmp_path: Path) -> None:
    text, _ = changed("threads: [192, 384, 768]", "threads: [768, 192, 384]")
    text = text.replace("kinds: [full, programmatic, launch_order]", "kinds: [launch_order, full, programmatic]")
    (tmp_path / "space.yaml").write_text(text)
    assert load(WORKLOAD, tmp_path / "space.yaml") == load(WORKLOAD)
