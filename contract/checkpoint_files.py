"""The files of a safetensors checkpoint: where each tensor lies, and how many experts its config.json gives a layer."""

import json
from pathlib import Path

# What the families call it: Qwen, Gemma; Mixtral, Llama 4, MiniMax; DeepSeek, GLM; ERNIE.
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def weight_map(path: str | Path) -> dict[str, Path]:
    """The file of every tensor by key, for a folder, its index, or one safetensors file.

    Raises FileNotFoundError where there is none, ValueError for a damaged file and for an index that is none.
    """
    path = Path(path)
    if path.is_dir():
        index = path / "model.safetensors.index.json"
        path = index if index.is_file() else path / "model.safetensors"
    if path.suffix != ".json":
        with open_tensors(path) as tensors:
            return dict.fromkeys(tensors.keys(), path)
    files = _json(path).get("weight_map")
    if not isinstance(files, dict):
        raise ValueError(f"{path} has no weight_map, but should be the index of a sharded checkpoint")
    for key, file in files.items():
        if not isinstance(file, str) or not file or Path(file).name != file:
            raise ValueError(f"{path} has {key} in {file!r}, but should name a file of its own folder")
    return {key: path.parent / file for key, file in files.items()}


def open_tensors(file: Path):
    """`file` as safetensors' own reader; ValueError where it is not complete."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{file} is not a complete safetensors file: {error}") from error


def configured_experts(path: str | Path) -> tuple[int, str] | None:
    """The number of routed experts in a layer and who says so; None if there is no config.json or it has no number.

    Multimodal models keep the numbers of their text model in a dictionary inside.
    """
    path = Path(path)
    file = (path if path.is_dir() else path.parent) / "config.json"
    if not file.is_file():
        return None
    config = _json(file)
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for name in _EXPERT_COUNTS:
            if type(part.get(name)) is int and part[name] > 0:
                return part[name], f"{name} in {file}"
    return None


def _json(file: Path) -> dict:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # of decoding the text, or of the text
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds a JSON {type(content).__name__}, but should hold an object")
    return content
