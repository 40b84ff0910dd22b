"""Are these the same bits as before? Tensors as numbers, so that results of every earlier plan can be remembered.

On a GPU a digest is multilinear over the 32-bit words of a tensor: Σ words × weights, in integers modulo 2^64, with odd
weights that are as good as random. Tensors that differ have equal digests with a probability of about 2^-32, whatever a
kernel did wrong. All tensors are read by one launch: a search takes some hundred digests for every plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from mktune.executors.arguments import pack
from mktune.executors.discovery import find_device
from mktune.executors.driver_calls import call
from mktune.executors.modules import MODULES
from mktune.jit.build import build
from mktune.launch import BufferArg, CompiledKernel, KernelSpec

if TYPE_CHECKING:
    import torch

    Tensors = Sequence[torch.Tensor]

KERNEL = KernelSpec("standalone/digest.cu", "mktune::digest")
PIECE_BYTES = 1 << 16
"""What one CTA reads at most."""
_THREADS = 256


def digests(layers: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, int]]:
    """The digest of every (contiguous) tensor of every layer, by name. All lie on one device; waits for it once."""
    each = [tensor for layer in layers for tensor in layer.values()]
    values = iter(_on_gpu(each) if each and each[0].is_cuda else [_of_bytes(tensor) for tensor in each])
    return [{name: next(values) for name in layer} for layer in layers]


def _of_bytes(tensor: torch.Tensor) -> int:
    import torch

    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _on_gpu(tensors: Tensors) -> list[int]:
    """By one launch on the current stream. Addresses must be multiples of 4."""
    import torch

    index = tensors[0].get_device()
    pieces = _pieces(tuple((tensor.data_ptr(), tensor.nbytes) for tensor in tensors), index)
    sums = torch.zeros(len(tensors), dtype=torch.int64, device=pieces.device)
    arguments = {"pieces": pieces.data_ptr(), "sums": sums.data_ptr()}
    packed = pack((BufferArg("pieces"), BufferArg("sums")), arguments.__getitem__)
    function = MODULES.take(_kernel(index), 0, 1)
    try:
        stream = torch.cuda.current_stream(index).cuda_stream
        call("cuLaunchKernel", function.handle, len(pieces), 1, 1, _THREADS, 1, 1, 0, stream, packed.address, 0)
        found: list[int] = sums.tolist()
    finally:
        MODULES.give_back(function)
    return found


@cache
def _kernel(index: int) -> CompiledKernel:
    (kernel,) = build([KERNEL], find_device(index).arch, facts=False)
    return kernel


@lru_cache(maxsize=8)
def _pieces(spans: tuple[tuple[int, int], ...], index: int) -> torch.Tensor:
    """[pieces, 4]: address, bytes, the tensor's number and the piece's first word in it, of tensors at `spans`."""
    import torch

    found = [
        (address + begin, min(PIECE_BYTES, size - begin), number, begin // 4)
        for number, (address, size) in enumerate(spans)
        for begin in range(0, max(1, size), PIECE_BYTES)
    ]
    return torch.tensor(found, dtype=torch.int64, device=f"cuda:{index}")
