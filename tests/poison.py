"""Poisoned allocations: what a kernel forgets to write shows as NaN, what it writes beside its buffers is noticed."""

import contextlib
import math
import os
from collections.abc import Iterator

import pytest
import torch

from nvfp4_suite.ci import sanitizer

# Bytes on either side; a multiple of 16, so that buffers stay aligned. None under a sanitizer, which sees where an
# allocation ends, and would take an access of them for one of the buffer.
_MARGIN = 0 if os.environ.get(sanitizer.VARIABLE) else 256
_CANARY = 0xA5


@contextlib.contextmanager
def poisoned_allocations() -> Iterator[None]:
    """Within it, torch.empty, torch.empty_like and Tensor.new_empty give poisoned buffers between canaries.

    Floats start as NaN, integers as bytes 0x7F. At the end every canary must stand as it was.
    """
    guarded: list[torch.Tensor] = []

    def allocate(shape: tuple[int, ...], dtype: torch.dtype, device) -> torch.Tensor:
        size = math.prod(shape) * dtype.itemsize
        whole = torch.full((size + 2 * _MARGIN,), _CANARY, dtype=torch.uint8, device=device)
        guarded.append(whole)
        inner = whole[_MARGIN : _MARGIN + size].view(dtype).view(shape)
        return inner.fill_(math.nan) if dtype.is_floating_point else inner.view(torch.uint8).fill_(0x7F).view(dtype)

    def empty(*shape, dtype=None, device=None):
        return allocate(_flat(shape), dtype or torch.get_default_dtype(), device)

    def empty_like(like, dtype=None, device=None, memory_format=None):
        return allocate(tuple(like.shape), dtype or like.dtype, device or like.device)

    def new_empty(like, *shape, dtype=None, device=None):
        return allocate(_flat(shape), dtype or like.dtype, device or like.device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        patch.setattr(torch, "empty_like", empty_like)
        patch.setattr(torch.Tensor, "new_empty", new_empty)
        yield
    for whole in guarded:
        outside = torch.cat([whole[:_MARGIN], whole[whole.numel() - _MARGIN :]])
        assert (outside == _CANARY).all(), f"a kernel wrote outside its buffer of {whole.numel() - 2 * _MARGIN} bytes"


def _flat(shape: tuple) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
