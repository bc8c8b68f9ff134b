"""The order of events: a node, customers, services and a pipeline; then the books are checked."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live

from klamm.client import Admin
from klamm.model.errors import ConfigError
from klamm.pipeline.java import find_java
from klamm.registry.client import parse_settings, shared_registry
from live_bank import dashboard
from live_bank.check import Results, compare, raw_books, read_results
from live_bank.generator import Generator
from live_bank.lake import Lake
from live_bank.processes import Failed, Interrupts, Node, Pipeline, Registry
from live_bank.rules import PARTITIONS, SCHEMA, TRANSACTIONS, Books
from live_bank.services import AccountService, LoggingService
from live_bank.steps import Steps, hide_keys
from live_bank.watch import Flow, Seen, Watcher

_FRAME_S: Final = 0.5
_LINE_S: Final = 5.0
_START_S: Final = 300.0
"""How long Spark may take to start, on however busy a machine."""
_STUCK_S: Final = 300.0
"""How long nothing may move at the end, before the books are checked all the same."""
_FINISH_S: Final = 150.0

EQUAL, DIFFERS, INTERRUPTED = 0, 1, 130


class Bank:
    """Everything that runs, and what is seen of it."""

    def __init__(self, folder: Path, interrupts: Interrupts, steps: Steps, *, rate: float, seed: int) -> None:
        self.folder = folder
        self._interrupts = interrupts
        self._steps = steps
        self._rate, self._seed = rate, seed
        self._began = time.monotonic()
        self._children: list[Node | Registry | Pipeline] = []
        self._threads: list[Generator | AccountService | LoggingService | Watcher] = []
        self.seen = Seen(flows={name: Flow(24 if name in dashboard.BATCHED else 6) for name in dashboard.FLOWS})
        self.notes: list[str] = []

    def open(self) -> None:
        """Start all of it; Spark goes on starting after this."""
        steps = self._steps
        self.node = Node(self.folder, self._interrupts)
        self._children.append(self.node)
        with steps.show_step("Starting a node: klamm up"):
            self.node.start()
            address = self.seen.address = self.node.wait_ready()
        steps.print_line(f"  Klamm is ready on {address}")
        message = f"Creating the topic {TRANSACTIONS}: {PARTITIONS} partitions, keyed by account"
        with steps.show_step(message), Admin(bootstrap_servers=address) as admin:
            admin.create_topic(TRANSACTIONS, num_partitions=PARTITIONS)
        self.registry = Registry(address, self.folder, self._interrupts)
        self._children.insert(0, self.registry)
        with steps.show_step("Starting a schema registry: klamm registry"):
            self.registry.start()
            registry = self.registry.wait_ready()
        steps.print_line(f"  it is ready on {registry}; transactions are Avro, by transaction.avsc")
        # Before the pipeline starts, which reads by the newest schema.
        shared_registry(parse_settings(registry)).register(f"{TRANSACTIONS}-value", SCHEMA)
        steps.print_line("Starting the pipeline: klamm pipeline run bank.sql (Spark takes ten seconds and more)")
        self.pipeline = Pipeline(address, registry, self.folder, self._interrupts)
        self._children.insert(0, self.pipeline)
        self.pipeline.start()
        steps.print_line("Opening the bank: customers, the account service and the logging service, a group each")
        self.accounts = AccountService(address)
        self.logging = LoggingService(address, str(self.folder / "transactions.log"))
        self.lake = Lake(self.folder / "lake" / TRANSACTIONS)
        self.watcher = Watcher(address, self.lake, (self.accounts.group, self.logging.group))
        self.customers = Generator(address, registry, self._rate, self._seed)
        for thread in (self.accounts, self.logging, self.watcher, self.customers):
            self._threads.append(thread)
            thread.start()
        self._began = time.monotonic()

    def check_and_show(self) -> Seen:
        """The current state for the dashboard. Raises the error of any part, and restarts a pipeline that ended."""
        for thread in self._threads:
            if thread.error is not None:
                raise Failed(f"{type(thread).__name__}: {thread.error}") from thread.error
        if not self.node.running:
            raise Failed(f"the node ended:\n{self.node.log_tail()}")
        if not self.registry.running:
            raise Failed(f"the registry ended:\n{self.registry.log_tail()}")
        note = self.pipeline.keep_running()
        if note is not None:
            self.notes.append(note)
        return self._picture()

    def _picture(self) -> Seen:
        now, seen, results, sent = time.monotonic(), self.seen, self.watcher.results, self.customers
        behind = self.watcher.behind
        seen.elapsed_s = now - self._began
        seen.bank_time = sent.now()
        seen.bad, seen.files = sent.bad, self.lake.files
        seen.flows[dashboard.SENT].mark(now, sent.acknowledged)
        seen.flows[dashboard.ACCOUNTS].mark(now, self.accounts.seen, behind.get(self.accounts.group))
        seen.flows[dashboard.LOGGING].mark(now, self.logging.seen, behind.get(self.logging.group))
        seen.flows[dashboard.BOOKED].mark(now, results.booked, max(sent.good - results.booked, 0))
        seen.flows[dashboard.LAKE].mark(now, self.lake.rows, max(sent.good - self.lake.rows, 0))
        seen.balances = results.newest_balances()
        seen.spend = results.spend()
        seen.letters, seen.last_letters = results.letters, results.last_letters.copy()
        seen.suspicious, seen.last_suspicious = results.suspicious, results.last_suspicious.copy()
        seen.stage = self._describe_stage()
        return seen

    def print_notes(self) -> None:
        """Print what happened on the way; a picture has no place for it."""
        for note in self.notes:
            self._steps.print_line(note, "yellow")
        self.notes.clear()

    def _describe_stage(self) -> str:
        status = self.pipeline.status()
        if not status:
            return f"Spark is starting: {self.pipeline.stage()}"
        failed = [name for name, query in status["queries"].items() if query.get("failures")]
        if failed:
            return f"{failed[0]} is started again"
        return f"{len(status['queries'])} queries, {self.seen.files:,} files in the lake"

    @property
    def pipeline_runs(self) -> bool:
        return bool(self.pipeline.status())

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def close(self) -> None:
        """Stop the transactions, and let all readers finish."""
        with self._steps.show_step("Closing the bank: the last transactions are acknowledged"):
            self.customers.stop(_FINISH_S)
        with self._steps.show_step("Letting the services and the pipeline finish") as report:
            self._settle(report)
        self.print_notes()
        with self._steps.show_step("Stopping the pipeline after its last batch") as report:
            self.pipeline.finish()
            deadline = time.monotonic() + _FINISH_S
            while self.pipeline.running and time.monotonic() < deadline:
                report("")
                time.sleep(0.1)
            self.pipeline.end()
        for thread in self._threads:
            thread.stop()

    def _settle(self, report: Callable[[str], None]) -> None:
        """Wait until everything has arrived everywhere, or until nothing moves any more."""
        moved = time.monotonic()
        last: tuple[dict[str, int], int] | None = None
        while True:
            self.check_and_show()
            sent, results = self.customers, self.watcher.results
            left = {
                dashboard.ACCOUNTS: sent.acknowledged - self.accounts.seen,
                dashboard.LOGGING: sent.acknowledged - self.logging.seen,
                dashboard.BOOKED: sent.good - results.booked,
                "spend per minute": sent.spent_cents - int(results.spent * 100),
                "suspicious": sent.suspicious - results.suspicious,
                "dead letters": sent.bad - results.letters,
                dashboard.LAKE: sent.good - self.lake.rows,
            }
            waiting = [name for name, count in left.items() if count]
            if not waiting and self.pipeline_runs:
                return
            now = left, self.pipeline.count_restarts()
            if now != last:
                moved, last = time.monotonic(), now
            if time.monotonic() - moved > _STUCK_S and self.pipeline_runs:
                self._steps.print_line(
                    f"nothing moved for {_STUCK_S:.0f} s: the books are checked as they are", "yellow"
                )
                return
            if time.monotonic() - moved > _START_S:
                raise Failed(f"the pipeline does not start:\n{self.pipeline.log_tail()}")
            report(f"waiting for {', '.join(waiting) or 'Spark'} ({self.seen.stage})")
            time.sleep(0.1)

    def results(self) -> Results:
        """Return what services and pipeline made of the transactions."""
        results = Results(
            sent=self.customers.acknowledged,
            bad_sent=self.customers.bad,
            account_service_saw=self.accounts.seen,
            logging_service_saw=self.logging.lines(),
            account_service=self.accounts.accounts,
            lake=self.lake.ids(),
        )
        read_results(self.seen.address, results)
        return results

    def end(self) -> None:
        """End every thread and process, whatever state it is in."""
        for child in self._children[:-1]:
            child.end()
        for thread in self._threads:
            thread.stop()
        for child in self._children[-1:]:
            child.end()


def stay_open(bank: Bank, steps: Steps, interrupts: Interrupts, seconds: float | None) -> None:
    """Show what happens until it is time to close; the seconds count from when the pipeline runs."""
    runs_since: float | None = None

    def is_over() -> bool:
        nonlocal runs_since
        if runs_since is None and bank.pipeline_runs:
            runs_since = time.monotonic()
        if runs_since is None and bank.elapsed_s > _START_S:
            raise Failed(f"the pipeline does not start:\n{bank.pipeline.log_tail()}")
        closing = interrupts.closing.wait(_FRAME_S)
        return closing or (seconds is not None and runs_since is not None and time.monotonic() - runs_since >= seconds)

    interrupts.ctrl_c_closes = True
    try:
        if steps.pictures:
            with hide_keys(), Live(console=steps.console, screen=True, auto_refresh=False) as live:
                while not is_over():
                    live.update(dashboard.picture(bank.check_and_show()), refresh=True)
        else:
            next_line_s = 0.0
            while not is_over():
                seen = bank.check_and_show()
                bank.print_notes()
                if seen.elapsed_s >= next_line_s:
                    next_line_s = seen.elapsed_s + _LINE_S
                    steps.print_line(dashboard.line(seen))
    finally:
        interrupts.ctrl_c_closes = False
        bank.print_notes()


def run(bank: Bank, steps: Steps, interrupts: Interrupts, seconds: float | None) -> int:
    """The demo's life; returns its exit code."""
    bank.open()
    stay_open(bank, steps, interrupts, seconds)
    bank.close()
    with steps.show_step("Computing everything again from the raw topic, in plain Python"):
        books, results = raw_books(bank.seen.address), bank.results()
    interrupts.ignore()
    return compare_books(books, results, steps)


