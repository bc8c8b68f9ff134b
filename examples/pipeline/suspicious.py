"""Payments in, suspicious ones out, exactly once: a stream from topic to topic on Spark.

    klamm up &
    python examples/pipeline/suspicious.py 127.0.0.1:9092

Writes a few payments, runs the query over what is there, and prints what it found. Run it again: only new payments are
looked at, because the position is in the checkpoint.
"""

import json
import random
import sys
from typing import Any

import klamm
from klamm.client import Producer
from klamm.pipeline import session

LIMIT = 900


def pay(bootstrap: str, count: int) -> int:
    """Write payments; returns how many of them are suspicious."""
    chance = random.Random()  # noqa: S311 - no secret
    suspicious = 0
    with Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(count):
            account, amount = f"account-{chance.randrange(20)}", chance.randrange(1000)
            suspicious += amount > LIMIT
            producer.send("payments", json.dumps({"account": account, "amount": amount}).encode(), key=account.encode())
    return suspicious


def watch(spark: Any, bootstrap: str, checkpoint: str) -> Any:
    """The query, over what is there now."""
    cluster = {"kafka.bootstrap.servers": bootstrap}
    payments = (
        spark.readStream.format("klamm").options(**cluster, subscribe="payments", startingOffsets="earliest").load()
    )
    suspicious = (
        payments.selectExpr("key", "from_json(cast(value as string), 'account string, amount int') as payment")
        .where(f"payment.amount > {LIMIT}")
        .selectExpr("key", "to_json(payment) as value")
    )
    writing = suspicious.writeStream.format("klamm").options(
        **cluster, topic="suspicious", checkpointLocation=checkpoint
    )
    return writing.trigger(availableNow=True).start()


def main() -> None:
    """Send payments, run the stream, print the suspicious ones."""
    bootstrap = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
    print(f"{pay(bootstrap, 1000)} of 1000 new payments are above {LIMIT}")
    watch(session("suspicious", progress=True), bootstrap, ".klamm/suspicious").awaitTermination()
    payments = klamm.read_topic("suspicious", bootstrap=bootstrap)
    print(f"{payments.num_rows} suspicious payments in all; the last one: {payments['value'][-1].as_py().decode()}")


if __name__ == "__main__":
    main()
