"""Importing this module repairs Triton's interpreter, so that a kernel computes there what it computes when compiled.

Upstream (3.6.0, 3.7.1, 3.8.0 and 3.9.0) truncates casts to bf16, treats bf16 as an integer in arithmetic and in
`tl.dot`, cannot fill a tensor with a bf16 value, rounds to fp8e4nv wrongly, reads the fp8e4nv byte 0x7F as 480, reads
fp8e4nv scales of `tl.dot_scaled` as powers of two, and lets numpy warn where a GPU stays silent. What it gets right is
left alone.

Triton decides when it is imported, for its own library, and at each `@triton.jit` whether to interpret or to compile.
Set `TRITON_INTERPRET=1` before anything imports triton, then import this module once, before the first launch.
"""

import inspect
from operator import attrgetter

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter

_BF16 = np.dtype(ml_dtypes.bfloat16)
_NUMPY_DTYPES = {
    tl.bfloat16: _BF16,
    tl.float16: np.dtype(np.float16),
    tl.float32: np.dtype(np.float32),
    tl.float8e4nv: np.dtype(ml_dtypes.float8_e4m3fn),
}

_E4M3_MAX = 448.0
_E4M3_NAN = 0x7F

# What is replaced or relied upon, with the parameters that count; functions in C++ do not tell theirs.
_INTERNALS = {
    "_get_np_dtype": ["tt_dtype"],
    "_convert_float": ["input", "input_dtype", "output_dtype", "rounding_mode"],
    "_interpreter.load": None,
    "_interpreter.store": None,
    "InterpreterBuilder.create_fp_trunc": ["self", "src", "dst_type"],
    "GridExecutor.__call__": ["self", "args_dev", "kwargs"],
    "InterpretedFunction": ["fn", "kwargs"],
}


def convert_float(input, input_dtype, output_dtype, rounding_mode):
    """Cast the array `input` of Triton type `input_dtype` to `output_dtype`, as PTX `cvt` does.

    Rounds to nearest even, or toward zero when `rounding_mode` is RTZ. TypeError: a type outside bf16, fp16, fp32 and
    fp8e4nv, or RTZ to fp8e4nv, which Triton does not compile either.
    """
    toward_zero = rounding_mode == ir.ROUNDING_MODE.RTZ
    for dtype in (input_dtype, output_dtype):
        if dtype not in _NUMPY_DTYPES:
            raise TypeError(f"the repaired interpreter casts between bf16, fp16, fp32 and fp8e4nv, got {dtype}")
    exact = input.view(_NUMPY_DTYPES[input_dtype]).astype(np.float32)
    if output_dtype == tl.float8e4nv:
        if toward_zero:
            raise TypeError("fp_downcast_rounding was 'rtz', should be 'rtne': no other rounding to fp8e4nv compiles")
        return _to_e4m3(exact)
    result = exact.astype(_NUMPY_DTYPES[output_dtype])
    if toward_zero:
        # The code below is the next smaller magnitude, for either sign.
        result.view(f"u{result.itemsize}")[...] -= np.abs(result.astype(np.float32)) > np.abs(exact)
    return result


def _to_e4m3(exact):
    """`cvt.rn.satfinite.e4m3x2.f32` of the PTX ISA: saturates at 448, infinities too, and has one NaN."""
    bounded = np.clip(exact, -_E4M3_MAX, _E4M3_MAX)
    codes = np.asarray(bounded, _NUMPY_DTYPES[tl.float8e4nv]).view(np.uint8)
    return np.where(np.isnan(exact), np.uint8(_E4M3_NAN), codes)


def _numpy_dtype(upstream):
    """Keep bf16 data in a true bf16 dtype: numpy's own casts, arithmetic, comparisons and matmul are then right."""
    return lambda tt_dtype: _BF16 if tt_dtype.scalar == tl.bfloat16 else upstream(tt_dtype)


def _load(upstream):
    """The loads and stores in C++ know numpy's own dtypes alone, so bf16 passes through them as raw bits.

    From 3.9 on they refuse a mask that is not bool, as `&` of a block's and a scalar's comparison is int32.
    """

    def load(ptrs, mask, other, dtype):
        mask = np.asarray(mask, np.bool_)
        if dtype != _BF16:
            return upstream(ptrs, mask, other, dtype)
        return upstream(ptrs, mask, other.view(np.uint16), np.dtype(np.uint16)).view(_BF16)

    return load


def _store(upstream):
    def store(ptrs, value, mask):
        upstream(ptrs, value.view(np.uint16) if value.dtype == _BF16 else value, np.asarray(mask, np.bool_))

    return store


def _scaled_operand(upstream):
    """Multiply an operand of `tl.dot_scaled` by its fp8e4nv scales; scales of other types stay with upstream."""

    def prepare(value, scale, *options, is_rhs):
        if scale is None or scale.dtype != tl.float8e4nv:
            return upstream(value, scale, *options, is_rhs=is_rhs)
        operand = upstream(value, None, *options, is_rhs=is_rhs)
        factors = convert_float(scale.data, tl.float8e4nv, tl.float32, None)
        # Scales are [M or N, K / group], the operands [M, K] and [K, N].
        factors = np.repeat(factors, operand.shape[-2 if is_rhs else -1] // factors.shape[-1], axis=-1)
        return operand * (np.swapaxes(factors, -1, -2) if is_rhs else factors)

    return prepare


def _check_internals():
    for name, expected in _INTERNALS.items():
        try:
            member = attrgetter(name)(interpreter)
            found = expected and list(inspect.signature(member).parameters)
        except AttributeError:
            found = "nothing of that name"
        if found != expected:
            raise RuntimeError(
                f"cannot repair the interpreter of Triton {triton.__version__}, only those of 3.6.0, 3.7.1, 3.8.0 and "
                f"3.9.0: {name} should take {expected or 'any arguments'}, found {found}"
            )


def _check_interpreting():
    if not (triton.knobs.runtime.interpret and isinstance(tl.zeros, interpreter.InterpretedFunction)):
        raise RuntimeError("TRITON_INTERPRET must be 1 before triton is first imported, else kernels are compiled")


def _repair():
    builder, executor, native = interpreter.InterpreterBuilder, interpreter.GridExecutor, interpreter._interpreter
    interpreter._get_np_dtype = _numpy_dtype(interpreter._get_np_dtype)
    interpreter._convert_float = convert_float
    native.load, native.store = _load(native.load), _store(native.store)
    if not hasattr(builder, "get_bf16"):  # new in 3.9
        builder.get_bf16 = lambda self, value: self.create_fp_trunc(self.get_fp32(value), tl.bfloat16)
    if hasattr(interpreter, "_prepare_dot_scaled_operand"):  # 3.6 and 3.7 cannot interpret tl.dot_scaled at all
        interpreter._prepare_dot_scaled_operand = _scaled_operand(interpreter._prepare_dot_scaled_operand)
    executor.__call__ = np.errstate(all="ignore")(executor.__call__)


if not getattr(interpreter, "repaired_by_nvfp4_suite", False):
    _check_internals()
    _check_interpreting()
    _repair()
    interpreter.repaired_by_nvfp4_suite = True
