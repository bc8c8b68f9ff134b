"""Finds the process that listens on a port, as far as /proc shows it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

PROC: Final = "/proc"
COMMAND_CHARS_MAX: Final = 80
_LISTENING: Final = "0A"
"""TCP_LISTEN in /proc/net/tcp."""
_TAKEN: Final = re.compile(r"port (\d+) on (\S+) is taken by another process")


def name_holder(complaint: str, advice: str, proc: str = PROC) -> str:
    """The error that a port is taken, with the process that holds it and what to do; any other error unchanged."""
    match = _TAKEN.search(complaint)
    if match is None:
        return complaint
    holder = find_holder(int(match[1]), proc) or "another process"
    return f"port {match[1]} on {match[2]} is taken by {holder}; stop it, or {advice}"


def find_holder(port: int, proc: str = PROC) -> str | None:
    """`pid 4242 (java -jar kafka.jar)` of the process that listens on a port; None where that cannot be seen."""
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(f"{proc}/net/{table}", port)}
    if not sockets:
        return None
    # A socket belongs to no process in the kernel: the owner is the process with its inode among its descriptors.
    for pid in sorted(filter(str.isdecimal, _names(proc)), key=int):
        for descriptor in _names(f"{proc}/{pid}/fd"):
            if _link(f"{proc}/{pid}/fd/{descriptor}") in sockets:
                return f"pid {pid} ({_command(proc, pid)})"
    return None


def _listening(table: str, port: int) -> Iterable[str]:
    """The inodes of the sockets in a table of the kernel's that listen on a port."""
    try:
        with open(table, encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return []
    # Addresses are hexadecimal in these tables; the host is not compared, since 0.0.0.0 blocks every address.
    wanted = f":{port:04X}"
    return [row[9] for row in rows if len(row) > 9 and row[1].endswith(wanted) and row[3] == _LISTENING]


def _command(proc: str, pid: str) -> str:
    from klamm.cli.output import printable

    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            # A Java command line is kilobytes of class path; four bytes is UTF-8's longest character.
            words = file.read(4 * COMMAND_CHARS_MAX).decode(errors="replace").split("\0")
    except OSError:
        return "its command is not readable"
    text = printable(" ".join(word for word in words if word))
    return text if len(text) <= COMMAND_CHARS_MAX else text[: COMMAND_CHARS_MAX - 3] + "..."


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
