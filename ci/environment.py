"""Environment variables that make another kernel run than its launch describes, or on another GPU. Pure."""

import os

CHOOSES_GPUS = "CUDA_VISIBLE_DEVICES"

CHANGES_CODE = (
    "TRITON_INTERPRET",
    "TRITON_OVERRIDE_ARCH",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_FORCE_DISABLE_FP_FUSION",
    "TRITON_DEFAULT_BACKEND",
    "TRITON_ENABLE_ASAN",
    "TRITON_INSTRUMENTATION_MODE",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_MOCK_PTX_VERSION",
    "TRITON_PLUGIN_PATHS",
    "ALLOW_LHS_TMEM_LAYOUT_CONVERSION",
    "DISABLE_MMA_V3",
    "DISABLE_MMA_V5",
    "DISABLE_LLVM_OPT",
    "DISABLE_PTXAS_OPT",
    "PTXAS_OPTIONS",
)


def code_changing(*allowed: str) -> str | None:
    """The first such variable that is set, apart from those `allowed`."""
    return next((name for name in CHANGES_CODE if name in os.environ and name not in allowed), None)
