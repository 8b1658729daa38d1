"""Takes every right from the running process but computing and using the files it already holds open.

With seccomp(2), which needs no rights of its own and works inside containers: in all threads and for good,
all but the system calls below fail with EPERM. No file is opened, no address called, no process started.
The numbers are those of x86_64 (arch/x86/entry/syscalls/syscall_64.tbl), the one architecture of the kit.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from pathlib import Path

ALLOWED = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11,
    "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "writev": 20,
    "sched_yield": 24, "mremap": 25, "madvise": 28, "getpid": 39, "exit": 60, "sigaltstack": 131,
    "gettid": 186, "futex": 202, "sched_getaffinity": 204, "restart_syscall": 219, "clock_gettime": 228,
    "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262, "set_robust_list": 273, "getrandom": 318,
    "rseq": 334,
}  # fmt: skip
"""What computing, memory and open files need."""
SECCOMP = 317
"""The system call's number; glibc has no function for it."""
SET_MODE_FILTER, ALL_THREADS = 1, 1
NO_NEW_PRIVILEGES = 38
"""Of prctl(2): without it only root may set a filter."""
AUDIT_ARCH_X86_64 = 0xC000003E
RETURN_ALLOW, RETURN_ERRNO, RETURN_KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD_WORD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
"""Of BPF's instructions (linux/bpf_common.h)."""
NUMBER_AT, ARCHITECTURE_AT = 0, 4
"""Offsets in struct seccomp_data."""
CPU_SECONDS = 600
"""To read a few GB takes seconds."""


class CannotConfine(Exception):  # noqa: N818 - said of the machine, before anything went wrong
    """This kernel, or what surrounds it, does not let a process give up its rights."""


def limit_resources(*, memory_bytes: int, file_bytes: int) -> None:
    """Bound processor time, what memory may grow by, and the size of a file; no core is dumped."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = {
        resource.RLIMIT_AS: mapped + memory_bytes,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_CPU: CPU_SECONDS,
        resource.RLIMIT_CORE: 0,
    }
    for which, limit in limits.items():
        resource.setrlimit(which, (limit, limit))


def confine() -> None:
    """No way back; CannotConfine when the kernel refuses, and then nothing has been given up."""
    if platform.machine() != "x86_64":
        raise CannotConfine(f"the processor must be x86_64: got {platform.machine()}")
    library = ctypes.CDLL(None, use_errno=True)
    program = build_filter()
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, padding, their address.
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    if library.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or library.syscall(
        SECCOMP, SET_MODE_FILTER, ALL_THREADS, header
    ):
        reason = os.strerror(ctypes.get_errno()) if ctypes.get_errno() else "a thread has its own filter"
        raise CannotConfine(f"seccomp is not to be had: {reason}")


def build_filter() -> bytes:
    """The filter as an array of struct sock_filter; numbers of another architecture mean other calls."""
    allow, numbers = _instruct(RETURN, RETURN_ALLOW), sorted(ALLOWED.values())
    steps = [
        _instruct(LOAD_WORD, ARCHITECTURE_AT),
        _instruct(JUMP_EQUAL, AUDIT_ARCH_X86_64, if_equal=1),
        _instruct(RETURN, RETURN_KILL),
        _instruct(LOAD_WORD, NUMBER_AT),
        # Each equal one jumps over the other comparisons and the refusal, to the last instruction.
        *(
            _instruct(JUMP_EQUAL, number, if_equal=len(numbers) - place)
            for place, number in enumerate(numbers)
        ),
        _instruct(RETURN, RETURN_ERRNO | errno.EPERM),
        allow,
    ]
    return b"".join(steps)


def _instruct(code: int, value: int, *, if_equal: int = 0) -> bytes:
    """struct sock_filter: code, jumps if true and if false, constant."""
    return struct.pack("=HBBI", code, if_equal, 0, value)
