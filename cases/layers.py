"""The case table of whole layers: one line a case. See contract.case.Case for what the words mean.

Most cases are tiny, because Triton's interpreter runs them too: a program is one token block x 64 weight rows, about
15 ms each. The id of a case is its key everywhere; changing a line makes another case.
"""

from ..contract.case import Case
from ..contract.shapes import LayerShape as Shape  # experts, top_k, hidden, intermediate

# Of W4A16. Sums are exact in any order, so every engine must give the same bits; so must they in the next two tables.
W4A16: tuple[Case, ...] = (
    # Ragged K (a step is 64) and N (a tile is 64 rows, gate_up has 2I), on either side of a step and of a tile.
    Case(Shape(4, 2, 48, 80), 5),
    Case(Shape(4, 2, 48, 80), 5, dtype="fp16"),
    Case(Shape(4, 2, 80, 48), 6),
    Case(Shape(4, 2, 80, 48), 6, dtype="fp16"),
    Case(Shape(4, 2, 272, 80), 4),
    Case(Shape(4, 2, 80, 272), 4, dtype="fp16"),
    Case(Shape(2, 1, 16, 16), 3),
    Case(Shape(3, 2, 64, 64), 5, dtype="fp16"),
    Case(Shape(3, 3, 128, 32), 4),
    # Routings, among them one token, one expert, one route, and more slots than experts.
    Case(Shape(4, 2, 48, 80), 1),
    Case(Shape(4, 1, 48, 80), 1, dtype="fp16"),
    Case(Shape(1, 1, 80, 48), 7),
    Case(Shape(1, 2, 48, 48), 4, dtype="fp16"),
    Case(Shape(4, 2, 48, 80), 17, "hot"),
    Case(Shape(16, 2, 48, 48), 6, "few"),
    Case(Shape(4, 3, 48, 80), 5, "twice"),
    Case(Shape(4, 3, 80, 48), 5, "twice", dtype="fp16"),
    Case(Shape(4, 2, 48, 80), 8, "dropped"),
    Case(Shape(4, 4, 80, 48), 6, "dropped", dtype="fp16"),
    Case(Shape(16, 8, 48, 48), 3),
    Case(Shape(16, 8, 48, 48), 3, dtype="fp16"),
    # Activations.
    Case(Shape(4, 2, 48, 80), 5, activation="gelu"),
    Case(Shape(4, 2, 48, 80), 5, activation="gelu", dtype="fp16"),
    Case(Shape(4, 2, 48, 80), 5, activation="gelu_tanh"),
    Case(Shape(4, 2, 48, 80), 5, activation="gelu_tanh", dtype="fp16"),
    Case(Shape(4, 2, 48, 80), 5, activation="swigluoai", activation_limit=64.0),
    Case(Shape(4, 2, 48, 80), 5, activation="swigluoai", activation_limit=64.0, dtype="fp16"),
    Case(Shape(4, 2, 48, 80), 5, activation="swigluoai", activation_alpha=1.0, activation_limit=80.0),
    Case(Shape(4, 2, 48, 80), 5, activation="swigluoai", activation_limit=2048.0),
    # Weight on the input.
    Case(Shape(4, 2, 48, 80), 5, weight_on_input=True),
    Case(Shape(4, 2, 48, 80), 5, weight_on_input=True, dtype="fp16"),
    Case(Shape(4, 3, 80, 48), 5, "twice", weight_on_input=True),
    Case(Shape(4, 2, 80, 48), 8, "dropped", activation="gelu", weight_on_input=True),
    Case(Shape(4, 2, 48, 80), 5, activation="swigluoai", activation_limit=64.0, weight_on_input=True, dtype="fp16"),
    # Token blocks of 16, 32, 64 and 128 (chosen by the mean tokens per expert): full, one over, partly filled.
    Case(Shape(4, 1, 48, 16), 16, "hot"),
    Case(Shape(4, 1, 48, 16), 17, "hot", dtype="fp16"),
    Case(Shape(4, 1, 48, 16), 64, "hot"),
    Case(Shape(4, 1, 48, 16), 65, "hot", dtype="fp16"),
    Case(Shape(2, 1, 48, 16), 64, "hot"),
    Case(Shape(2, 1, 48, 16), 65, "hot", dtype="fp16"),
    Case(Shape(1, 1, 48, 16), 65, dtype="fp16"),
    Case(Shape(1, 1, 48, 16), 128),
    Case(Shape(1, 1, 48, 16), 129),
    # Whole tiles of 128 rows and steps of 64, which wgmma's own kernels ask for: options and routings.
    Case(Shape(2, 2, 256, 256), 5),
    Case(Shape(2, 2, 256, 256), 5, dtype="fp16"),
    Case(Shape(4, 3, 256, 256), 3, "twice", activation="gelu", weight_on_input=True),
    Case(Shape(4, 2, 256, 320), 4, "dropped", activation="gelu_tanh", dtype="fp16", tier="ci"),
    Case(Shape(2, 1, 384, 256), 3, activation="swigluoai", activation_limit=64.0, tier="ci"),
    # Their loop over K: twice round, and what else there is of steps under way at once and of steps that it leaves.
    Case(Shape(1, 1, 256, 768), 3, dtype="fp16"),
    Case(Shape(2, 1, 512, 704), 2, dtype="fp16", tier="all"),
    Case(Shape(1, 1, 256, 1088), 2, tier="all"),
    Case(Shape(1, 1, 256, 1472), 2, dtype="fp16", tier="all"),
    Case(Shape(1, 1, 256, 1856), 2, tier="all"),
    Case(Shape(1, 1, 640, 384), 3, dtype="fp16", tier="all"),
    Case(Shape(1, 1, 768, 1408), 2),
    # Their widths of a block: 32 and 64, from 96 tokens per expert on 64, 128 and 256; and other rests of their loop.
    Case(Shape(1, 1, 256, 256), 33, tier="ci"),
    Case(Shape(2, 1, 256, 320), 65, "hot", dtype="fp16", tier="ci"),
    Case(Shape(1, 1, 256, 448), 96, tier="ci"),
    Case(Shape(1, 1, 384, 576), 129, dtype="fp16", tier="all"),
    Case(Shape(1, 1, 256, 320), 300, tier="all"),
    Case(Shape(1, 1, 256, 512), 80, dtype="fp16", tier="all"),
    Case(Shape(1, 1, 256, 704), 81, tier="all"),
    Case(Shape(1, 1, 512, 1088), 82, dtype="fp16", tier="all"),
    Case(Shape(1, 1, 256, 1472), 83, tier="all"),
    Case(Shape(1, 1, 256, 1856), 84, tier="all"),
    Case(Shape(2, 2, 1024, 640), 192, "dropped", activation="swigluoai", activation_limit=64.0, tier="all"),
    Case(Shape(4, 2, 640, 1536), 256, "twice", dtype="fp16", weight_on_input=True, tier="all"),
    # Several K steps, row tiles and token blocks at once.
    Case(Shape(8, 4, 272, 80), 33, tier="ci"),
    Case(Shape(8, 4, 80, 272), 33, "dropped", dtype="fp16", tier="ci"),
    Case(Shape(2, 1, 1024, 640), 65, tier="all"),
    Case(Shape(4, 3, 1024, 640), 33, dtype="fp16", tier="all"),
)

