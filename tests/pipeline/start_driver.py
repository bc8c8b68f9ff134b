"""A driver of its own whose queries begin, to be killed before and around their first batch.

python start_driver.py BOOTSTRAP PREFIX FOLDER [POINT FILE]

With a POINT it is the first start: it sends records when the starts are stored. At a POINT of this process it makes
FILE, and waits for its end; at the others it goes on, and the test looks for them.
"""

import sys
import time
from pathlib import Path

from klamm.client import Producer
from klamm.pipeline.sql import compile_text, runner

FIRST_MS = 1_767_225_600_000
NAMES = ("early", "late", "timed")
TEXT = """
CREATE STREAM early (n INT) WITH (topic = '{0}-numbers', bad_records = 'drop');
CREATE STREAM late (n INT) WITH (topic = '{0}-numbers', starting = 'latest', bad_records = 'drop');
CREATE STREAM timed (n INT) WITH (topic = '{0}-numbers', starting = '2026-01-01T00:00:03Z', bad_records = 'drop');
CREATE STREAM early_copy WITH (topic = '{0}-early') AS SELECT n FROM early;
CREATE STREAM late_copy WITH (topic = '{0}-late') AS SELECT n FROM late;
CREATE STREAM timed_copy WITH (topic = '{0}-timed') AS SELECT n FROM timed;
"""
STORED = "starts-stored"


def send(bootstrap, prefix, numbers):
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in numbers:
            producer.send(f"{prefix}-numbers", b'{"n": %d}' % number, timestamp=FIRST_MS + 1000 * number)


def main() -> None:
    bootstrap, prefix, folder, *death = sys.argv[1:]
    original = runner.store_starts

    def store_starts(*args):
        original(*args)
        if death:
            send(bootstrap, prefix, range(10, 15))
            Path(death[1]).touch()
            if death[0] == STORED:
                time.sleep(3600)

    runner.store_starts = store_starts
    settings = {"bootstrap": bootstrap, "checkpoint": f"{folder}/home", "partitions": "1", "restarts": "5"}
    settings |= {"name": prefix, "spark.log.level": "OFF"}
    pipeline = compile_text(TEXT.format(prefix), "starts.sql", settings)
    runner.run_pipeline(pipeline, once=True, progress=False, master="local[2]")


if __name__ == "__main__":
    main()
