"""Environment variables that make another kernel run than its launch describes. Pure."""

import os

CHANGES_CODE = (
    "TRITON_INTERPRET",
    "TRITON_OVERRIDE_ARCH",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_FORCE_DISABLE_FP_FUSION",
    "DISABLE_LLVM_OPT",
    "DISABLE_PTXAS_OPT",
    "PTXAS_OPTIONS",
)


def code_changing(*allowed: str) -> str | None:
    """The first such variable that is set, apart from those `allowed`."""
    return next((name for name in CHANGES_CODE if name in os.environ and name not in allowed), None)
