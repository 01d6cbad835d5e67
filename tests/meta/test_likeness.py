"""What wrong elements hold instead is named: zeros, NaN, other rows, multiples, slots and steps of K."""

import pytest
import torch

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.reference.patterns import likeness, steps, table
from nvfp4_suite.reference.patterns.difference import Difference

from .outputs import BF16, F64, FP16, NAN


def numbers(key: str, *shape: int) -> torch.Tensor:
    """About normal, float64, without zeros."""
    return (hashed(key, *shape, 4) >> 16).sum(-1).double() / 37_837 - 2 * 0xFFFF / 37_837 + 1e-3


EXPECTED = numbers("likeness", 24, 96)


def changed(change, expected=EXPECTED, dtype=BF16, **more) -> Difference:
    """`change` alters the output in float64, in place or not."""
    actual, right = expected.clone(), expected.to(dtype)
    result = change(actual)
    actual = (actual if result is None else result).to(dtype)
    return Difference(actual, right, actual.view(torch.int16) != right.view(torch.int16), **more)


def put(value, *place):
    def change(x):
        x[place] = value

    return change


def exchange(x):
    x[[3, 7]] = x[[7, 3]]


def exchange_columns(x):
    x[:, [3, 7]] = x[:, [7, 3]]


def copy(x):
    x[5] = x[9]


def flip(x):
    x[:, 32:48] *= -1


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (lambda x: x * 0, ["the whole output is zero"]),
        (lambda x: x * NAN, ["the whole output is NaN"]),
        (put(0, 7), ["row 7 is zero throughout"]),
        (put(0, slice(5, 23, 3)), ["rows 5, 8, 11, 14, ... (6 in all) are zero throughout"]),
        (put(NAN, slice(8, 10)), ["rows 8 and 9 are NaN throughout"]),
        (put(0, slice(None), 95), ["column 95 is zero throughout"]),
        (put(0, slice(2, 6), slice(64, 96)), ["all 128 wrong elements are zero"]),
        (exchange, ["row 3 holds what row 7 should hold, and the other way round"]),
        (exchange_columns, ["column 3 holds what column 7 should hold, and the other way round"]),
        (copy, ["row 5 holds what row 9 should hold"]),
        (lambda x: x.roll(1, 0), ["rows are shifted: row i holds what row i - 1 should hold, in 23 of 24 wrong rows"]),
        (
            lambda x: x.roll(-2, 1),
            ["columns are shifted: column i holds what column i + 2 should hold, in all 32 wrong columns"],
        ),
        (
            lambda x: x.view(24, 48, 2).flip(2).reshape(24, 96),
            ["columns 0 and 1, 2 and 3, and so on are swapped, in all 32 wrong columns"],
        ),
        (
            lambda x: x.flip(0),
            [
                "row 0 holds what row 23 should hold, and the other way round",
                "row 1 holds what row 22 should hold, and the other way round",
                "row 2 holds what row 21 should hold, and the other way round",
                "... and 9 more such rows",
            ],
        ),
        (lambda x: x * 1.02, ["actual = 1.02 x expected in all 2304 wrong elements"]),
        (lambda x: x / 8, ["actual = 2^-3 x expected in all 2304 wrong elements"]),
        (lambda x: -4 * x, ["actual = -2^2 x expected in all 2304 wrong elements"]),
        (flip, ["the sign is flipped in all 384 wrong elements"]),
        (
            lambda x: x * torch.linspace(0.5, 1.5, 24, dtype=F64)[:, None],
            ["each row is multiplied by a factor of its own, 0.5 to 1.5"],
        ),
        (
            lambda x: x * torch.linspace(0.5, 1.5, 96, dtype=F64),
            ["each column is multiplied by a factor of its own, 0.5 to 1.5"],
        ),
        (lambda x: x + 0.3 * numbers("noise", 24, 96), []),
        (lambda x: numbers("other", 24, 96), []),
    ],
)
def test_likeness(change, texts, dtype):
    found = table.find(changed(change, dtype=dtype))
    assert [text for text in found if "wrong elements are in" not in text] == texts


def test_rows_that_are_nearly_right_have_not_moved():
    rows = slice(3, 9)
    assert likeness.moved(changed(put(EXPECTED[rows, 5] + 0.05, rows, 5))) == []


def test_one_ulp_everywhere_is_no_factor():
    right = EXPECTED.to(BF16)
    actual = (right.view(torch.int16) + 1).view(BF16)
    assert likeness.multiple(Difference(actual, right, actual != right)) == []


def test_what_is_not_finite_is_no_factor():
    expected = EXPECTED.to(FP16)
    expected[:, ::2] = torch.inf
    actual = expected.clone()
    actual[:, ::2] = NAN
    assert likeness.multiple(Difference(actual, expected, actual.isnan())) == []


