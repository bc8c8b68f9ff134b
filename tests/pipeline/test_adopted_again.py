"""A backup that is restored and adopted several times: generations that wrote nothing keep where the output ends."""

import os
import shutil

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.query_checkpoint import QueryCheckpoint
from klamm.pipeline.sql.query_ledger import ledger_of, node_of
from klamm.pipeline.sql.state_folders import home_of
from klamm.pipeline.sql.topics import ClusterTopics
from pipeline.adoptions import LAKE, lake_of, pipeline_of, start
from pipeline.test_adoption_kills import NOW_MS, Site, restore, snapshot


class Backup:
    """A copy of a site's folder, taken before the site went on."""

    def __init__(self, broker, tmp_path):
        self.site = Site(broker, tmp_path / "home")
        self.copy = tmp_path / "copy"
        shutil.copytree(self.site.home, self.copy)

    def restore(self):
        shutil.rmtree(self.site.home)
        shutil.copytree(self.copy, self.site.home)

    def start(self, *adopted):
        return start(self.site.broker.bootstrap, self.site.topics, self.site.home, adopted)

    def checkpoint(self, query, generation):
        return QueryCheckpoint.at(os.path.join(self.site.home, f"{query}.{generation}"))


@pytest.fixture
def backup(klamm_broker, tmp_path):
    return Backup(klamm_broker, tmp_path)


@pytest.mark.parametrize("query", ["copies", LAKE])
def test_each_adoption_of_the_same_backup_continues_at_the_end_of_the_output(backup, query):
    for generation in range(1, 5):
        identity = backup.start("copies", "counts", LAKE) if generation == 1 else backup.start(query)
        assert identity.generations[query] == generation
        checkpoint = backup.checkpoint(query, generation)
        assert (checkpoint.next_batch(), checkpoint.position(0)) == (1, backup.site.position(4))
        # No batch of this generation is written before the backup is restored again.
        backup.restore()
        home = home_of(pipeline_of(backup.site.broker.bootstrap, backup.site.topics, backup.site.home))
        # The other queries are not set back.
        stored = home.identity()
        home.keep(stored.with_generation("counts", 1).with_generation(other_of(query), 1))


def other_of(query):
    return LAKE if query == "copies" else "copies"


def test_a_checkpoint_that_was_removed_before_its_first_batch_is_noticed(backup):
    identity = backup.start("copies")
    shutil.rmtree(backup.checkpoint("copies", 1).path)
    pipeline = pipeline_of(backup.site.broker.bootstrap, backup.site.topics, backup.site.home)
    node = node_of(pipeline, "copies")
    ledger = ledger_of(None, pipeline, identity, backup.site.home, node, "copies")
    newest = ClusterTopics(pipeline, {}).newest(node, ledger)
    assert "it was removed" in ledger.find_disagreement(newest).describe("topic copies")
    # The repair that the message names.
    assert backup.start("copies").generations["copies"] == 2
    assert backup.checkpoint("copies", 2).position(0) == backup.site.position(4)


def test_state_that_was_copied_and_is_gone_before_its_first_batch_is_not_begun_anew(backup):
    backup.start("counts")
    shutil.rmtree(backup.checkpoint("counts", 1).path)
    with pytest.raises(ConfigError, match="counts cannot be adopted: its state is lost with the checkpoint"):
        backup.start("counts")


def test_a_snapshot_that_is_lost_before_its_first_batch_is_continued_at_the_end_of_the_output(backup):
    snapshot(backup.site.home, NOW_MS)
    place = backup.site.broker.bootstrap, backup.site.topics, backup.site.home
    assert restore(*place).generations["copies"] == 1
    shutil.rmtree(backup.checkpoint("copies", 1).path)
    backup.start("copies")
    assert backup.checkpoint("copies", 2).position(0) == backup.site.position(4)


def test_a_lake_that_was_removed_as_well_is_not_continued_at_the_end_of_its_old_rows(backup):
    backup.start(LAKE)
    shutil.rmtree(backup.checkpoint(LAKE, 1).path)
    shutil.rmtree(lake_of(backup.site.home))
    with pytest.raises(ConfigError, match=r"lake cannot be adopted: .* has no batch of it"):
        backup.start(LAKE)


def test_a_rebuild_without_a_batch_has_no_end_to_continue_at(backup):
    """Whether its topic has rows of before is not known: neither all of them nor none may be written again."""
    place = backup.site.broker.bootstrap, backup.site.topics, backup.site.home
    home = home_of(pipeline_of(*place))
    home.keep(home.identity().with_generation("copies", 1))
    backup.start()
    with pytest.raises(ConfigError, match="copies cannot be adopted: generation 1 has written no batch"):
        backup.start("copies")
