"""Takes every right from the running process but computing and using the files it already holds open.

With seccomp(2), which needs no rights of its own and works inside containers.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

ALLOWED_CALLS = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11,
    "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "writev": 20,
    "sched_yield": 24, "mremap": 25, "madvise": 28, "getpid": 39, "exit": 60, "sigaltstack": 131,
    "gettid": 186, "futex": 202, "sched_getaffinity": 204, "restart_syscall": 219, "clock_gettime": 228,
    "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262, "set_robust_list": 273, "getrandom": 318,
    "rseq": 334,
}  # fmt: skip
"""What computing, memory and open files need; numbers of x86_64, the one architecture of the kit."""
SECCOMP = 317  # glibc has no function for it


def confine() -> None:
    """All other system calls fail with EPERM from now on, in all threads; OSError if that cannot be."""
    if platform.machine() != "x86_64":
        raise OSError(f"the processor must be x86_64: got {platform.machine()}")
    library = ctypes.CDLL(None, use_errno=True)
    program = build_filter()
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, padding, their address.
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    # PR_SET_NO_NEW_PRIVS, without which only root may; SECCOMP_SET_MODE_FILTER for all threads.
    if library.prctl(38, 1, 0, 0, 0) or library.syscall(SECCOMP, 1, 1, header):
        reason = os.strerror(ctypes.get_errno()) if ctypes.get_errno() else "a thread has its own filter"
        raise OSError(f"seccomp is not to be had: {reason}")


def build_filter() -> bytes:
    """BPF (linux/filter.h): code, jumps if equal and if not, constant; of struct seccomp_data at 0 and 4."""
    load, jump, give = 0x20, 0x15, 0x06
    allow, reject, kill = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
    numbers = sorted(ALLOWED_CALLS.values())
    steps = [
        # AUDIT_ARCH_X86_64: the numbers of another architecture mean other calls.
        (load, 0, 0, 4), (jump, 1, 0, 0xC000003E), (give, 0, 0, kill), (load, 0, 0, 0),
        # Each equal one jumps over the other comparisons and the rejection, to the last instruction.
        *((jump, len(numbers) - place, 0, number) for place, number in enumerate(numbers)),
        (give, 0, 0, reject), (give, 0, 0, allow),
    ]  # fmt: skip
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
