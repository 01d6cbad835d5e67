"""A planted fault for each tool of compute-sanitizer, to see that it works: python -m ... memcheck | racecheck.

PTX through the driver alone, as Triton would put barriers where the race has to be.
"""

import ctypes
import sys

_HEAD = """.version 7.0
.target sm_80
.address_size 64
.visible .entry planted(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<6>;
    .shared .align 4 .b8 words[256];
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
"""
SIZE = 64 * 4  # bytes of out: one word a thread
FAULTS = {
    # Thread 0 writes the word behind `out`.
    "memcheck": f"    add.u64 %rd3, %rd1, %rd2;\n    st.global.u32 [%rd3+{SIZE}], %r1;\n    ret;\n}}\n",
    # Every thread writes its word, and reads that of the thread 32 further, of the other warp, without a barrier.
    "racecheck": """    mov.u64 %rd3, words;
    add.u64 %rd4, %rd3, %rd2;
    st.volatile.shared.u32 [%rd4], %r1;
    xor.b64 %rd2, %rd2, 128;
    add.u64 %rd4, %rd3, %rd2;
    ld.volatile.shared.u32 %r2, [%rd4];
    xor.b64 %rd2, %rd2, 128;
    add.u64 %rd5, %rd1, %rd2;
    st.global.u32 [%rd5], %r2;
    ret;
}
""",
}


def ptx(tool: str) -> str:
    return _HEAD + FAULTS[tool]


def main(tool: str) -> int:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments) -> None:
        if code := getattr(cuda, name)(*arguments):
            sys.exit(f"{name} gives {code}")

    device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    function, out = ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx(tool).encode()))
    call("cuModuleGetFunction", ctypes.byref(function), module, b"planted")
    call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(SIZE))
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(out), ctypes.c_void_p))
    call("cuLaunchKernel", function, 1, 1, 1, 64, 1, 1, 0, None, arguments, None)
    call("cuCtxSynchronize")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
