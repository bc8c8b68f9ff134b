"""Balances as a table that answers: pull queries, and a push query.

    python examples/tables.py                     # with a broker of its own
    python examples/tables.py 127.0.0.1:9092      # on a cluster that is there

Payments change the balance of an account; the balances are a topic, keyed by account. `open_tables` follows the topic
and answers SQL over its newest rows. Needs klamm[sql]; neither Spark nor a pipeline that runs.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from klamm.client import Admin, Producer
from klamm.pipeline import open_tables
from klamm.testing import broker, unique

PAYMENTS = [("ada", 100), ("bob", 20), ("ada", -30), ("eve", 500), ("bob", -20), ("ada", 5)]


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """The address of a cluster: the one on the command line, or a broker for this program."""
    if len(sys.argv) > 1:
        yield sys.argv[1]
    else:
        with broker() as running:
            yield running.bootstrap


def pay(bootstrap: str, topic: str, payments: list[tuple[str, int]], balances: Counter[str]) -> None:
    """Write the new balance of each account that pays; an account with nothing left is deleted."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        for account, amount in payments:
            balances[account] += amount
            row = {"account": account, "balance": balances[account]}
            value = json.dumps(row).encode() if balances[account] else None
            producer.send(topic, value, key=account.encode())
        producer.flush()


def main() -> None:
    with cluster() as bootstrap, tempfile.TemporaryDirectory() as folder:
        topic = unique("balances")
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(topic, 3, configs={"cleanup.policy": "compact"})
        file = Path(folder) / "bank.sql"
        file.write_text(
            f"CREATE TABLE balances (account STRING, balance DECIMAL(12, 2)) WITH (topic = '{topic}', key = 'account');"
        )
        balances: Counter[str] = Counter()
        pay(bootstrap, topic, PAYMENTS, balances)
        with open_tables(file, bootstrap=bootstrap) as tables:
            rich = tables.query("SELECT account, balance FROM balances WHERE balance > ? ORDER BY balance DESC", [50])
            for row in rich.to_pylist():
                print(f"{row['account']} has {row['balance']}")
            print("bob has", tables.get("balances", "bob"))

            watch = tables.open_watch("SELECT sum(balance) AS total FROM balances", snapshot=False)
            writer = threading.Thread(target=pay, args=(bootstrap, topic, [("eve", -100), ("zoe", 1)], balances))
            writer.start()
            total = Decimal(0)
            while total != sum(balances.values()) or writer.is_alive():
                for change in watch.next_changes(1.0) or ():
                    print(f"{change.sign} {change.row[0]}")
                    total = change.row[0] if change.sign == "+" else total
            writer.join()
            print(f"in all accounts: {total}")


if __name__ == "__main__":
    main()
