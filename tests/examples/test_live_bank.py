"""The bank of `make demo`: its rules, its check and its picture, without a node."""

import io
import json
import signal
import subprocess
import sys
from collections import Counter
from copy import deepcopy
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from live_bank import dashboard
from live_bank.app import DIFFERS, EQUAL, compare_books
from live_bank.check import Results, compare
from live_bank.generator import ACCOUNTS, Customers
from live_bank.lake import Lake
from live_bank.processes import Interrupts
from live_bank.rules import SCHEMA, Account, BadRecord, Books, read_transaction, recompute
from live_bank.steps import Steps
from live_bank.watch import Flow, Letter, Seen
from rich.console import Console

EXAMPLES = Path(__file__).parents[2] / "examples"


def encode(row):
    out = io.BytesIO(bytes(4) + b"\1")
    out.seek(5)
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(SCHEMA)), row)
    return out.getvalue()


def transaction(id, account, amount, at="2026-01-05T08:00:30.000Z", kind="card"):
    moment = datetime.fromisoformat(at)
    amount = None if amount is None else Decimal(amount)
    return encode({"id": id, "account": account, "kind": kind, "at": moment, "amount": amount})


def small_books():
    return recompute(
        [
            (0, 0, transaction(1, "ada", "500.00")),
            (0, 1, transaction(2, "ada", "-0.10")),
            (0, 2, transaction(3, "ada", "-0.20")),
            (0, 3, b'{"id": 4,'),
            (1, 0, transaction(5, "ken", "-900.00", "2026-01-05T08:01:00.000Z")),
            (1, 1, None),
        ]
    )


def right_results(books):
    """The results of services and a pipeline without a mistake."""
    return Results(
        sent=books.records,
        bad_sent=books.bad.total(),
        account_service_saw=books.records,
        logging_service_saw=books.records,
        account_service=deepcopy(books.accounts),
        balances=deepcopy(books.accounts),
        spend=dict(books.spend),
        suspicious=Counter(books.suspicious),
        dead_letters=Counter(books.bad),
        lake=Counter(books.good),
    )


def recorded_steps(width=100):
    return Steps(Console(file=io.StringIO(), width=width, highlight=False))


def test_a_negative_balance_is_a_bar_to_the_left_of_zero():
    low, high = Decimal(-50), Decimal(150)
    assert dashboard.signed_bar(Decimal(150), low, high, 8) == "  ██████"
    assert dashboard.signed_bar(Decimal(-50), low, high, 8) == "██"
    assert dashboard.signed_bar(Decimal(-25), low, high, 8) == " █"
    assert dashboard.signed_bar(Decimal(-1), low, high, 8) == " █"
    assert dashboard.signed_bar(Decimal(0), low, high, 8) == "  "
    assert dashboard.signed_bar(Decimal(0), Decimal(0), Decimal(0), 8) == ""
    assert dashboard.signed_bar(Decimal(-7), Decimal(-7), Decimal(0), 4) == "████"


def test_the_books_of_a_few_records():
    books = small_books()
    assert books.accounts == {"ada": Account(Decimal("499.70"), 3), "ken": Account(Decimal(-900), 1)}
    assert books.spend == {
        ("ada", "2026-01-05T08:00:00.000000Z"): Decimal("0.30"),
        ("ken", "2026-01-05T08:01:00.000000Z"): Decimal(900),
    }
    assert set(books.suspicious) == {5}
    assert set(books.bad) == {(0, 3), (1, 1)}
    assert books.records == 6
    assert books.good.total() == 4


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "the value is null"),
        (b'{"id": 1, "account": "ada"}', "the value names no schema"),
        (b"\0\0", "the value names no schema"),
        (transaction(1, "ada", "1.00")[:-2], "the value is cut off or damaged"),
        (transaction(1, "ada", "1.00") + b"x", "there are bytes after the value"),
        (transaction(1, "ada", None), "the amount is missing"),
    ],
)
def test_nonsense_is_called_by_its_name(value, words):
    with pytest.raises(BadRecord, match=words):
        read_transaction(value)


def test_customers_know_what_they_send():
    """Their own idea of good and bad, and of the amount, is that of the rules."""
    customers, seen, bad = Customers(7, encode), set(), 0
    for place in range(5000):
        key, value, cents = customers.record(place / 100)
        if cents is None:
            bad += 1
            with pytest.raises(BadRecord):
                read_transaction(value)
            continue
        entry = read_transaction(value)
        assert entry.account.encode() == key
        assert entry.amount * 100 == cents
        assert entry.minute[:16] == entry.at[:16]
        seen.add(entry.account)
        assert (entry.kind == "opening") == (place < len(ACCOUNTS))
    assert seen == set(ACCOUNTS)
    assert 0 < bad < 200


