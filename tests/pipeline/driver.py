"""A Spark driver of its own, to be killed: a stream from topic to topic over what is there, in small batches.

python driver.py BOOTSTRAP SOURCE SINK CHECKPOINT
"""

import sys

from klamm.pipeline import session


def main() -> None:
    bootstrap, source, sink, checkpoint = sys.argv[1:]
    servers = {"kafka.bootstrap.servers": bootstrap}
    spark = session(
        "driver",
        master="local[2]",
        progress=True,
        config={"spark.ui.enabled": False, "spark.driver.host": "127.0.0.1", "spark.log.level": "OFF"},
    )
    reading = spark.readStream.format("klamm").options(
        **servers, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="20", minPartitions="2"
    )
    writing = reading.load().select("key", "value").writeStream.format("klamm").options(**servers, topic=sink)
    writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
