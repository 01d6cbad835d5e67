"""What the key of a routed expert's tensor says, and the two dialects that are told apart by it.

ModelOpt stores multipliers; compressed-tensors stores divisors. Experts have tensors of their own, or a layer has one
for all of them ("fused"), which ModelOpt names gate_up_proj_weight_scale and compressed-tensors
gate_up_proj.weight_scale. Experts that are not quantized have a weight alone.
"""

import re
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from .checkpoint_files import open_tensors

# Suffix of the key: role, and the dialect that it belongs to (None: both).
SUFFIXES = {
    "weight": ("packed", "ModelOpt"),
    "weight_packed": ("packed", "compressed-tensors"),
    "weight_scale": ("scale", None),
    "weight_scale_2": ("global", "ModelOpt"),
    "weight_global_scale": ("global", "compressed-tensors"),
    "input_scale": ("input_scale", "ModelOpt"),
    "input_global_scale": ("input_scale", "compressed-tensors"),
}
DENSE = {"BF16": "bf16", "F16": "fp16"}  # the dtypes of weights that are not quantized
_DTYPES = {"packed": "U8", "scale": "F8_E4M3", "global": "F32", "input_scale": "F32"}

# The second name of each projection is that of the Mixtral family.
_PROJECTIONS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
_FUSED = {"gate_up_proj": "gate_up", "down_proj": "down"}

# "mtp" holds a draft model, whose layers count from 0 again.
_LAYER = r"(?!.*\bmtp\.).*\blayers\.(\d+)\.(?:\w+\.)*experts\."
_OWN = re.compile(rf"{_LAYER}(\d+)\.({'|'.join(_PROJECTIONS)})\.(.+)")
_OF_ALL = re.compile(rf"{_LAYER}({'|'.join(_FUSED)})(?:[._](.+))?")


class Header(NamedTuple):
    """One tensor, as its key and its file's header describe it.

    `expert` is None where the tensor holds all of them; then `projection` may be "gate_up". `role` is "packed",
    "scale", "global", "input_scale" or, for weights in bf16 or fp16, "dense".
    """

    expert: int | None
    projection: str
    role: str
    dialect: str | None
    key: str
    file: Path
    shape: list[int]
    dtype: str


def layer_of(key: str) -> int | None:
    """The layer whose routed experts `key` belongs to; None for any other tensor."""
    match = _OWN.fullmatch(key) or _OF_ALL.fullmatch(key)
    return int(match[1]) if match else None


def expert_of(key: str) -> int | None:
    """The routed expert whose own tensor `key` names; None for any other tensor."""
    match = _OWN.fullmatch(key)
    return int(match[2]) if match else None


def read_headers(files: dict[str, Path]) -> list[Header]:
    """The expert tensors of one layer, file by file; `files` has the file of each by key."""
    wanted = sorted((file, key) for key, file in files.items())
    headers = []
    for file, group in groupby(wanted, key=lambda pair: pair[0]):
        with open_tensors(file) as tensors:
            there = set(tensors.keys())
            for _, key in group:
                if key not in there:
                    raise KeyError(f"{key} is missing from {file}, where the index has it")
                headers.append(_header(key, file, tensors.get_slice(key)))
    return headers


def _header(key: str, file: Path, found) -> Header:
    dtype = found.get_dtype()
    expert, projection, suffix = _parts(key)
    if suffix not in SUFFIXES:
        hint = "; these banks have no bias" if suffix.endswith("bias") else ""
        raise ValueError(f"{key} is no tensor of NVFP4 experts; these are {', '.join(SUFFIXES)}{hint} ({file})")
    role, dialect = SUFFIXES[suffix]
    if suffix == "weight" and dtype in DENSE:
        role, dialect = "dense", None
    elif dtype != _DTYPES[role]:
        or_dense = f", or {' or '.join(DENSE)} in others" if suffix == "weight" else ""
        raise TypeError(f"{key} is {dtype}, but should be {_DTYPES[role]} in NVFP4 experts{or_dense} ({file})")
    return Header(expert, projection, role, dialect, key, file, found.get_shape(), dtype)


def _parts(key: str) -> tuple[int | None, str, str]:
    """Expert, projection and suffix."""
    if match := _OWN.fullmatch(key):
        return int(match[2]), _PROJECTIONS[match[3]], match[4]
    match = _OF_ALL.fullmatch(key)
    return None, _FUSED[match[2]], match[3] or "weight"


def wanted_key(key: str, role: str, dialects: set[str]) -> str:
    """How the tensor of `role` beside `key` is called, in `dialects` or, if that is empty, in either."""
    names = [s for s, (r, dialect) in SUFFIXES.items() if r == role and (not dialects or dialect in {None, *dialects})]
    if _OWN.fullmatch(key):
        return f"{key.rpartition('.')[0]}.{' or '.join(names)}"
    at = _OF_ALL.fullmatch(key).end(2)
    separator = key[at : at + 1] or "_"
    if role == "packed" and separator == "_":
        return key[:at]
    return key[:at] + separator + " or ".join(names)
