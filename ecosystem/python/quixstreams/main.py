"""Running totals by account, exactly once, as quixstreams' own guide builds them: state in RocksDB and a changelog."""

import argparse
from typing import Any

from quixstreams import Application, State


def add(event: dict[str, Any], state: State) -> dict[str, Any]:
    total = state.get("total", 0) + event["amount"]
    state.set("total", total)
    return {"number": event["number"], "total": total}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap", "--topic", "--to", "--group", "--state"):
        parser.add_argument(name, required=True)
    settings = parser.parse_args()
    application = Application(
        broker_address=settings.bootstrap,
        consumer_group=settings.group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=0.3,
        commit_every=100,
        state_dir=settings.state,
        # Joined by each other's instance within seconds of a kill, and not after the default of 45.
        consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 500},
        producer_extra_config={"transaction.timeout.ms": 10000},
    )
    payments = application.topic(settings.topic, value_deserializer="json", key_deserializer="str")
    totals = application.topic(settings.to, value_serializer="json", key_serializer="str")
    frame = application.dataframe(payments)
    frame = frame.apply(add, stateful=True)
    frame.to_topic(totals)
    application.run()


if __name__ == "__main__":
    main()
