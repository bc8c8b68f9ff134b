"""A process with a Spark session of its own that runs pipelines, one after the other, until it is killed.

python changing_driver.py FOLDER

Waits for files FOLDER/N.run (N = 0, 1, ...) with the file, text and settings of a pipeline as JSON, runs it over what
is there, and writes FOLDER/N.done, with the error if there was one.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path

from klamm.pipeline import session
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.runner import run_pipeline

CONFIG = {
    "spark.ui.enabled": False,
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": 2,
    "spark.driver.memory": "1g",
    # Queries of a few rows: time goes into compiling, not into running what was compiled.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms1g -Xmn400m -XX:MetaspaceSize=256m",
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": False,
}
ATTEMPTS = 5


def run(spark, request):
    """Run a pipeline; again when Spark did not wait long enough for a Python process of a busy machine."""
    pipeline = compile_text(request["text"], request["file"], request["settings"])
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return run_pipeline(pipeline, once=True, spark=spark)
        except Exception as error:
            if attempt == ATTEMPTS or "connect back" not in str(error):
                raise
    raise AssertionError


def main() -> None:
    folder = Path(sys.argv[1])
    spark = session("changing", master="local[2,3]", progress=False, config=CONFIG)
    for number in range(1_000_000):
        wanted, part = folder / f"{number}.run", folder / f"{number}.part"
        while not wanted.exists():
            time.sleep(0.05)
        try:
            run(spark, json.loads(wanted.read_text()))
            part.write_text("")
        except Exception:  # noqa: BLE001 - the test reports it
            part.write_text(traceback.format_exc())
        os.replace(part, folder / f"{number}.done")


if __name__ == "__main__":
    main()
