"""Every address that a kernel reads or writes, checked in Triton's interpreter. For a GPU there are tools like this."""

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from .engine import INTERPRETED


@contextlib.contextmanager
def checked_addresses() -> Iterator[None]:
    """Within it, whatever an interpreted launch loads or stores has to lie inside of a tensor that it was given."""
    if not INTERPRETED:
        yield
        return
    from triton.runtime import interpreter

    native, launch, given = interpreter._interpreter, interpreter.GridExecutor.__call__, []
    load, store = native.load, native.store

    def remember(executor, *arguments, **named):
        given[:] = [_bytes_of(one) for one in (*arguments, *named.values()) if hasattr(one, "data_ptr")]
        return launch(executor, *arguments, **named)

    def checked_load(addresses, mask, other, dtype):
        _check("reads", given, addresses[mask.astype(bool)], dtype.itemsize)
        return load(addresses, mask, other, dtype)

    def checked_store(addresses, value, mask):
        _check("writes", given, addresses[mask.astype(bool)], value.itemsize)
        return store(addresses, value, mask)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.GridExecutor, "__call__", remember)
        patch.setattr(native, "load", checked_load)
        patch.setattr(native, "store", checked_store)
        yield


def _bytes_of(tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()


def _check(what: str, given: list[tuple[int, int]], addresses: np.ndarray, size: int) -> None:
    inside = np.zeros(addresses.shape, bool)
    for first, end in given:
        inside |= (addresses >= first) & (addresses + size <= end)
    assert inside.all(), f"{what} {(~inside).sum()} of {inside.size} values outside of its tensors"
