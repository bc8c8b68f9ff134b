"""The identity file on a remote file system, written through Hadoop's interface."""

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text, object_store_identity
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.object_store_identity import RemoteIdentity

TEXT = "CREATE STREAM s (id STRING) WITH (topic = 's'); CREATE STREAM copies AS SELECT id FROM s;"


class HadoopFiles:
    """Hadoop's FileSystem, Path and output stream, as far as an identity needs them; a rename may be refused."""

    def __init__(self, *, renames=True):
        self.renames = renames
        self.contents = {}
        self.org = self.apache = self.hadoop = self.fs = self

    def Path(self, folder, name):  # noqa: N802 - Hadoop's name
        return HadoopPath(self, f"{folder}/{name}")

    def create(self, path, _overwrite):
        self.contents[str(path)] = b""
        return HadoopStream(self, path)

    def exists(self, path):
        return str(path) in self.contents

    def delete(self, path, _recursive):
        del self.contents[str(path)]

    def rename(self, source, target):
        if self.renames:
            self.contents[str(target)] = self.contents.pop(str(source))
        return self.renames


class HadoopPath:
    def __init__(self, files, text):
        self.files, self.text = files, text

    def getFileSystem(self, _configuration):  # noqa: N802 - Hadoop's name
        return self.files

    def __str__(self):
        return self.text


class HadoopStream:
    def __init__(self, files, path):
        self.files, self.path = files, path

    def write(self, data):
        self.files.contents[str(self.path)] += bytes(data)

    def close(self):
        pass


def keep(files, monkeypatch):
    monkeypatch.setattr(object_store_identity, "jvm_of", lambda _spark: files)
    monkeypatch.setattr(object_store_identity, "hadoop_configuration", lambda _spark: None)
    identity = QueryIdentity("id", "p", {}, {}).renew(compile_text(TEXT, "p.sql"))
    RemoteIdentity(None, "s3a://bucket/p").keep(identity)
    return identity


def test_an_identity_is_stored_under_its_name(monkeypatch):
    files = HadoopFiles()
    identity = keep(files, monkeypatch)
    assert files.contents == {"s3a://bucket/p/pipeline.json": identity.encode().encode()}


def test_a_refused_rename_is_an_error(monkeypatch):
    with pytest.raises(ConfigError, match=r"s3a://bucket/p/pipeline\.json was not written"):
        keep(HadoopFiles(renames=False), monkeypatch)
