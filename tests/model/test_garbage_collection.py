"""Full collections walk new objects only, and cycles among frozen ones are still found."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from klamm.model.garbage_collection import SurvivorFreezer

GROWTH = 20_000


class Node:
    """An object that a weak reference can watch."""

    def __init__(self) -> None:
        self.peer: Node | None = None


@pytest.fixture
def _freezer() -> Iterator[None]:
    freezer = SurvivorFreezer(GROWTH)
    freezer.install()
    yield
    freezer.uninstall()


def make_cycle() -> weakref.ref[Node]:
    """Two objects that refer to each other; only a walk frees them."""
    first, second = Node(), Node()
    first.peer, second.peer = second, first
    gc.collect()  # while both are in use
    return weakref.ref(first)


@pytest.mark.usefixtures("_freezer")
def test_survivors_are_frozen() -> None:
    rows: list[list[int]] = [[] for _ in range(1000)]
    gc.collect()
    assert gc.get_freeze_count() > len(rows)
    assert len(gc.get_objects(2)) < 100


@pytest.mark.usefixtures("_freezer")
def test_a_frozen_object_is_freed_with_its_last_reference() -> None:
    node = Node()
    gc.collect()
    watch = weakref.ref(node)
    del node
    assert watch() is None


@pytest.mark.usefixtures("_freezer")
def test_new_cycles_are_collected() -> None:
    gc.collect()
    first, second = Node(), Node()
    first.peer, second.peer = second, first
    watch = weakref.ref(first)
    del first, second
    gc.collect()
    assert watch() is None


@pytest.mark.usefixtures("_freezer")
def test_frozen_cycles_are_collected_after_growth() -> None:
    watch = make_cycle()
    gc.collect()
    assert watch() is not None  # frozen, so not walked
    rows: list[list[list[int]]] = []
    for _ in range(100):
        rows.append([[] for _ in range(GROWTH)])
        gc.collect()
        if watch() is None:
            break
    assert watch() is None


@pytest.mark.usefixtures("_freezer")
def test_objects_that_were_freed_do_not_count_as_growth() -> None:
    watch = make_cycle()
    for _ in range(50):
        rows: list[list[int]] = [[] for _ in range(GROWTH // 2)]
        gc.collect()
        del rows
    assert watch() is not None