def compare_books(books: Books, results: Results, steps: Steps) -> int:
    """Compare and say what came out; returns the exit code."""
    lines = compare(books, results)
    steps.print_comparison(lines)
    if all(line.equal for line in lines):
        steps.print_line("Equal: every transaction counts once, everywhere.", "bold green")
        return EQUAL
    steps.print_line("The books differ. Once more with --keep leaves the data and the logs to look at.", "bold red")
    return DIFFERS


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="demo.py",
        description="A bank on one node: customers, two services, a pipeline on Spark; then the books are checked.",
        epilog="Exit code: 0 everything is equal; 1 something differs or failed; 130 interrupted before the check.",
    )
    parser.add_argument("--seconds", type=float, metavar="N", help="close N seconds after the pipeline has started")
    parser.add_argument("--rate", type=float, default=100.0, metavar="N", help="transactions per second (100)")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="of what the customers do (7)")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the data, the lake and the logs")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    options = parse_arguments(arguments)
    try:
        find_java()
        if find_spec("pyspark") is None:
            raise ConfigError("PySpark is not installed: pip install 'klamm[spark]'")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return DIFFERS
    console = Console(highlight=False)
    steps = Steps(console)
    seconds = options.seconds
    if seconds is None and not steps.pictures:
        seconds = 60.0
    interrupts = Interrupts()
    interrupts.install()
    folder = Path(tempfile.mkdtemp(prefix="klamm-demo-"))
    bank = Bank(folder, interrupts, steps, rate=options.rate, seed=options.seed)
    try:
        return run(bank, steps, interrupts, seconds)
    except KeyboardInterrupt:
        steps.print_line("Interrupted: the books were not checked.", "yellow")
        return INTERRUPTED
    except Failed as error:
        steps.print_line(str(error), "red")
        return DIFFERS
    finally:
        interrupts.ignore()
        bank.end()
        if options.keep:
            steps.print_line(
                f"Kept in {folder}: the lake in lake/{TRANSACTIONS}, the node's data, checkpoints and logs."
            )
        else:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Processes that are ending may still put a file into it."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