# Activations are quantized, with static input scales.
W4A4: tuple[Case, ...] = (
    # Ragged K and N.
    Case(Shape(4, 2, 48, 80), 5, format="w4a4"),
    Case(Shape(4, 2, 48, 80), 5, format="w4a4", dtype="fp16"),
    Case(Shape(4, 2, 80, 48), 6, format="w4a4", dtype="fp16"),
    Case(Shape(4, 2, 272, 80), 4, format="w4a4"),
    Case(Shape(4, 2, 80, 272), 4, format="w4a4", dtype="fp16"),
    Case(Shape(3, 3, 128, 32), 4, format="w4a4"),
    # Routings, among them one token, one expert, and more slots than experts.
    Case(Shape(4, 2, 48, 80), 1, format="w4a4"),
    Case(Shape(1, 2, 48, 48), 4, format="w4a4", dtype="fp16"),
    Case(Shape(4, 2, 48, 80), 17, "hot", format="w4a4"),
    Case(Shape(16, 2, 48, 48), 6, "few", format="w4a4", dtype="fp16"),
    Case(Shape(4, 3, 48, 80), 5, "twice", format="w4a4"),
    Case(Shape(4, 4, 80, 48), 6, "dropped", format="w4a4", dtype="fp16"),
    Case(Shape(16, 8, 48, 48), 3, format="w4a4"),
    # Activations.
    Case(Shape(4, 2, 48, 80), 5, format="w4a4", activation="gelu"),
    Case(Shape(4, 2, 48, 80), 5, format="w4a4", activation="gelu_tanh", dtype="fp16"),
    Case(Shape(4, 2, 48, 80), 5, format="w4a4", activation="swigluoai", activation_limit=64.0),
    Case(Shape(4, 2, 80, 48), 5, format="w4a4", activation="swigluoai", activation_limit=2048.0, dtype="fp16"),
    # Weight on the input.
    Case(Shape(4, 2, 48, 80), 5, format="w4a4", weight_on_input=True),
    Case(Shape(4, 3, 80, 48), 5, "twice", format="w4a4", activation="gelu", weight_on_input=True, dtype="fp16"),
    # Many tokens; several K steps, row tiles and token blocks at once.
    Case(Shape(1, 1, 48, 32), 129, format="w4a4"),
    Case(Shape(8, 4, 272, 80), 33, format="w4a4", tier="ci"),
    Case(Shape(2, 2, 1024, 640), 17, format="w4a4", dtype="fp16", tier="all"),
    # A K of down from which on its programs have a tile each.
    Case(Shape(2, 2, 80, 1040), 3, format="w4a4"),
)

