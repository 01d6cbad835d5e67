"""The tests of the pull requests that this suite grew out of, by the names they have there, and the tests that hold the
same here. Pure.

The nightly run says of each name whether it passed, and where. `nox -s tests -- -m seed` runs those that need no GPU;
`gate-tests` and `gpu-tests` take the same option.
"""

COMPILE_GATES = "compile-gates"  # stands for all gates of that session, which are none of pytest's tests

_CODEC = "tests/codec/test_two_dots.py::test_every_"
_RANDOM, _EXACT = "tests/moe/test_random.py::test_", "tests/moe/test_orderfree.py::test_"
_TUNING = "tests/plan/test_tuning.py::test_"

# Name there -> tests here, each with all its parameters. A file's name stands for what its thread says that it tests.
SEED_TESTS: dict[str, tuple[str, ...]] = {
    "tests/moe/test_nvfp4_backends.py::test_triton_prefill_dequant_reads_every_code_and_scale_exactly": (
        f"{_CODEC}code_of_a_pair_is_its_value_times_2_to_the_minus_14",
        f"{_CODEC}byte_times_every_finite_scale_is_its_share_of_the_weight_to_the_bit",
        "tests/codec/test_dequantize.py::test_every_byte_times_every_finite_scale_is_the_reference_to_the_bit",
    ),
    # The prefill GEMM against the dequant reference, at K = 272 and 80; W4A4 against an emulation of its rounding.
    "tests/moe/test_nvfp4_backends.py": (
        f"{_RANDOM}kernel_is_within_its_bound",
        f"{_EXACT}kernel_equals_the_reference",
        "tests/stages/test_gemms.py::test_gemm",
        "tests/stages/test_w4a4_layer.py::test_down_of_the_kernels_own_codes_is_within_its_bound",
    ),
    "tests/kernels/test_e4m3_compat.py::test_forced_emu_matches_native": (
        "tests/families/test_families.py::test_a_family_gives_the_same_bits",
        "tests/linear/test_linear.py::test_every_finite_scale",
    ),
    # The compile gate across architectures, also at a ragged K, and the fault that it let through at first.
    "tests/kernels/test_e4m3_compat.py": (
        COMPILE_GATES,
        "tests/compile/test_launches.py::test_every_tile_scale_dtype_and_option_is_gated",
        "tests/compile/test_launches.py::test_every_block_split_and_dtype_of_the_linear_gemm_is_gated",
        "tests/compile/test_planted.py::test_an_integer_for_what_a_masked_load_of_fp8_leaves_out",
    ),
    "tests/moe/test_mixed_expert_formats.py": (
        "tests/moe/test_mixed_checkpoint.py::test_every_layer_is_bound_to_a_kernel_that_takes_it",
        "tests/moe/test_mixed_checkpoint.py::test_layer_gives_the_bytes_that_it_gives_alone",
        "tests/contract/test_mixed_checkpoint.py::test_every_layer_binds_a_kernel_that_takes_it",
    ),
    "tests/moe/test_fused_moe.py": (
        f"{_EXACT}every_cards_plans_give_the_same_bits",
        f"{_EXACT}every_tile_gives_the_same_bits",
        "tests/routing/test_blocks.py::test_blocks_are_those_of_the_definition",
    ),
    # Of faked GPUs, by shapes and numbers of tokens.
    "prefill_config": (
        f"{_TUNING}block_m_changes_at_the_stated_tokens_per_expert",
        f"{_TUNING}geforce_loads_words_of_scales_in_blocks_of_64",
        "tests/golden/test_plans.py::test_the_plans_of_today_are_the_recorded_ones",
    ),
    # Round trips of fp4_e4m3_b16 through the quantizer.
    "test_dsv41_pack.py": (
        "tests/reference/test_quantize.py::test_bytes_are_those_of_the_tool",
        "tests/quantizer/test_quantize.py::test_ragged_rows_and_columns",
    ),
}

# What the threads name beside these, and why nothing here is like it.
LEFT_OUT: dict[str, str] = {
    "test_adjust_config_converts_moe_cache_rate_to_cache_size": "the offload cache of a server",
    "tests/models": "whole models in a server",
}


def seeds_of(test: str) -> list[str]:
    """The names of which `test`, a node id with or without its parameters, is a part."""
    function = test.partition("[")[0]
    return [name for name, tests in SEED_TESTS.items() if function in tests]
