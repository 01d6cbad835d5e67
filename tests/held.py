"""Tensors that one test leaves for the next ones, gigabytes at times, and that a test which needs the room lets go."""

import gc
from collections.abc import Callable
from functools import lru_cache

import torch

_HELD = []


def held(maxsize: int) -> Callable[[Callable], Callable]:
    """An `lru_cache` that `release` clears."""

    def decorate(function: Callable) -> Callable:
        cached = lru_cache(maxsize)(function)
        _HELD.append(cached)
        return cached

    return decorate


def release() -> None:
    """Lets go of all that is held, and of what torch keeps of what was freed."""
    for cached in _HELD:
        cached.cache_clear()
    gc.collect()
    torch.cuda.empty_cache()
