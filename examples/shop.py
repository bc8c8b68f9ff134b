"""The online store: purchases spread over partitions, the events of one user in their order.

Users buy an item, pay, and then ask for a refund of it: never the other way round.
Users do not wait for each other, so the topic has several partitions and several
workers share it as one group; what one user does keeps its order, because the user is the key. Run it against a broker:

    python examples/shop.py [HOST:PORT]      # starts a broker of its own without an address
"""

import json
import random
import sys
import threading
from collections import defaultdict

import klamm.testing
from klamm.client import Consumer, Producer

USERS = [f"user-{number:02}" for number in range(12)]
STEPS = ("basket", "purchase", "payment", "refund")
PARTITIONS = 4
WORKERS = 3


def sell(bootstrap: str, topic: str) -> int:
    """Every user goes through the same steps; whose turn it is, is chance."""
    chance = random.Random(7)  # noqa: S311 - the same example every time
    ahead = {user: list(STEPS) for user in USERS}
    with Producer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
        while ahead:
            user = chance.choice(sorted(ahead))
            step = ahead[user].pop(0)
            producer.send(topic, json.dumps({"user": user, "step": step}).encode(), key=user.encode())
            if not ahead[user]:
                del ahead[user]
        producer.flush()
    return len(USERS) * len(STEPS)


def work(bootstrap: str, topic: str, expected: int) -> dict[str, list[str]]:
    """Workers of one group share the partitions; together they see every event once."""
    seen: dict[str, list[str]] = defaultdict(list)
    lock = threading.Lock()
    done = threading.Event()

    def worker() -> None:
        with Consumer(
            bootstrap_servers=bootstrap, group_id=f"{topic}-workers", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic])
            while not done.is_set():
                for record in consumer.poll(0.2):
                    event = json.loads(record.value)
                    with lock:
                        seen[event["user"]].append(event["step"])
                        if sum(map(len, seen.values())) >= expected:
                            done.set()

    threads = [threading.Thread(target=worker) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    done.wait(60)
    done.set()
    for thread in threads:
        thread.join()
    return dict(seen)


def run(bootstrap: str, topic: str) -> None:
    expected = sell(bootstrap, topic)
    seen = work(bootstrap, topic, expected)
    for user in USERS:
        assert seen.get(user) == list(STEPS), f"{user}: {seen.get(user)}"
    print(f"{expected} events of {len(USERS)} users, each user's in order, read by {WORKERS} workers")


def main(address: str | None) -> None:
    if address is not None:
        from klamm.client import Admin  # noqa: PLC0415 - only a broker that is there already needs it

        topic = klamm.testing.unique("purchases")
        with Admin(bootstrap_servers=address) as admin:
            admin.create_topic(topic, num_partitions=PARTITIONS)
        run(address, topic)
        return
    with klamm.testing.broker() as broker:
        run(broker.bootstrap, broker.topic("purchases", partitions=PARTITIONS))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
