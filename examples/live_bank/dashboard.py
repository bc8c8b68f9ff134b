"""The dashboard on the terminal: rates, lags and results. Made for 80 x 24 and more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from live_bank.rules import Account
from live_bank.watch import Flow, Letter, Seen

SENT: Final = "customers"
ACCOUNTS: Final = "account service"
LOGGING: Final = "logging service"
BOOKED: Final = "balances table"
LAKE: Final = "lake"
FLOWS: Final = (SENT, ACCOUNTS, LOGGING, BOOKED, LAKE)
BATCHED: Final = (BOOKED, LAKE)

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_PARTS: Final = " ▏▎▍▌▋▊▉█"
_COLORS: Final = {SENT: "cyan", ACCOUNTS: "green", LOGGING: "green", BOOKED: "magenta", LAKE: "blue"}
_MUCH: Final = 1000
"""Records behind from which on a lag is worth a warning."""


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as blocks, right-aligned: the newest is on the right."""
    shown = list(values)[-width:]
    most = max(shown, default=0.0)
    steps = len(_BLOCKS) - 1
    cells = (_BLOCKS[0 if most <= 0 else max(1, min(steps, round(value / most * steps)))] for value in shown)
    return "".join(cells).rjust(width)


def bar(share: float, width: int) -> str:
    """A bar of eighths of a cell."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_PARTS[rest] if rest else "")


def signed_bar(value: Decimal, lowest: Decimal, highest: Decimal, width: int) -> str:
    """A bar from zero, to the right for a positive value and to the left for a negative one."""
    span = highest - lowest or Decimal(1)
    left = round(-lowest / span * width)
    if value >= 0:
        return " " * left + bar(float(value / span) * width / max(width - left, 1), width - left)
    # Blocks of eighths are filled from the left: a bar to the left has whole cells only, at least one.
    cells = max(1, round(-value / span * width))
    return ("█" * min(cells, left)).rjust(left)


def columns(values: Sequence[float], width: int, height: int) -> list[str]:
    """The last values as standing bars, `height` lines high."""
    shown = list(values)[-width:]
    most = max(shown, default=0.0)
    levels = [0 if most <= 0 else round(value / most * height * 8) for value in shown]
    return [
        "".join(_BLOCKS[max(0, min(8, level - row * 8))] for level in levels).rjust(width)
        for row in reversed(range(height))
    ]


def clock(seconds: float) -> str:
    """42 seconds as 0:42."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


def money(amount: Decimal) -> str:
    return f"{amount:,.2f}"


class Fitted(ABC):
    """Something drawn for the width and height it is given."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield self.draw(options.max_width, options.height or options.max_height)

    @abstractmethod
    def draw(self, width: int, height: int) -> RenderableType:
        """What is seen."""


class Flows(Fitted):
    """A line for each place that transactions pass."""

    def draw(self, width: int, height: int) -> RenderableType:
        del height
        grid = Table.grid(padding=(0, 1), expand=True)
        for justify in ("left", "right", "left", "right", "right"):
            grid.add_column(justify=justify, no_wrap=True)
        room = max(width - 58, 8)
        for name in FLOWS:
            flow = self.seen.flows.get(name, Flow())
            line = sparkline(flow.rates, room)
            grid.add_row(
                Text(name, style="bold"),
                f"{flow.rate:,.0f}/s",
                Text(line, style=_COLORS[name]),
                f"{flow.total:,}",
                self._behind(name, flow),
            )
        return grid

    def _behind(self, name: str, flow: Flow) -> Text:
        if name == SENT:
            return Text(f"{self.seen.bad:,} of them bad", style="yellow" if self.seen.bad else "dim")
        if flow.behind is None:
            return Text("")
        style = "yellow" if flow.behind >= _MUCH else "dim"
        return Text(f"{flow.behind:,} behind" if flow.behind > 0 else "up to date", style=style)


class Balances(Fitted):
    """The richest accounts as bars."""

    def draw(self, width: int, height: int) -> RenderableType:
        ranked = sorted(self.seen.balances.items(), key=_balance, reverse=True)
        if not ranked:
            return _waiting("no balances until the pipeline runs")
        balances = [account.balance for _, account in ranked]
        hidden = len(ranked) - height
        shown = ranked if hidden <= 0 else ranked[: height - 1]
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, ratio=1)
        grid.add_column(justify="right", no_wrap=True)
        names = max(len(name) for name, _ in ranked)
        amounts = max(len(money(account.balance)) for _, account in ranked)
        if hidden > 0:
            amounts = max(amounts, len(_total(ranked)))
        room = max(width - names - amounts - 2, 3)
        for name, account in shown:
            style = "red" if account.balance < 0 else "green"
            drawn = signed_bar(account.balance, min(*balances, Decimal(0)), max(*balances, Decimal(0)), room)
            grid.add_row(name, Text(drawn, style=style), money(account.balance))
        if hidden > 0:
            grid.add_row(Text(f"and {hidden + 1}", style="dim"), Text("more", style="dim"), _total(ranked))
        return grid


def _balance(item: tuple[str, Account]) -> Decimal:
    return item[1].balance


def _total(ranked: Iterable[tuple[str, Account]]) -> Text:
    return Text(f"Σ {money(sum((account.balance for _, account in ranked), Decimal(0)))}", style="dim")


class Spend(Fitted):
    """What is paid in each minute of the bank's day."""

    def draw(self, width: int, height: int) -> RenderableType:
        minutes = list(self.seen.spend)
        if not minutes:
            return _waiting("no minute yet")
        values = [float(spent) for spent in self.seen.spend.values()]
        lines = columns(values, width, max(height - 1, 1))
        first = minutes[-min(len(minutes), width)][11:16]
        newest = f"{minutes[-1][11:16]}: {values[-1]:,.0f}"
        legend = f"{first}{newest:>{max(width - len(first), 0)}}"
        return Group(*(Text(line, style="magenta", no_wrap=True) for line in lines), Text(legend, style="dim"))


