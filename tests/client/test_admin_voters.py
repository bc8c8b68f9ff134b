"""Adding a voter while the controller is elected anew, as the first of two voters resigns if the second is slow."""

from types import SimpleNamespace

import pytest

from klamm.client.admin.cluster import ClusterAdmin
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.errors import KafkaError
from klamm.model.errors import ErrorCode


class AnsweringCluster(BlockingCluster):
    """Without connections; its answers are the error codes that it was given."""

    def __init__(self, *codes):
        self._options = {"timeout_s": 10.0}
        self.codes = list(codes)
        self.table = SimpleNamespace(cluster_id="cluster")

    async def any_connection(self):
        return self

    async def request(self, request, version):
        return SimpleNamespace(error_code=self.codes.pop(0), error_message="the leader is now None")

    def request_update(self):
        pass


def add_voter(*codes):
    cluster = AnsweringCluster(*codes)
    cluster.run(ClusterAdmin(cluster).add_raft_voter(2, bytes(16), [("CONTROLLER", "127.0.0.1", 9093)]))
    return cluster


def test_a_new_election_is_waited_for():
    assert add_voter(ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER, ErrorCode.NONE).codes == []


def test_a_voter_that_was_added_before_the_election():
    assert add_voter(ErrorCode.NOT_CONTROLLER, ErrorCode.DUPLICATE_VOTER).codes == []


def test_a_voter_that_was_there_before_is_refused():
    with pytest.raises(KafkaError, check=lambda error: error.code == ErrorCode.DUPLICATE_VOTER):
        add_voter(ErrorCode.DUPLICATE_VOTER)
