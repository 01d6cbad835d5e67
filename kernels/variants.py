"""The W4A16 prefill kernels as data: what each is called, and how the GEMMs of its layer are written. Pure."""

from dataclasses import dataclass, replace

WORD_K = 64  # of the k that the four scales of one int32 word are for
FORMS = {"byte": "gemm.w4a16_gemm", "pair": "gemm_two_dots.w4a16_pair_gemm", "table": "gemm_two_dots.w4a16_table_gemm"}


@dataclass(frozen=True)
class Variant:
    """How both GEMMs of a layer are written. Routing, activation and sum are the same for all.

    `form` is a key of FORMS: "byte" has one dot W @ X^T a step, in K order; "pair" and "table" have two dots X @ W^T,
    on the even and on the odd k. `scale_words`, for the byte form: block scales are loaded four at a time, as int32.
    `emulated`: block scales are decoded from bytes also where the GPU has e4m3.
    """

    form: str = "byte"
    scale_words: bool = False
    emulated: bool = False

    @property
    def two_dots(self) -> bool:
        return self.form != "byte"

    def for_gemm(self, k: int, block_kb: int) -> "Variant":
        """What a GEMM over `k` in steps of `block_kb` bytes can have of it: rows and steps must be of whole words."""
        whole = k % WORD_K == 0 and 2 * block_kb % WORD_K == 0
        return self if whole else replace(self, scale_words=False)


DEFAULT = "prefill_w4a16"

# The others are kept to be compared with the default: {byte, words, emulated} and {pair, table} are two families whose
# members give the same bits at the same tile.
VARIANTS: dict[str, Variant] = {
    DEFAULT: Variant(),
    "prefill_w4a16_words": Variant(scale_words=True),
    "prefill_w4a16_emulated": Variant(emulated=True),
    "prefill_w4a16_pair": Variant("pair"),
    "prefill_w4a16_table": Variant("table"),
}
