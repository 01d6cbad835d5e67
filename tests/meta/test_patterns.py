"""Every pattern is found where it was planted, in words, and none where there is none."""

import pytest
import torch

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.reference.patterns import places, table
from nvfp4_suite.reference.patterns.difference import Difference

from .outputs import output

ALL = slice(None)


def found(wrong: torch.Tensor, ids: torch.Tensor | None = None) -> list[str]:
    """The patterns of places alone: what the wrong elements hold is noise."""
    expected = output(*wrong.shape) if wrong.dim() == 2 else torch.ones(len(wrong))
    noise = torch.randn(wrong.shape, generator=torch.Generator().manual_seed(8)).to(expected.dtype)
    return table.find(Difference(torch.where(wrong, noise, expected), expected, wrong, ids))


def marked(*place, rows=32, columns=128) -> torch.Tensor:
    wrong = torch.zeros(rows, columns, dtype=torch.bool)
    wrong[place] = True
    return wrong


# ---- rows and columns


@pytest.mark.parametrize(
    ("place", "texts"),
    [
        ((3, ALL), ["all 128 wrong elements are in row 3"]),
        ((slice(3, 8, 4), ALL), ["all 256 wrong elements are in rows 3 and 7"]),
        ((ALL, 17), ["all 32 wrong elements are in column 17"]),
        ((ALL, 64), ["all 32 wrong elements are in column 64, from a multiple of 64"]),
        ((ALL, slice(126, 128)), ["all 64 wrong elements are in columns 126 and 127"]),
        ((ALL, slice(32, 48)), ["all 512 wrong elements are in columns 32 to 47, from a multiple of 32"]),
        ((ALL, slice(33, 48)), ["all 480 wrong elements are in columns 33 to 47"]),
        (
            (ALL, slice(112, 128)),
            ["all 512 wrong elements are in the last 16 columns, 112 to 127, from a multiple of 16"],
        ),
        (
            (ALL, slice(64, 128)),
            ["all 2048 wrong elements are in the last 64 columns, 64 to 127 (the second half), from a multiple of 64"],
        ),
        ((ALL, slice(0, 64)), ["all 2048 wrong elements are in columns 0 to 63 (the first half)"]),
        ((ALL, slice(1, None, 2)), ["all 2048 wrong elements are in odd columns"]),
        ((ALL, slice(0, None, 2)), ["all 2048 wrong elements are in even columns"]),
        ((slice(0, None, 2), ALL), ["all 2048 wrong elements are in even rows"]),
        ((ALL, slice(15, None, 16)), ["all 256 wrong elements are in column 15 of every 16"]),
        ((ALL, torch.arange(128) % 32 >= 24), ["all 1024 wrong elements are in columns 24 to 31 of every 32"]),
        (
            (slice(16, 32), 5),
            [
                "all 16 wrong elements are in the last 16 rows, 16 to 31 (the second half), from a multiple of 16",
                "all 16 wrong elements are in column 5",
            ],
        ),
        ((ALL, ALL), []),
        ((3, slice(0, 1)), []),  # one element shows no pattern
    ],
)
def test_rows_and_columns(place, texts):
    assert found(marked(*place)) == texts


def test_a_pattern_survives_a_few_strays():
    wrong = marked(3, ALL)
    wrong[20, 77] = wrong[9, 4] = True
    assert found(wrong) == ["128 of 130 wrong elements are in row 3"]


@pytest.mark.parametrize("count", [1, 4, 8, 40, 400])
def test_random_places_have_no_pattern(count):
    for seed in range(25):
        wrong = marked([], [])
        wrong.view(-1)[hashed(f"{seed}/places", wrong.numel()).argsort()[:count]] = True
        ids = hashed(f"{seed}/ids", 32, 8).argsort(1)[:, :2]
        assert [text for text in found(wrong, ids) if "is a token of" not in text] == []


def test_random_rows_have_no_pattern():
    """Two wrong rows are named, but a run of half of the rows that happens to hold five is none."""
    assert found(marked([0, 3, 8, 11, 15], ALL)) == []


def test_a_one_dimensional_output_has_columns():
    wrong = torch.zeros(64, dtype=torch.bool)
    wrong[48:] = True
    assert found(wrong) == ["all 16 wrong elements are in the last 16 columns, 48 to 63, from a multiple of 16"]


# ---- experts, slots and places in an expert's list


