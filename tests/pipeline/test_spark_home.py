"""A home for Spark in which Python's files are compiled."""

import os

import pyspark

from klamm.pipeline import spark_home


def test_links_to_everything_but_the_archives(tmp_path):
    real = os.path.dirname(pyspark.__file__)
    spark_home.link_home(real, str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == set(os.listdir(real)) | {"python"}
    assert (tmp_path / "bin" / "spark-submit").samefile(os.path.join(real, "bin", "spark-submit"))
    archives = sorted(os.listdir(os.path.join(real, "python", "lib")))
    assert sorted(path.name for path in (tmp_path / "python" / "lib").iterdir()) == archives
    assert (tmp_path / "python" / "lib" / "pyspark.zip" / "pyspark" / "__init__.py").samefile(pyspark.__file__)


def test_an_archive_of_what_is_not_installed_stays_an_archive(tmp_path):
    real = tmp_path / "site" / "pyspark"
    (real / "python" / "lib").mkdir(parents=True)
    (real / "python" / "lib" / "other-1.0-src.zip").write_bytes(b"zip")
    (tmp_path / "home").mkdir()
    spark_home.link_home(str(real), str(tmp_path / "home"))
    assert (tmp_path / "home" / "python" / "lib" / "other-1.0-src.zip").read_bytes() == b"zip"


def test_a_home_that_was_chosen_is_kept(monkeypatch):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with spark_home.unpacked_spark_home():
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_the_home_is_for_the_start_alone_and_made_once(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with spark_home.unpacked_spark_home():
        first = os.environ["SPARK_HOME"]
        assert os.path.isdir(os.path.join(first, "jars"))
    assert "SPARK_HOME" not in os.environ
    with spark_home.unpacked_spark_home():
        assert os.environ["SPARK_HOME"] == first
    assert os.listdir(tmp_path / "klamm") == [os.path.basename(first)]


def test_where_nothing_can_be_kept_spark_has_its_own_home(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with spark_home.unpacked_spark_home():
        assert "SPARK_HOME" not in os.environ


def test_processes_that_start_together_share_it(tmp_path, monkeypatch):
    real, folder = os.path.dirname(pyspark.__file__), str(tmp_path / "klamm" / "spark")
    linked = spark_home.link_home

    def slowly(real, draft):
        monkeypatch.setattr(spark_home, "link_home", linked)
        spark_home.cached_home(real, folder)  # another process is faster
        linked(real, draft)

    monkeypatch.setattr(spark_home, "link_home", slowly)
    assert spark_home.cached_home(real, folder) == folder
    assert os.listdir(tmp_path / "klamm") == ["spark"]
