"""A session on this machine: what its processes import, and where its driver listens."""

import psutil


def test_workers_import_pyspark_from_files(spark):
    def loader(_):
        import pyspark

        return type(pyspark.__spec__.loader).__name__

    assert spark.sparkContext.parallelize([0], 1).map(loader).collect() == ["SourceFileLoader"]


def test_the_driver_listens_on_this_machine_alone(spark):
    jvm = spark.sparkContext._gateway.proc
    family = [jvm, *psutil.Process(jvm.pid).children(recursive=True)]
    listening = {
        connection.laddr.ip
        for process in family
        for connection in psutil.Process(process.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} <= {"127.0.0.1", "::1"}
