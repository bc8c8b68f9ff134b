"""Python processes of a session read compiled files: from an archive they would compile everything anew."""


def test_workers_import_pyspark_from_files(spark):
    def loader(_):
        import pyspark

        return type(pyspark.__spec__.loader).__name__

    assert spark.sparkContext.parallelize([0], 1).map(loader).collect() == ["SourceFileLoader"]
