"""Folders of checkpoints on this machine: a copy is durable before it counts."""

import os

from klamm.pipeline.checkpoint_folder import copy_folder


def test_a_copy_is_synced_with_all_of_its_folders(tmp_path, monkeypatch):
    source, target = tmp_path / "old", tmp_path / "home" / "new"
    (source / "state" / "0").mkdir(parents=True)
    (source / "metadata").write_text("{}")
    (source / "state" / "0" / "1.delta").write_bytes(b"rows")
    target.parent.mkdir()
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))

    copy_folder(str(source), str(target))
    assert (target / "state" / "0" / "1.delta").read_bytes() == b"rows"
    # Its own name too, which is an entry of the folder that it is in.
    expected = [target, *target.rglob("*"), target.parent]
    assert {path.stat().st_ino for path in expected} == set(synced)
