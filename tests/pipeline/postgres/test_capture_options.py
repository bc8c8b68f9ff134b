"""Options of a captured table: names in PostgreSQL, generations, secrets."""

import re

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.postgres.capture_options import capture_options
from klamm.pipeline.sql import compile_text

ID = "0123456789abcdef"


def options_of(more="", generation=0, environment=None, name="accounts", table="accounts"):
    text = f"""CREATE TABLE {name} (id BIGINT, owner STRING) WITH (
      connector = 'postgres', url = 'postgresql://db/shop', table = '{table}', key = 'id'{more});"""
    return capture_options(compile_text(text).nodes[0], ID, generation, environment or {})


def is_like(name, pattern):
    """Whether PostgreSQL's LIKE matches."""
    wild = {"%": ".*", "_": "."}
    parts = re.findall(r"\\.|.", pattern)
    return re.fullmatch("".join(wild.get(part, re.escape(part.removeprefix("\\"))) for part in parts), name)


def test_defaults():
    options = options_of()
    assert (options.schema, options.table, options.key) == ("public", "accounts", ("id",))
    assert (options.slot, options.publication) == ("klamm_01234567_accounts_source", "klamm_public_accounts")
    assert (options.batch_size, options.with_rows, options.older_slots) == (10_000, True, ())
    assert options.qualified == '"public"."accounts"'


def test_generations_and_names():
    options = options_of(", slot = 'mine', publication = 'theirs', starting = 'latest', batch_size = 5", generation=2)
    assert (options.slot, options.older_slots, options.publication) == ("mine_2", ("mine", "mine_1"), "theirs")
    assert (options.with_rows, options.batch_size) == (False, 5)
    assert options_of(table='odd.ta"ble').qualified == '"odd"."ta""ble"'


@pytest.mark.parametrize("generation", [0, 3, 1234])
@pytest.mark.parametrize("name", ["accounts", "a" * 100])
def test_the_pattern_of_slots_matches_every_generation(name, generation):
    options = options_of(name=name, generation=generation)
    assert is_like(options.slot, options.slot_like)
    assert len(options.slot) <= 63
    assert not is_like("klamm_01234567_others_source", options.slot_like)
    own = options_of(", slot = 'my_slot'", generation)
    assert is_like(own.slot, own.slot_like)
    assert not is_like("myxslot", own.slot_like)


def test_secrets_come_from_the_environment():
    options = options_of(", password = '${SECRET}', user = 'shop'", environment={"SECRET": "hush"})
    assert (options.user, options.password, options.secrets) == ("shop", "hush", ("hush",))
    with pytest.raises(ConfigError, match="has no SECRET: export it"):
        options_of(", password = '${SECRET}'")