# ---- slots


IDS = hashed("ids", 24, 8).argsort(1)[:, :4]
ROUTES = numbers("routes", 24, 4, 96)
ROUTES = ROUTES.masked_fill((IDS == 6)[..., None], 0)
SUM = ROUTES.sum(1)
OF_3 = ROUTES * (IDS == 3)[..., None]
ROWS_OF_3 = int((IDS == 3).any(1).sum())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x: x - ROUTES[:, 2], "the contribution of slot 2 is missing, in all 24 wrong rows"),
        (lambda x: x + ROUTES[:, 2], "the contribution of slot 2 counts twice, in all 24 wrong rows"),
        (lambda x: x - OF_3.sum(1), f"the contribution of expert 3 is missing, in all {ROWS_OF_3} wrong rows"),
        (
            lambda x: x + 0.02 * OF_3.sum(1),
            f"the contribution of expert 3 is multiplied by 1.02, in all {ROWS_OF_3} wrong rows",
        ),
        (lambda x: x * 1.02, None),
        (lambda x: x + 0.05 * numbers("noise", 24, 96), None),
    ],
)
def test_slots(change, text):
    ids = IDS.masked_fill(IDS == 6, -1)
    found = likeness.slot(changed(change, SUM, ids=ids, routes=ROUTES))
    missing = [] if text is None else [text.replace("all 24", f"all {int((ids[:, 2] >= 0).sum())}")]
    assert found == missing


def test_a_scaled_output_is_not_taken_for_the_slot_that_dominates_it():
    routes = torch.stack([numbers("large", 24, 96), 0.3 * numbers("small", 24, 96)], dim=1)
    total = routes.sum(1)
    assert likeness.slot(changed(lambda x: x * 1.05, total, ids=IDS[:, :2], routes=routes)) == []
    found = likeness.slot(changed(lambda x: x + 0.05 * routes[:, 0], total, ids=IDS[:, :2], routes=routes))
    assert found == ["the contribution of slot 0 is multiplied by 1.05, in all 24 wrong rows"]


def test_a_slot_of_one_token():
    def forget(x):
        x[9] -= ROUTES[9, 1]

    found = likeness.slot(changed(forget, SUM, ids=IDS, routes=ROUTES))
    assert found == [f"the contribution of slot 1 = expert {IDS[9, 1]} is missing, in the wrong row"]


# ---- steps of K


def gemm(k: int, rows=20, columns=48) -> tuple[torch.Tensor, torch.Tensor]:
    return numbers("x", rows, k), numbers("weight", columns, k)


def without(first: int, last: int):
    return lambda x, weight: x[:, first:last] @ -weight[:, first:last].T


def twice(first: int, last: int):
    return lambda x, weight: x[:, first:last] @ weight[:, first:last].T


def swapped_nibbles(x, weight):
    return x @ (weight.view(len(weight), -1, 2).flip(2).flatten(1) - weight).T


def without_odd(x, weight):
    return x[:, 1::2] @ -weight[:, 1::2].T


@pytest.mark.parametrize(
    ("k", "error", "texts"),
    [
        (128, without(64, 128), ["the last K step of 64, k 64 to 127, is missing"]),
        (128, without(96, 128), ["the last K step of 32, k 96 to 127, is missing"]),
        (128, without(112, 128), ["the last K step of 16, k 112 to 127, is missing"]),
        (128, without(32, 48), ["K step 2 of 16, k 32 to 47, is missing"]),
        (128, twice(0, 32), ["K step 0 of 32, k 0 to 31, counts twice"]),
        (80, without(64, 80), ["the last K step of 16, k 64 to 79, is missing"]),
        (112, without(64, 112), ["the last K step of 48, k 64 to 111, is missing"]),
        (128, swapped_nibbles, ["even and odd k are swapped (the nibbles of a byte)"]),
        (128, without_odd, ["all odd k are missing (one nibble of each byte)"]),
        (128, lambda x, weight: 0.1 * x @ weight.T, []),
        (128, without(40, 56), []),
        (48, without(0, 48), []),  # a product of one step: the output is zero, which is said elsewhere
    ],
)
def test_k_steps(k, error, texts):
    x, weight = gemm(k)
    found = steps.k_steps(changed(lambda total: total + error(x, weight), x @ weight.T, operands=(x, weight)))
    assert found == texts


def test_a_step_that_some_rows_alone_lack_explains_nothing():
    x, weight = gemm(128)

    def change(total):
        total[:10] += without(64, 128)(x, weight)[:10]
        total[10:] += 0.2 * numbers("noise", 10, 48)

    assert steps.k_steps(changed(change, x @ weight.T, operands=(x, weight))) == []
