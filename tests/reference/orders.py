"""One sum in many orders."""

from itertools import islice, permutations

import torch

from nvfp4_suite.contract.case import hashed


def orders(k: int) -> list[torch.Tensor]:
    """Forwards, backwards, even k before odd k, and three shuffles."""
    forwards = torch.arange(k)
    shuffles = [hashed(f"order {i}", k).argsort() for i in range(3)]
    return [forwards, forwards.flip(0), torch.cat([forwards[0::2], forwards[1::2]]), *shuffles]


def sum_in(dtype: torch.dtype, terms: torch.Tensor) -> torch.Tensor:
    """The sum over the last dimension, one addition after the other, each rounded to `dtype`."""
    total = torch.zeros(terms.shape[:-1], dtype=dtype)
    for k in range(terms.shape[-1]):
        total = (total.float() + terms[..., k].float()).to(dtype)
    return total


def sums_that_differ(terms: torch.Tensor) -> int:
    """How many fp32 sums differ from the float64 sum in some order, or in two halves added at the end."""
    exact, k = terms.sum(-1), terms.shape[-1]
    tried = [sum_in(torch.float32, terms[..., order]) for order in orders(k)]
    tried.append(sum_in(torch.float32, terms[..., : k // 2]) + sum_in(torch.float32, terms[..., k // 2 :]))
    return int(torch.stack([total != exact for total in tried]).any(0).sum())


def differing_in_some_order(terms: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """bool [...]: whether two orders of the last dimension, all up to 120, give different sums in `dtype`."""
    every = permutations(range(terms.shape[-1]))
    sums = [sum_in(dtype, terms[..., list(order)]) for order in islice(every, 120)]
    return torch.stack([total != sums[0] for total in sums]).any(0)
