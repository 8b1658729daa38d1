"""Reads which TCP addresses a server's processes listen on (proc(5), /proc/net/tcp and tcp6)."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path

from server.processes import PROC, Process

_LISTEN = "0A"


def read_listening(processes: Iterable[Process], proc: Path = PROC) -> dict[str, str] | None:
    """Address → role of the process that listens there; None when one of them may not be looked into."""
    found = {}
    for process in processes:
        inodes = _read_socket_inodes(process.pid, proc)
        if inodes is None:
            return None
        listening = _read_listening_inodes(process.pid, proc)
        found.update({listening[inode]: process.role for inode in inodes & set(listening)})
    return dict(sorted(found.items()))


def render_address(host: str, port: int) -> str:
    """127.0.0.1:8080; "*:8080" for every address of the machine, as Java shows 0.0.0.0 and ::."""
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None) or address
    if mapped.is_unspecified:
        return f"*:{port}"
    return f"[{mapped}]:{port}" if mapped.version == 6 else f"{mapped}:{port}"


def _read_socket_inodes(pid: int, proc: Path) -> set[str] | None:
    """Inodes of its open sockets; a process that has ended has none."""
    inodes = set()
    try:
        for link in (proc / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):  # a file may be closed while we look
                kind, _, inode = str(link.readlink()).partition(":[")
                inodes |= {inode.rstrip("]")} if kind == "socket" else set()
    except FileNotFoundError:
        return set()
    except OSError:
        return None
    return inodes


def _read_listening_inodes(pid: int, proc: Path) -> dict[str, str]:
    """Inode → address of every listening socket in the process's network namespace."""
    found = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / str(pid) / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN:
                    found[fields[9]] = parse_address(fields[1])
    return found


def parse_address(text: str) -> str:
    """0100007F:1F90 → 127.0.0.1:8080: the kernel prints words of 32 bits in the machine's (x86's) order."""
    words, _, port = text.rpartition(":")
    raw = b"".join(bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return render_address(socket.inet_ntop(family, raw), int(port, 16))
