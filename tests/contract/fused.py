"""Tiny checkpoints whose experts are fused, in every form that contract/checkpoint_entries.py lists."""

import re

import torch

_OWN = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.(\w+)")


def stacks(tensors: dict) -> dict[tuple[str, str, str], torch.Tensor]:
    """The tensors of all experts, stacked: (name before the expert, projection, suffix) -> [E, ...]."""
    groups = {}
    for key, tensor in tensors.items():
        name, expert, projection, suffix = _OWN.fullmatch(key).groups()
        groups.setdefault((name, projection, suffix), {})[int(expert)] = tensor
    return {parts: torch.stack([group[e] for e in sorted(group)]) for parts, group in groups.items()}


def fused(tensors: dict, separator: str, matrix=lambda t: t, scalars=lambda t: t) -> dict[str, torch.Tensor]:
    """`tensors` of experts of their own with gate and up joined, and what `matrix` and `scalars` make of the stacks.

    Matrices come as [E, N, columns], scalars as [E, 2] for gate and up and [E, 1] for down. With the separator "_" the
    weight itself has no suffix.
    """
    found, joined = stacks(tensors), {}
    for (name, projection, suffix), stack in found.items():
        if projection == "up":
            continue
        parts = [stack] if projection == "down" else [stack, found[name, "up", suffix]]
        if stack.dim() == 3:
            out = matrix(torch.cat(parts, dim=1))
        else:
            out = scalars(torch.stack([part.reshape(len(part)) for part in parts], dim=1))
        whole = f"{name}.{'down' if projection == 'down' else 'gate_up'}_proj"
        bare = separator == "_" and suffix == "weight"
        joined[whole if bare else f"{whole}{separator}{suffix}"] = out.contiguous()
    return joined


def transposed(stack: torch.Tensor) -> torch.Tensor:
    return stack.transpose(1, 2)


def flat(stack: torch.Tensor) -> torch.Tensor:
    return stack.flatten(0, 1)


SCALARS = ("weight_scale_2", "input_scale", "weight_global_scale", "input_global_scale")


def one_scalar(tensors: dict, of: str = "0.gate_proj") -> dict[str, torch.Tensor]:
    """`tensors` in which all scalars are those `of` one projection, as exporters of one for a layer have."""
    changed = dict(tensors)
    for key in tensors:
        name, _, suffix = key.rpartition(".")
        if suffix in SCALARS:
            changed[key] = tensors[re.sub(r"(\d+)\.\w+$", of, name) + f".{suffix}"].clone()
    return changed


def scalar_per_expert(tensors: dict) -> dict[str, torch.Tensor]:
    """`tensors` in which each expert has the scalars of its gate alone."""
    return one_scalar(tensors, of=r"\1.gate_proj")


def of_layer(scalars: torch.Tensor) -> torch.Tensor:
    """The one scalar of [E, n] equal ones, with no dimension."""
    return scalars[0, 0]
