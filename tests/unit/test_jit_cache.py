"""Compiled kernels on disk: found again by everything that decides the result, and never taken when damaged."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from mktune.errors import SetupError
from mktune.jit import build as build_module
from mktune.jit import nvrtc
from mktune.jit.build import build, is_built
from mktune.jit.cache import KernelCache
from mktune.jit.source import Source, load, source_fingerprint
from mktune.launch import CompiledKernel, KernelSpec, SassFacts

SPEC = KernelSpec("standalone/x.cu", "mktune::x<16>", (("MKTUNE_DELAY_NS", "5"),), (0, 2))
SOURCE = Source("standalone/x.cu", (("standalone/x.cu", "kernel"), ("common/y.cuh", "header")))
FACTS = SassFacts(("QGMMA",), True, "always", "before_wait", 3, 0)
KERNEL = CompiledKernel(SPEC, "sm_90a", b"\x7fELF machine code", "_Z1x", 40, 16, 0, 0, "NVRTC 13.0.88", FACTS)


def key(spec: KernelSpec = SPEC, source: Source = SOURCE, arch: str = "sm_90a", compiler: str = "NVRTC 13") -> str:
    return KernelCache.key(spec, source, arch, compiler, nvrtc.options(arch, spec.defines))


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    assert cache.read(key(), SPEC) is None
    cache.write(key(), KERNEL, SOURCE)
    assert KernelCache(tmp_path).read(key(), SPEC) == KERNEL
    (stored,) = tmp_path.glob("kernels/*/*/source.cu")
    assert "// ==== common/y.cuh ====\nheader" in stored.read_text()
    bare = replace(KERNEL, facts=None)
    cache.write(key(), bare, SOURCE)
    assert cache.read(key(), SPEC) == bare
    assert [path.name for path in tmp_path.glob("kernels/*/*")] == [key()]  # nothing is left beside it


def test_what_is_built_is_what_the_cache_has_with_its_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKTUNE_CACHE_DIR", str(tmp_path))
    spec = KernelSpec("standalone/x.cu", "mktune::x<16>")
    sources = {(spec.source, spec.prelude): SOURCE}
    stored = KernelCache.key(spec, SOURCE, "sm_90a", nvrtc.compiler(), nvrtc.options("sm_90a", ()))
    assert not is_built(spec, "sm_90a", sources)
    KernelCache().write(stored, replace(KERNEL, spec=spec, facts=None), SOURCE)
    assert not is_built(spec, "sm_90a", sources)
    KernelCache().write(stored, replace(KERNEL, spec=spec), SOURCE)
    assert is_built(spec, "sm_90a", sources)
    assert not is_built(spec, "sm_100a", sources)
    assert not is_built(KernelSpec("standalone/none.cu", "mktune::none"), "sm_90a", {})
    (path,) = tmp_path.glob("kernels/*/*/kernel.cubin")
    path.write_bytes(b"\x7fELF")
    assert not is_built(spec, "sm_90a", sources)


def test_everything_that_decides_the_result_is_in_the_key() -> None:
    header = replace(SOURCE, files=(SOURCE.files[0], ("common/y.cuh", "changed")))
    moved = replace(SOURCE, files=(SOURCE.files[0], ("common/z.cuh", "header")))
    keys = [
        key(),
        key(replace(SPEC, name_expression="mktune::x<32>")),
        key(replace(SPEC, defines=())),
        key(replace(SPEC, constants=(0,))),
        key(source=header),
        key(source=moved),
        key(arch="sm_103a"),
        key(compiler="NVRTC 12"),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("kernel.cubin", b"\x7fELF machine cod"),
        ("kernel.cubin", b""),
        ("entry.json", b""),
        ("entry.json", b"{"),
        ("entry.json", b"[]"),
        ("entry.json", b'{"format": 0}'),
        ("entry.json", None),
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_replaced(tmp_path: Path, file: str, content: bytes | None) -> None:
    cache = KernelCache(tmp_path)
    cache.write(key(), KERNEL, SOURCE)
    (path,) = tmp_path.glob(f"kernels/*/*/{file}")
    path.unlink() if content is None else path.write_bytes(content)
    assert cache.read(key(), SPEC) is None
    cache.write(key(), KERNEL, SOURCE)
    assert cache.read(key(), SPEC) == KERNEL


def test_another_kernel_under_the_same_key_is_not_taken(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.write(key(), KERNEL, SOURCE)
    assert cache.read(key(), replace(SPEC, name_expression="mktune::x<32>")) is None


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file")
    with pytest.raises(SetupError, match="MKTUNE_CACHE_DIR"):
        KernelCache(tmp_path).write(key(), KERNEL, SOURCE)


def test_a_kernel_is_compiled_once_and_disassembled_when_somebody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = KernelSpec("standalone/clock.cu", "mktune::timer_steps")
    (bare,) = build([spec], "sm_90a", cache_dir=tmp_path, facts=False)
    assert bare.facts is None

    def refuse(*args: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(nvrtc, "compile_program", refuse)
    (known,) = build([spec, spec], "sm_90a", cache_dir=tmp_path)[:1]
    assert known.facts is not None
    assert known.facts.trigger == "exit"
    monkeypatch.setattr(build_module, "disassemble_together", refuse)
    assert build([spec], "sm_90a", cache_dir=tmp_path) == [known]


def test_a_source_is_all_that_it_includes(tmp_path: Path) -> None:
    files = {
        "a.cu": '#include "b.cuh"\n',
        "b.cuh": '  # include "sub/c.cuh"\n#include <cuda.h>\n',
        "sub/c.cuh": "int x;\n",
    }
    (tmp_path / "sub").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = load("a.cu", tmp_path)
    assert dict(found.files) == files
    assert found.text == files["a.cu"]
    (tmp_path / "unrelated.cuh").write_text("int y;\n")
    assert load("a.cu", tmp_path).digest == found.digest
    (tmp_path / "sub/c.cuh").write_text("int z;\n")
    assert load("a.cu", tmp_path).digest != found.digest
    (tmp_path / "sub/c.cuh").unlink()
    with pytest.raises(SetupError, match=r"sub/c\.cuh \(included by b\.cuh\)"):
        load("a.cu", tmp_path)
    (tmp_path / "sub/c.cuh").write_bytes(b"int \xe9;\n")
    with pytest.raises(SetupError, match=r"sub/c\.cuh \(included by b\.cuh\) cannot be read \(.*\): it is not UTF-8"):
        load("a.cu", tmp_path)


def test_fingerprints_differ_by_source() -> None:
    first, second = KernelSpec("standalone/add_rmsnorm_quant.cu", ""), KernelSpec("standalone/qkv_a.cu", "")
    prints = [source_fingerprint([first]), source_fingerprint([second]), source_fingerprint([first, second])]
    assert len(set(prints)) == 3
    assert source_fingerprint([second, first]) == prints[2]


def test_the_compilers_log_is_read_by_kernel() -> None:
    log = (
        "ptxas info    : Compiling entry function '_Z1a' for 'sm_90a'\n"
        "ptxas info    : Function properties for _Z1a\n"
        "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem\n"
        "ptxas info    : Compiling entry function '_Z1b' for 'sm_90a'\n"
        "ptxas info    : Used 16 registers\n"
    )
    found = nvrtc.parse_log(log)
    assert found == {"_Z1a": nvrtc.Resources(40, 512, 8, 16), "_Z1b": nvrtc.Resources(16)}


def test_the_compilers_errors_fit_one_line() -> None:
    log = 'x.cu(3): warning: unused\nx.cu(4): error: no such thing\n\nx.cu(9): error: expected a ";"\n\0'
    assert nvrtc.first_errors(log) == 'x.cu(4): error: no such thing; x.cu(9): error: expected a ";"'
    assert len(nvrtc.first_errors("error " + "x" * 10_000)) <= 600


def test_another_compiler_compiles_anew_and_its_version_is_the_cubins_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = KernelSpec("standalone/clock.cu", "mktune::timer_steps")
    (own,) = build([spec], "sm_90a", cache_dir=tmp_path, facts=False)
    assert own.compiler == nvrtc.compiler() == f"NVRTC {nvrtc.written_version(own.cubin)}"
    assert own.compiler.count(".") == 2
    monkeypatch.setattr(nvrtc, "compiler", lambda: "NVRTC 99.0.1")
    (other,) = build([spec], "sm_90a", cache_dir=tmp_path, facts=False)
    assert other.compiler == "NVRTC 99.0.1"
    assert len(list(tmp_path.glob("kernels/*/*"))) == 2
    assert nvrtc.written_version(b"\x7fELF") == ""


def test_a_folder_that_is_busy_costs_a_warning_and_no_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on shared disks, where what another process has open cannot be removed."""
    cache = KernelCache(tmp_path)
    cache.write(key(), KERNEL, SOURCE)

    def busy(folder: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    bare = replace(KERNEL, facts=None)
    with monkeypatch.context() as patched:
        patched.setattr("mktune.jit.cache.shutil.rmtree", busy)
        with pytest.warns(UserWarning, match="left-over folder .* busy"):
            cache.write(key(), bare, SOURCE)
    assert cache.read(key(), SPEC) == bare


def test_what_was_built_is_used_where_the_cache_does_not_give_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = KernelSpec(
        "standalone/add_rmsnorm_quant.cu",
        "mktune::add_rmsnorm_quant<192, 1, mktune::Gdc::kEntry, mktune::Trigger::kExit>",
    )
    monkeypatch.setattr(KernelCache, "read", lambda *args: None)
    (kernel,) = build([spec], "sm_90a", cache_dir=tmp_path, facts=False)
    assert kernel.cubin.startswith(b"\x7fELF")
