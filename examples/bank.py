"""The bank: every transaction reaches the account service and the logging service, and money is never made.

Both services read the same topic in groups of their own, so each gets every transaction. A transfer takes from one
account and gives to another in one Kafka transaction: readers of committed records see both bookings or neither,
although every third clerk here gives up halfway.

    python examples/bank.py [HOST:PORT]      # starts a broker of its own without an address
"""

import json
import sys

import klamm.testing
from klamm.client import Consumer, Producer

ACCOUNTS = ("alice", "bob", "carol")
OPENING = 100
TRANSFERS = [("alice", "bob", 30), ("bob", "carol", 50), ("carol", "alice", 20), ("alice", "carol", 5)] * 3


def book(producer: Producer, topic: str, account: str, amount: int) -> None:
    producer.send(topic, json.dumps({"account": account, "amount": amount}).encode(), key=account.encode())


def clerk(bootstrap: str, topic: str) -> int:
    """Make the transfers; returns how many were committed."""
    committed = 0
    with Producer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-clerk") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for account in ACCOUNTS:
            book(producer, topic, account, OPENING)
        producer.commit_transaction()
        for number, (giver, taker, amount) in enumerate(TRANSFERS):
            producer.begin_transaction()
            book(producer, topic, giver, -amount)
            if number % 3 == 2:
                producer.flush()  # the first half is on the broker, but no read_committed reader gets it
                producer.abort_transaction()
                continue
            book(producer, topic, taker, amount)
            producer.commit_transaction()
            committed += 1
    return committed


def service(bootstrap: str, topic: str, name: str, expected: int) -> list[dict[str, object]]:
    """A service of the bank: a group of its own, committed bookings alone."""
    bookings: list[dict[str, object]] = []
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=f"{topic}-{name}",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.subscribe([topic])
        while len(bookings) < expected:
            records = consumer.poll(20)
            assert records, f"{name} waits for {expected - len(bookings)} more bookings"
            bookings += [json.loads(record.value) for record in records]
        assert not consumer.poll(0.5), "a booking that was taken back is seen"
    return bookings


def run(bootstrap: str, topic: str) -> None:
    transfers = clerk(bootstrap, topic)
    bookings = len(ACCOUNTS) + 2 * transfers
    balances = dict.fromkeys(ACCOUNTS, 0)
    for booking in service(bootstrap, topic, "accounts", bookings):
        balances[str(booking["account"])] += int(str(booking["amount"]))
    audit = service(bootstrap, topic, "audit", bookings)
    assert sum(balances.values()) == OPENING * len(ACCOUNTS), balances
    assert len(audit) == bookings
    print(f"{transfers} transfers of {len(TRANSFERS)} committed, {bookings} bookings audited, balances {balances}")


def main(address: str | None) -> None:
    if address is not None:
        run(address, klamm.testing.unique("transactions"))
        return
    with klamm.testing.broker() as broker:
        run(broker.bootstrap, broker.topic("transactions"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