def test_the_same_seed_is_the_same_story():
    one, other = Customers(3, encode), Customers(3, encode)
    assert [one.record(0.5) for _ in range(500)] == [other.record(0.5) for _ in range(500)]


def test_equal_books_are_equal():
    books, steps = small_books(), recorded_steps()
    assert compare_books(books, right_results(books), steps) == EQUAL
    output = steps.console.file.getvalue()
    assert "Equal: every transaction counts once, everywhere." in output
    assert output.count("equal") == len(compare(books, right_results(books)))


def wrong_balance(results):
    results.balances["ada"].balance += Decimal("0.01")


def counted_twice(results):
    results.balances["ken"].transactions += 1


def lost_account(results):
    del results.balances["ken"]


def wrong_service(results):
    results.account_service["ada"].balance -= 1


def one_unseen_by_accounts(results):
    results.account_service_saw -= 1


def one_unseen_by_logging(results):
    results.logging_service_saw -= 1


def wrong_minute(results):
    results.spend["ken", "2026-01-05T08:02:00.000000Z"] = results.spend.pop(("ken", "2026-01-05T08:01:00.000000Z"))


def suspicion_twice(results):
    results.suspicious[5] += 1


def letter_of_another(results):
    results.dead_letters = Counter({(0, 3): 1, (1, 0): 1})


def row_twice_and_row_lost(results):
    results.lake.subtract([1])
    results.lake.update([2])


def one_sent_and_lost(results):
    results.sent += 1


def one_bad_more(results):
    results.bad_sent += 1


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (wrong_balance, "balances table (2): ada has 499.71 of 3 transactions instead of 499.70 of 3 transactions"),
        (counted_twice, "balances table (2): ken has -900.00 of 2 transactions instead of -900.00 of 1 transactions"),
        (lost_account, "balances table (2): ken has nothing instead of -900.00 of 1 transactions"),
        (wrong_service, "account service's balances (2): ada has 498.70"),
        (one_unseen_by_accounts, "account service saw: 5 instead of 6"),
        (one_unseen_by_logging, "logging service saw: 5 instead of 6"),
        (wrong_minute, "spend per minute (2 windows): ken paid nothing instead of 900.00 in the minute 08:01"),
        (suspicion_twice, "suspicious: id 5 is there 2 times"),
        (letter_of_another, "dead letters: record 1-1 is missing"),
        (row_twice_and_row_lost, "rows in the lake: id 1 is missing"),
        (one_sent_and_lost, "records sent: 7 instead of 6"),
        (one_bad_more, "of them bad: 3 instead of 2"),
    ],
)
def test_a_mistake_is_found(mistake, words):
    books, steps = small_books(), recorded_steps(width=200)
    results = right_results(books)
    mistake(results)
    assert compare_books(books, results, steps) == DIFFERS
    output = steps.console.file.getvalue()
    assert words in output
    assert output.count("DIFFERS") == 1
    assert "Equal" not in output


def test_many_differences_are_counted_and_some_are_told():
    books = recompute((0, place, transaction(place, "ada", "1.00")) for place in range(100))
    results = right_results(books)
    results.lake.clear()
    (line,) = [compared for compared in compare(books, results) if not compared.equal]
    assert len(line.differences) == 6
    assert line.differences[-1] == "and 95 more"


def test_an_empty_bank_is_equal():
    assert all(line.equal for line in compare(Books(), Results()))


def test_the_lake_is_what_a_reader_of_parquet_sees(tmp_path):
    def write(name, ids):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), tmp_path / name)

    lake = Lake(tmp_path)
    write("a.parquet", [1, 2])
    write("_klamm/staged.parquet", [1, 2])
    lake.refresh()
    assert (lake.rows, lake.files) == (2, 1)
    write("b.parquet", [3])
    lake.refresh()
    assert (lake.rows, lake.files) == (3, 2)
    assert lake.ids() == Counter([1, 2, 3])


def test_a_lake_that_is_not_there_yet_is_empty(tmp_path):
    lake = Lake(tmp_path / "no")
    lake.refresh()
    assert (lake.rows, lake.files, lake.ids()) == (0, 0, Counter())


