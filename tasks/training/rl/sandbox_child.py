"""What runs inside the sandbox: gives up everything, then runs the code and its tests. Started by `sandbox.py` alone.

Uses the standard library only, because it runs with `-I -S`. Modules that short programs want are imported before the
door closes, since no file can be opened after it.
"""

import ctypes
import errno
import os
import platform
import resource
import struct
import sys

# What short programs import; whatever else they want is not there.
MODULES = (
    "abc array base64 bisect calendar cmath collections collections.abc contextlib copy dataclasses datetime decimal "
    "difflib enum fractions functools hashlib heapq io itertools json keyword linecache math numbers operator "
    "queue random re statistics string textwrap time traceback types typing unicodedata zlib"
)
for _name in MODULES.split():
    __import__(_name)

# By machine its number, and those of the system calls that stay; all others fail with EPERM.
ALLOWED: dict[str, tuple[int, list[int]]] = {
    "x86_64": (
        0xC000003E,
        [
            0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 24, 25, 28, 35, 39, 60, 96, 97, 98, 102, 131, 186, 201,
            202, 228, 229, 230, 231, 318, 334,
        ],
    ),
    "aarch64": (
        0xC00000B7,
        [
            57, 62, 63, 64, 65, 66, 80, 93, 94, 98, 99, 101, 113, 114, 115, 124, 132, 134, 135, 139, 163, 165, 169,
            172, 174, 178, 214, 215, 216, 222, 226, 233, 278, 293,
        ],
    ),
}  # fmt: skip
DENIED = 0x00050000 | errno.EPERM  # SECCOMP_RET_ERRNO
KILLED = 0x80000000  # SECCOMP_RET_KILL_PROCESS
PASSED = 0x7FFF0000  # SECCOMP_RET_ALLOW
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF: load a word, jump if equal, return


def limit(cpu_seconds: int, memory_mb: int) -> None:
    # SIGXCPU, which says why, comes a second before SIGKILL: at the same moment either may
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    for what, most in (
        (resource.RLIMIT_AS, memory_mb * 2**20),
        (resource.RLIMIT_FSIZE, 0),  # a pipe is no file: printing goes on
        (resource.RLIMIT_NOFILE, 3),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def lock_in() -> None:
    """Give up every system call that is not in the list. There is no way back. Raises OSError where that fails."""
    known = ALLOWED.get(platform.machine())
    if known is None:
        raise OSError(errno.ENOSYS, f"no list of system calls for {platform.machine()}")
    program = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, known[0]), (RETURN, 0, 0, KILLED), (LOAD, 0, 0, 0)]
    for call in known[1]:
        program += [(EQUAL, 0, 1, call), (RETURN, 0, 0, PASSED)]
    program.append((RETURN, 0, 0, DENIED))
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(steps)))
    libc = ctypes.CDLL(None, use_errno=True)
    set_no_new_privileges, set_seccomp, filtered = 38, 22, 2
    for arguments in ((set_no_new_privileges, 1, 0, 0, 0), (set_seccomp, filtered, ctypes.addressof(whole), 0, 0)):
        if libc.prctl(*(ctypes.c_ulong(argument) for argument in arguments)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    key, code, tests = sys.stdin.buffer.read().decode().split("\0", 2)
    limit(int(sys.argv[1]), int(sys.argv[2]))
    try:
        lock_in()
    except OSError as error:
        os.write(1, f"{error.strerror}\n".encode())
        return
    os.write(1, b"\x01")
    names = {"__name__": "answer"}
    try:
        exec(compile(code, "answer", "exec"), names)  # noqa: S102 - what this file is for
        exec(compile(tests, "tests", "exec"), names)  # noqa: S102
        verdict = "passed"
    except BaseException as error:  # noqa: BLE001 - whatever it was, the tests have not passed
        verdict = type(error).__name__
    os.write(1, f"\n{key} {verdict}".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
