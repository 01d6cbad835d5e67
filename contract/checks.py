"""Checks of plain values, each error with the value's name. Pure: neither torch nor triton.

They are strict, because plans are remembered by their arguments: 7.0 and True would find the plans of 7 and 1.
"""

BEYOND_INT32 = 2**31  # sizes are int32 in the kernels


def whole(name: str, value: int, least: int | None = None) -> int:
    """`value`; TypeError unless it is an int, and no bool; ValueError below `least` and beyond int32."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, but should be a whole number (int)")
    if not -BEYOND_INT32 <= value < BEYOND_INT32:
        raise ValueError(f"{name} is a number of {value.bit_length()} bits, but should be below 2^31")
    if least is not None and value < least:
        raise ValueError(f"{name} is {value}, but should be at least {least}")
    return value


def flag(name: str, value: bool) -> bool:
    """`value`; TypeError unless it is a bool: any other value would count as True or False by what it holds."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, but should be True or False")
    return value


def choice(name: str, value: object, allowed: tuple) -> object:
    """`value`; ValueError unless it is one of `allowed`, and of such a type: True is no 1."""
    if value not in allowed or type(value) not in map(type, allowed):
        raise ValueError(f"{name} is {value!r}, but should be one of {', '.join(map(str, allowed))}")
    return value