class Suspicious(Fitted):
    """The newest suspicious transactions; older ones scroll away."""

    def draw(self, width: int, height: int) -> RenderableType:
        del width
        newest = list(self.seen.last_suspicious)[-height:]
        if not newest:
            return _waiting("nothing suspicious yet")
        grid = Table.grid(padding=(0, 1), expand=True)
        for justify in ("left", "left", "left", "right"):
            grid.add_column(justify=justify, no_wrap=True)
        for payment in newest:
            amount = Text(money(payment["amount"]), style="red")
            grid.add_row(Text(str(payment["at"])[11:16], style="dim"), payment["account"], payment["kind"], amount)
        return grid


class DeadLetters(Fitted):
    """The newest bad records, each with what is wrong."""

    def draw(self, width: int, height: int) -> RenderableType:
        if not self.seen.last_letters:
            return _waiting("no dead letter yet")
        newest = list(self.seen.last_letters)[-max(height // 2, 1) :]
        lines = []
        for letter in reversed(newest):
            lines.append(Text(f"{letter.partition}-{letter.offset} {_short(letter.error)}", style="yellow"))
            lines.append(Text(f"  {_bytes(letter)}", style="dim"))
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return Group(*lines[:height])


def _short(error: str) -> str:
    """`the value is no JSON of id BIGINT, ...` without the columns, which are in bank.sql."""
    return error.partition(" of ")[0]


def _bytes(letter: Letter) -> str:
    if letter.value is None:
        return "(null)"
    # A terminal must not get the control characters of an Avro value that was cut off.
    text = letter.value.decode(errors="backslashreplace")
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)


def _waiting(message: str) -> Text:
    return Text(message, style="dim italic")


def line(seen: Seen) -> str:
    """The same in one line, where there is no terminal."""
    sent, booked, lake = (seen.flows[name] for name in (SENT, BOOKED, LAKE))
    parts = [f"{clock(seen.elapsed_s)}  {sent.total:,} sent ({sent.rate:,.0f}/s, {seen.bad:,} bad)"]
    if seen.balances:
        parts.append(f"{booked.total:,} in {len(seen.balances)} balances")
        parts.append(f"{lake.total:,} in the lake")
        parts.append(f"{seen.letters:,} dead letters")
        parts.append(f"{seen.suspicious:,} suspicious")
    else:
        parts.append(seen.stage)
    return ", ".join(parts)


def picture(seen: Seen) -> Layout:
    """The whole screen."""
    layout = Layout()
    layout.split_column(
        Layout(_header(seen), name="header", size=1),
        Layout(_panel(Flows(seen), "transactions per second"), name="flows", size=len(FLOWS) + 2),
        Layout(name="money", ratio=3, minimum_size=5),
        Layout(name="news", ratio=2, minimum_size=4),
        Layout(_footer(seen), name="footer", size=1),
    )
    layout["money"].split_row(
        Layout(_panel(Balances(seen), "balances"), name="balances"),
        Layout(_panel(Spend(seen), "spend per minute"), name="spend"),
    )
    layout["news"].split_row(
        Layout(_panel(Suspicious(seen), f"suspicious  {seen.suspicious:,}"), name="suspicious"),
        Layout(_panel(DeadLetters(seen), f"dead letters  {seen.letters:,}"), name="letters"),
    )
    return layout


def _panel(inside: RenderableType, title: str) -> Panel:
    return Panel(inside, title=Text(title, style="bold"), title_align="left", border_style="bright_black", padding=0)


def _header(seen: Seen) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    now = f"{seen.bank_time:%a %H:%M} at the bank   " if seen.bank_time else ""
    name = Text.assemble((" The bank ", "bold reverse cyan"), ("  a node on ", "dim"), seen.address)
    grid.add_row(name, Text.assemble((now, "dim"), (clock(seen.elapsed_s), "bold")))
    return grid


def _footer(seen: Seen) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(Text(f" {seen.stage}", style="cyan"), Text("Ctrl-C closes the bank and checks the books", style="dim"))
    return grid
