"""Progress output: a spinner on a terminal, a line now and then without one."""

from __future__ import annotations

import contextlib
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from live_bank.check import Line

_EVERY_S: Final = 10.0


@contextlib.contextmanager
def hide_keys() -> Iterator[None]:
    """Let the terminal not write down what is typed, Ctrl-C among it, into the middle of a picture."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, ValueError, OSError):
        yield
        return
    silent = termios.tcgetattr(sys.stdin)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class Steps:
    """Prints each step, and for long ones how far it is."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.pictures = bool(
            console.is_terminal and not console.is_dumb_terminal and console.encoding.lower().startswith("utf")
        )

    def print_line(self, message: str, style: str = "") -> None:
        self.console.print(Text(message, style=style), soft_wrap=True)

    @contextlib.contextmanager
    def show_step(self, message: str) -> Iterator[Callable[[str], None]]:
        """A step that takes a while; call what is given with how far it is."""
        began = last = time.monotonic()
        if not self.pictures:
            self.print_line(message)

            def report(more: str) -> None:
                nonlocal last
                if time.monotonic() - last >= _EVERY_S:
                    last = time.monotonic()
                    self.print_line(f"  {last - began:.0f} s  {more}")

            yield report
            return
        with self.console.status(Text(message)) as status:
            yield lambda more: status.update(Text(f"{message}  {more}"))
        self.console.print(Text.assemble(("✔ ", "green"), message, (f"  {time.monotonic() - began:.1f} s", "dim")))

    def print_comparison(self, lines: list[Line]) -> None:
        """The comparisons as a table, and under it what differs."""
        table = Table(title="The books, computed again from the raw topic", title_justify="left", title_style="bold")
        table.add_column("")
        table.add_column("raw topic", justify="right")
        table.add_column("found", justify="right")
        table.add_column("", no_wrap=True)
        for line in lines:
            result = Text("equal", style="green") if line.equal else Text("DIFFERS", style="bold red")
            table.add_row(line.what, line.expected, line.actual, result)
        self.console.print()
        self.console.print(table)
        for line in lines:
            for difference in line.differences:
                self.print_line(f"{line.what}: {difference}", "red")