# The sum over top_k is exact also where every addition rounds to the dtype, as atomics do.
ATOMICS: tuple[Case, ...] = (
    Case(Shape(4, 3, 48, 80), 5, atomics=True),
    Case(Shape(4, 3, 48, 80), 5, atomics=True, dtype="fp16"),
    Case(Shape(16, 8, 48, 48), 3, atomics=True),
    Case(Shape(4, 4, 80, 48), 6, "dropped", atomics=True, activation="gelu", dtype="fp16"),
    Case(Shape(4, 3, 48, 80), 5, atomics=True, activation="swigluoai", activation_limit=64.0),
    Case(Shape(4, 3, 80, 272), 17, "hot", atomics=True, activation="gelu_tanh", weight_on_input=True),
    Case(Shape(4, 3, 48, 80), 5, format="w4a4", atomics=True),
    Case(Shape(4, 3, 48, 80), 5, "twice", format="w4a4", atomics=True, dtype="fp16"),
    Case(Shape(16, 8, 48, 48), 3, format="w4a4", atomics=True, activation="gelu", dtype="fp16"),
    Case(Shape(4, 3, 80, 48), 17, "hot", format="w4a4", atomics=True, activation="gelu_tanh", weight_on_input=True),
)

ORDERFREE: tuple[Case, ...] = W4A16 + W4A4 + ATOMICS

# Like a real layer; judged against the float64 truth within a bound. swigluoai's limit is 1, or nothing would reach it.
RANDOM: tuple[Case, ...] = (
    Case(Shape(4, 2, 48, 80), 5, inputs="random"),
    Case(Shape(4, 2, 80, 48), 5, "twice", inputs="random", dtype="fp16"),
    Case(Shape(4, 2, 272, 80), 4, "dropped", inputs="random"),
    Case(Shape(4, 2, 80, 272), 4, "few", inputs="random", dtype="fp16"),
    Case(Shape(4, 2, 48, 80), 17, "hot", inputs="random", activation="gelu"),
    Case(Shape(4, 2, 48, 80), 1, inputs="random", activation="gelu_tanh", dtype="fp16"),
    Case(Shape(16, 8, 48, 48), 3, inputs="random", activation="swigluoai", activation_limit=1.0, dtype="fp16"),
    Case(Shape(4, 2, 48, 80), 5, inputs="random", activation="swigluoai", activation_limit=1.0, weight_on_input=True),
    Case(Shape(1, 1, 80, 48), 65, inputs="random", weight_on_input=True),
    Case(Shape(2, 2, 256, 320), 7, "dropped", inputs="random", activation="gelu_tanh"),
    Case(
        Shape(1, 1, 384, 256),
        100,
        inputs="random",
        activation="swigluoai",
        activation_limit=1.0,
        dtype="fp16",
        tier="ci",
    ),
    Case(Shape(4, 2, 48, 80), 5, inputs="random", format="w4a4"),
    Case(Shape(4, 2, 80, 272), 4, "twice", inputs="random", format="w4a4", dtype="fp16"),
    Case(Shape(16, 8, 48, 48), 3, inputs="random", format="w4a4", activation="swigluoai", activation_limit=1.0),
    Case(Shape(4, 2, 272, 80), 17, "dropped", inputs="random", format="w4a4", dtype="fp16"),
    Case(Shape(1, 1, 80, 48), 65, inputs="random", format="w4a4", activation="gelu_tanh", weight_on_input=True),
    # gelu and gelu_tanh are so close that few codes differ: it takes this many.
    Case(Shape(4, 2, 128, 128), 128, inputs="random", format="w4a4", activation="gelu", dtype="fp16"),
    Case(Shape(4, 2, 128, 128), 128, "hot", inputs="random", format="w4a4", activation="gelu_tanh"),
)

# As RANDOM, of so many terms and outputs that the order of the sums shows in the bits of some: see golden/recorded/.
LONG: tuple[Case, ...] = (
    Case(Shape(2, 2, 1024, 640), 128, inputs="random", tier="all"),
    Case(Shape(4, 3, 640, 1040), 33, "dropped", inputs="random", activation="gelu_tanh", dtype="fp16", tier="all"),
    Case(Shape(4, 2, 2048, 512), 5, inputs="random", weight_on_input=True, tier="all"),
    Case(Shape(2, 2, 1024, 640), 128, inputs="random", format="w4a4", tier="all"),
    Case(Shape(4, 3, 640, 1040), 33, inputs="random", format="w4a4", activation="gelu", dtype="fp16", tier="all"),
)

ALL: tuple[Case, ...] = ORDERFREE + RANDOM + LONG