def some_bank():
    seen = Seen(address="127.0.0.1:9092", elapsed_s=83, bank_time=datetime(2026, 1, 5, 9, 23, tzinfo=UTC), bad=12)
    seen.flows = {name: Flow() for name in dashboard.FLOWS}
    for place in range(100):
        for name in dashboard.FLOWS:
            seen.flows[name].mark(place / 2, place * (50 + place % 20), None if name == dashboard.SENT else place)
    seen.balances = {name: Account(Decimal(place * 1000 - 500), place) for place, name in enumerate(ACCOUNTS)}
    seen.spend = {f"2026-01-05T08:{minute:02}:00.000000Z": Decimal(minute * 7) for minute in range(60)}
    seen.letters, seen.suspicious = 12, 34
    seen.stage = "5 queries, 12 files in the lake"
    for place in range(20):
        seen.last_letters.append(Letter(0, place, "the value is no JSON of id BIGINT", b'{"id": %d' % place))
        seen.last_suspicious.append(
            {"at": f"2026-01-05T08:{place:02}:00.000Z", "account": "ada", "kind": "cash", "amount": Decimal(-950)}
        )
    return seen


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (160, 50), (60, 18)])
def test_the_picture_fits(width, height):
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(dashboard.picture(some_bank()), height=height, end="")
    lines = console.file.getvalue().splitlines()
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    if width >= 80:
        text = "\n".join(lines)
        for words in ("127.0.0.1:9092", "09:23", "1:23", "account service", "99 behind", "12 of them bad", "niklaus"):
            assert words in text, words
        for words in ("10,500.00", "cash", "-950.00", "0-19 the value is no JSON", '{"id": 19', "dead letters  12"):
            assert words in text, words
        assert "08:59: 413" in text
        assert "Ctrl-C" in text


def test_the_picture_of_a_bank_that_just_opened():
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None)
    console.print(dashboard.picture(Seen(stage="Spark is starting")), height=24, end="")
    assert "no balances until the pipeline runs" in console.file.getvalue()


def test_the_line_where_there_is_no_terminal():
    seen = some_bank()
    assert dashboard.line(seen).endswith("12 dead letters, 34 suspicious")
    seen.balances = {}
    assert dashboard.line(seen).endswith("5 queries, 12 files in the lake")


def test_blocks():
    assert dashboard.sparkline([0, 1, 2, 4, 8], 6) == " ▁▁▂▄█"
    assert dashboard.sparkline([], 3) == "   "
    assert dashboard.bar(0.5, 3) == "█▌"
    assert dashboard.bar(2, 3) == "███"
    assert dashboard.columns([0, 4, 8], 3, 2) == ["  █", " ██"]
    assert dashboard.clock(125) == "2:05"


def test_an_interrupt_waits_while_a_child_is_started():
    interrupts, started = Interrupts(), []

    def start():
        with interrupts.delay():
            interrupts.handle(signal.SIGINT, None)
            started.append("child")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started == ["child"]


def test_the_first_interrupt_closes_an_open_bank_and_the_next_one_ends_it():
    interrupts = Interrupts()
    interrupts.ctrl_c_closes = True
    interrupts.handle(signal.SIGINT, None)
    assert interrupts.closing.is_set()
    interrupts.ctrl_c_closes = False
    with pytest.raises(KeyboardInterrupt):
        interrupts.handle(signal.SIGINT, None)
    interrupts.handle(signal.SIGINT, None)  # tidying up goes on


def test_being_told_to_end_ends_an_open_bank_at_once():
    interrupts = Interrupts()
    interrupts.ctrl_c_closes = True
    with pytest.raises(SystemExit) as left:
        interrupts.handle(signal.SIGTERM, None)
    assert left.value.code == 128 + signal.SIGTERM


def test_an_interrupt_inside_of_a_callback_of_a_weak_reference_ends_the_demo():
    program = """
import signal, time, weakref
from live_bank.processes import Interrupts

class Target:
    pass

Interrupts().install()
target = Target()
reference = weakref.ref(target, lambda _: signal.raise_signal(signal.SIGINT))
try:
    del target
    time.sleep(30)
except KeyboardInterrupt:
    print("ended")
"""
    child = subprocess.run(
        [sys.executable, "-c", program], cwd=EXAMPLES, capture_output=True, text=True, timeout=60, check=False
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "ended\n", "")
