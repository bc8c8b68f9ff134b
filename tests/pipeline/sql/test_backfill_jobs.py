"""The list of backfills in a pipeline's folder."""

import contextlib
import threading

from klamm.pipeline.core.offsets import Range
from klamm.pipeline.sql import backfill, compile_text
from klamm.pipeline.sql.status import Home

TEXT = "CREATE STREAM s (id STRING) WITH (topic = 's'); CREATE STREAM copies AS SELECT id FROM s;"


def test_two_backfills_that_end_at_the_same_time_are_both_recorded(tmp_path, monkeypatch):
    home = Home(str(tmp_path))
    node = compile_text(TEXT, "p.sql").node("copies")
    both_have_read = threading.Barrier(2)
    read_jobs = backfill._read_jobs

    def read_and_wait(place):
        jobs = read_jobs(place)
        # It breaks where there is a lock: the other one waits for that.
        with contextlib.suppress(threading.BrokenBarrierError):
            both_have_read.wait(0.3)
        return jobs

    monkeypatch.setattr(backfill, "_read_jobs", read_and_wait)
    threads = [
        threading.Thread(
            target=backfill._record_job, args=(home, backfill.Backfill(node, (Range("s", 0, at, at + 5),)), f"app-{at}")
        )
        for at in (0, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(job["app"] for job in read_jobs(home)) == ["app-0", "app-5"]
