"""The topic after compaction: ids keep their meaning, and are never given again."""

import contextlib
import random

import pytest

from klamm.registry import schemas
from klamm.registry.store import RegistryRefusal

from .small_store import SmallStore, record

NOOP = b'{"keytype":"NOOP","magic":0}'


def test_an_id_is_not_given_again_when_its_schema_is_compacted_away():
    store = SmallStore()
    store.register("kept", record("A"))
    assert store.register("gone", record("B")).schema_id == 2
    store.delete("gone")
    store.delete("gone", permanent=True)
    store.compact()
    assert not any(b"gone" in key and b"SCHEMA" in key for key, _ in store.topic)
    store.open()
    assert store.register("new", record("C")).schema_id == 3


def test_contexts_keep_their_own_ids():
    store = SmallStore()
    store.register(":.c:gone", record("A"))
    store.delete(":.c:gone", 1)
    store.delete(":.c:gone", 1, permanent=True)
    store.register("gone", record("A"))
    store.register("gone2", record("B"))
    for subject in ("gone", "gone2"):
        store.delete(subject)
        store.delete(subject, permanent=True)
    store.compact()
    store.open()
    assert store.register(":.c:new", record("C")).schema_id == 2
    assert store.register("new", record("C")).schema_id == 3


def test_floors_that_another_registry_overwrites_are_written_again():
    store = SmallStore()
    store.register("gone", record("A"))
    store.delete("gone")
    store.delete("gone", permanent=True)
    assert not store.state.id_floors_lost
    # Confluent's registry writes it when it starts, to find the end of the topic.
    store.topic.append((NOOP, None))
    store.state.replay(NOOP, None)
    assert store.state.id_floors_lost
    pair = store.state.encode(store.state.id_floors_entry())
    store.topic.append(pair)
    store.state.replay(*pair)
    assert not store.state.id_floors_lost
    store.compact()
    store.open()
    assert store.register("new", record("C")).schema_id == 2


@pytest.mark.parametrize("value", [b"null", b"[]", b"{", b'{"idFloors":3}', b'{"idFloors":{".":"x"}}', b""])
def test_other_values_of_noop_are_ignored(value):
    store = SmallStore()
    assert store.state.replay(NOOP, value) is None
    assert store.register("s", record("A")).schema_id == 1


class History:
    """Random requests, compactions and restarts; remembers what every id stood for."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.store = SmallStore(schemas)
        self.meanings = {}

    def step(self):
        subject = self.random.choice(["a", "b", ":.c:a"])
        choice = self.random.random()
        with contextlib.suppress(RegistryRefusal):
            if choice < 0.4:
                text = record(f"R{self.random.randrange(30)}")
                version = self.store.register(subject, text, force=True)
                self.remember(version)
            elif choice < 0.75:
                number = self.random.choice([None, *self.store.versions(subject, deleted=True)[-2:]])
                self.store.delete(subject, number)
                if self.random.random() < 0.8:
                    self.store.delete(subject, number, permanent=True)
            elif choice < 0.9:
                self.store.compact()
            else:
                self.store.open()

    def remember(self, version):
        key = (version.subject.context, version.schema_id)
        assert self.meanings.setdefault(key, version.content.text) == version.content.text

    def view(self):
        return {
            str(subject): [
                (version.version, version.schema_id, version.deleted)
                for version in self.store.state.versions(subject, deleted=True)
            ]
            for subject in self.store.state.subjects
        }


@pytest.mark.parametrize("seed", range(20))
def test_no_id_changes_its_meaning(seed):
    history = History(seed)
    for _ in range(150):
        history.step()
    before = history.view()
    history.store.compact()
    history.store.open()
    assert history.view() == before