def tokens_of(which: torch.Tensor, ids: torch.Tensor) -> list[str]:
    wrong = which[:, None].expand(-1, 32)
    return places.tokens(Difference(wrong.float(), 1 - wrong.float(), wrong, ids))


def routed(tokens: int, experts: int, top_k: int) -> torch.Tensor:
    return hashed("routed", tokens, experts).argsort(1)[:, :top_k]


def last_of_each_expert(ids: torch.Tensor) -> torch.Tensor:
    last = torch.zeros(len(ids), dtype=torch.bool)
    for expert in ids[ids >= 0].unique():
        last[(ids == expert).any(1).nonzero()[-1]] = True
    return last


def position(ids: torch.Tensor) -> torch.Tensor:
    """Of each route in its expert's list, counted token by token and slot by slot."""
    flat = ids.flatten().tolist()
    return torch.tensor([flat[:i].count(expert) for i, expert in enumerate(flat)]).view(ids.shape)


IDS, FEW = routed(96, 8, 2), routed(24, 8, 2)
HOT = torch.cat([torch.zeros(96, 1, dtype=torch.int64), 1 + routed(96, 7, 1)], dim=1)
DROPPED = torch.where(hashed("dropped", 96, 2) % 10 == 0, -1, IDS)
TWICE = torch.where((torch.arange(96) % 9 == 0)[:, None], IDS[:, :1], IDS)
TWICE[1::9] = -1


@pytest.mark.parametrize(
    ("ids", "which", "name"),
    [
        (IDS, (IDS == 3).any(1), "tokens of expert 3"),
        (FEW, (FEW == 3).any(1), "tokens of expert 3"),
        (IDS, IDS[:, 0] == 3, "tokens that have expert 3 in slot 0"),
        (IDS, IDS[:, 1] == 3, "tokens that have expert 3 in the last slot"),
        (DROPPED, (DROPPED < 0).any(1), "tokens with a dropped slot"),
        (TWICE, torch.arange(96) % 9 == 0, "tokens that name an expert twice"),
        (IDS, last_of_each_expert(IDS), "the last token of each expert"),
        (DROPPED.flip(0), last_of_each_expert(DROPPED).flip(0), "the first token of each expert"),
        (DROPPED, last_of_each_expert(DROPPED), "the last token of each expert"),
        (IDS, (position(IDS) >= 16).any(1), "tokens at positions >= 16 in their expert's list, a token-block edge"),
        (HOT, (position(HOT) >= 64).any(1), "tokens at positions >= 64 in their expert's list, a token-block edge"),
        (
            IDS,
            ((position(IDS) >= 16) & (IDS == 5)).any(1),
            "tokens at positions >= 16 in the list of expert 5, a token-block edge",
        ),
    ],
)
def test_tokens(ids, which, name):
    every = f"all {which.sum()}"
    assert tokens_of(which, ids) == [f"{every} wrong rows are {name}, and {every} such rows are wrong"]


def test_an_experts_tokens_are_named_although_one_is_right_and_another_is_wrong():
    which = (IDS == 3).any(1)
    count = int(which.sum())
    which[[int(which.nonzero()[0]), int((~which).nonzero()[5])]] ^= True
    share = f"{count - 1} of {count}"
    assert tokens_of(which, IDS) == [f"{share} wrong rows are tokens of expert 3, and {share} such rows are wrong"]


def test_one_wrong_token_is_named_with_its_experts():
    first, second = IDS[5].tolist()
    texts = tokens_of(torch.arange(96) == 5, IDS)
    assert texts == [f"row 5 is a token of experts {first} and {second}"]
    dropped = torch.tensor([[-1] * 8, [-1] * 4 + [5] + [-1] * 3, list(range(8))])
    texts = [tokens_of(torch.arange(3) == row, dropped)[0] for row in range(3)]
    names = ("no expert", "expert 5", "experts 0, 1, 2, 3, 4, 5, 6 and 7")
    assert texts == [f"row {row} is a token of {name}" for row, name in enumerate(names)]


def test_three_tokens_may_be_those_of_one_of_eight_experts_by_accident():
    ids = torch.arange(24)[:, None] % 8
    assert tokens_of((ids == 5).any(1), ids) == []


def test_all_tokens_are_no_pattern():
    assert tokens_of(torch.ones(96, dtype=torch.bool), IDS) == []
