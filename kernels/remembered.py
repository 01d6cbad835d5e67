"""Plans are computed once. Pure."""

import inspect
from collections.abc import Callable, Hashable
from functools import lru_cache, wraps


def remembered(function: Callable) -> Callable:
    """`function` with the last 4096 results kept, by arguments and their types; TypeError names one without a hash."""
    cached, signature = lru_cache(maxsize=4096, typed=True)(function), inspect.signature(function)

    @wraps(function)
    def call(*arguments, **named):
        try:
            return cached(*arguments, **named)
        except TypeError:
            for name, value in signature.bind(*arguments, **named).arguments.items():
                if not isinstance(value, Hashable):
                    raise TypeError(f"{name} is {value!r}, but should be a value that can be remembered") from None
            raise

    call.cache_clear = cached.cache_clear
    return call
