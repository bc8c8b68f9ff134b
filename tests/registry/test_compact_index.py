"""The index of versions and ids, beside a dict of dicts."""

import random

import pytest

from klamm.registry.store.compact_index import CompactIndex


@pytest.mark.parametrize("seed", range(10))
def test_it_holds_what_a_dict_of_dicts_holds(seed):
    print("seed", seed)
    rng = random.Random(seed)
    index, model = CompactIndex(int), {}
    for _ in range(500):
        key, value = rng.randrange(5), rng.randrange(4)
        if rng.random() < 0.5:
            index.put(key, value)
            model.setdefault(key, {})[value] = value
        elif rng.random() < 0.2:
            index.sort(key)
            if key in model:
                model[key] = dict(sorted(model[key].items()))
        else:
            assert index.remove(key, value) == model.get(key, {}).pop(value, None)
            if not model.get(key, True):
                del model[key]
        assert (len(index), set(index)) == (len(model), set(model))
        for number in range(5):
            entries = list(model.get(number, ()))
            assert list(index.values(number)) == entries
            assert (number in index) == bool(entries)
            assert index.first(number) == (entries[0] if entries else None)
            assert index.last(number) == (entries[-1] if entries else None)
            assert [index.find(number, entry) for entry in entries] == entries
