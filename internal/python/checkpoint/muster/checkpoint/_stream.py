"""Copies large blocks past the processor's caches.

memmove reads each line of the destination before it overwrites it, and pushes out what the training has in the caches. glibc avoids that only
for blocks of a size that tensors seldom have (192 MiB on some machines), and offers no call that does. So here is the loop.
"""
import ctypes
import mmap
import platform

ALIGN = 16  # of a destination
_BLOCK = 64  # bytes that the loop copies at once

_X86_64 = bytes.fromhex(
    "f30f6f06"    # again: movdqu xmm0, [rsi]
    "f30f6f4e10"  # movdqu xmm1, [rsi + 16]
    "f30f6f5620"  # movdqu xmm2, [rsi + 32]
    "f30f6f5e30"  # movdqu xmm3, [rsi + 48]
    "660fe707"    # movntdq [rdi], xmm0
    "660fe74f10"  # movntdq [rdi + 16], xmm1
    "660fe75720"  # movntdq [rdi + 32], xmm2
    "660fe75f30"  # movntdq [rdi + 48], xmm3
    "4883c640"    # add rsi, 64
    "4883c740"    # add rdi, 64
    "4883ea40"    # sub rdx, 64
    "75cc"        # jne again
    "0faef8"      # sfence
    "c3"          # ret
)

_libc = ctypes.CDLL(None, use_errno=True)
memmove = _libc.memmove
memmove.argtypes, memmove.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p


def _loaded(code):
    """Returns a function (to, source, size) for code; None where the machine knows no such code, or the system allows none."""
    if platform.machine() != "x86_64" or platform.system() != "Linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    try:
        room = mmap.mmap(-1, mmap.PAGESIZE)
        room.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(room))
        if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC):
            return None
    except (OSError, ValueError):
        return None
    f = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(address)
    f.room = room  # as long as the function
    return f


_streamed = _loaded(_X86_64)


def copy(to, source, size):
    """Copies size bytes between addresses, without the interpreter's lock."""
    blocks = size - size % _BLOCK
    if _streamed is None or to % ALIGN or not blocks:
        memmove(to, source, size)
        return
    _streamed(to, source, blocks)
    if blocks < size:
        memmove(to + blocks, source + blocks, size - blocks)
