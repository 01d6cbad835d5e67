"""The GEMV's decode of words of eight codes, against the definition of e2m1: every byte at every place of a word."""

import pytest
import torch
import triton
import triton.language as tl

from nvfp4_suite.contract.case import hashed, torch_dtype
from nvfp4_suite.kernels.device.gemv import word_sums
from nvfp4_suite.reference import formats

ROWS, WORDS = 16, 128


@triton.jit
def _word_sums(x, words, out, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """One program: `words` [ROWS, WORDS] against its own `x` [WORDS, 8]."""
    program = tl.program_id(0)
    row, word = tl.arange(0, ROWS)[:, None], tl.arange(0, WORDS)
    x_tile = x + program * WORDS * 8 + word[:, None] * 8 + tl.arange(0, 8)[None, :]
    sums = word_sums(tl.load(words + row * WORDS + word[None, :]), tl.load(x_tile))
    tl.store(out + program * ROWS * WORDS + row * WORDS + word[None, :], sums)


def _every_byte_everywhere() -> torch.Tensor:
    """u8 [2048, 4], the bytes of words: each byte at each of the four places, alone and among others."""
    alone = torch.diag_embed(torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 4)).reshape(1024, 4)
    others = (hashed("word_sums/others", 1024, 4) & 0xFF).to(torch.uint8)
    return torch.cat([alone, torch.where(alone == 0, others, alone)])


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_code_at_every_place_of_a_word(dtype, device):
    """Each of eight programs picks out the codes of one place, with an x that is 1 there and 0 elsewhere."""
    packed = _every_byte_everywhere()
    x = torch.eye(8).repeat_interleave(WORDS, 0).reshape(8, WORDS, 8).to(torch_dtype(dtype))
    out = torch.full((8, ROWS * WORDS), torch.nan, device=device)
    _word_sums[(8,)](x.to(device), packed.view(torch.int32).to(device), out, ROWS=ROWS, WORDS=WORDS)
    expected = formats.decode_e2m1(formats.unpack(packed)) * 2.0**-14  # [words, place]
    wrong = (expected != out.cpu().T).nonzero()
    assert not len(wrong), f"{len(wrong)} of {expected.numel()} codes differ, first [word, place] {wrong[0].tolist()}"
