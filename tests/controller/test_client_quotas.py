"""AlterClientQuotas: what is written for each entity; and the charge of topics against a client's quota."""

import pytest

from klamm.controller import QuotaClient
from klamm.metadata.image import ClientQuotaEntity
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

ANNA = QuotaClient("anna", "app")
EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.fixture
def one(cluster):
    return cluster(1)


def entry(*parts, **limits):
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in limits.items()],
    )


def alter(one, *entries, validate_only=False):
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    decision = one.controller.alter_client_quotas(request)
    return decision, [result.error_code for result in one.commit(decision).entries]


def limits_of(one, *parts):
    return one.image.client_quotas.get(ClientQuotaEntity(tuple(parts)), {})


def test_quotas_are_set_changed_and_removed(one):
    user = ("user", "anna")
    assert alter(one, entry(user, producer_byte_rate=100.0, request_percentage=5.5))[1] == [0]
    assert limits_of(one, user) == {"producer_byte_rate": 100.0, "request_percentage": 5.5}
    alter(one, entry(user, producer_byte_rate=200.0, request_percentage=None))
    assert limits_of(one, user) == {"producer_byte_rate": 200.0}
    alter(one, entry(user, producer_byte_rate=None))
    assert not one.image.client_quotas


def test_the_order_of_the_parts_of_an_entity_does_not_matter(one):
    alter(one, entry(("user", "anna"), ("client-id", None), consumer_byte_rate=5.0))
    alter(one, entry(("client-id", None), ("user", "anna"), consumer_byte_rate=6.0))
    assert limits_of(one, ("client-id", None), ("user", "anna")) == {"consumer_byte_rate": 6.0}


def test_what_changes_nothing_writes_nothing(one):
    alter(one, entry(("user", None), producer_byte_rate=100.0))
    decision, codes = alter(one, entry(("user", None), producer_byte_rate=100.0, request_percentage=None))
    assert (decision.records, codes) == ((), [0])


def test_validation_alone_writes_nothing(one):
    decision, codes = alter(one, entry(("user", "anna"), producer_byte_rate=1.0), validate_only=True)
    assert (decision.records, codes) == ((), [0])
    assert alter(one, entry(("user", "anna"), producer_byte_rate=0.5), validate_only=True)[1] == [42]


def test_an_entity_is_changed_whole_or_not_at_all(one):
    good, bad = ("user", "anna"), ("user", "berta")
    codes = alter(one, entry(bad, producer_byte_rate=1.0, no_such_rate=1.0), entry(good, producer_byte_rate=1.0))[1]
    assert codes == [ErrorCode.INVALID_REQUEST, 0]
    assert not limits_of(one, bad)
    assert limits_of(one, good)


def decide(one, request, version, now_ms=0, client=ANNA):
    decision = one.controller.decide(request, version, next_offset=100, now_ms=now_ms, client=client)
    return one.commit(decision)


def creation(*names, partitions=10):
    topics = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics)


def test_topics_beyond_the_quota_are_refused_one_by_one(one):
    alter(one, entry(("user", "anna"), controller_mutation_rate=1.0))
    response = decide(one, creation("a", "b", "c"), 7)
    assert [topic.error_code for topic in response.topics] == [0, 0, EXCEEDED]
    assert response.throttle_time_ms == 9_000
    assert set(one.image.topics.by_name) == {"a", "b"}
    later = decide(one, creation("c"), 7, now_ms=9_000)
    assert [topic.error_code for topic in later.topics] == [0]


def test_older_versions_are_carried_out_and_throttled(one):
    alter(one, entry(("user", "anna"), controller_mutation_rate=1.0))
    response = decide(one, creation("a", "b", "c"), 5)
    assert [topic.error_code for topic in response.topics] == [0, 0, 0]
    assert response.throttle_time_ms == 19_000


def test_deletions_and_additions_are_charged_too(one):
    decide(one, creation("a", "b", "c"), 7)
    alter(one, entry(("user", "anna"), controller_mutation_rate=1.0))
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="a"), DeleteTopicState(name="b")])
    assert [result.error_code for result in decide(one, deletion, 6).responses] == [0, 0]
    addition = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="c", count=12, assignments=None)])
    response = decide(one, addition, 3)
    assert (response.results[0].error_code, response.throttle_time_ms) == (EXCEEDED, 9_000)
    assert len(one.image.topics.by_name["c"].partitions) == 10


def test_other_clients_and_the_cluster_itself_are_not_charged(one):
    alter(one, entry(("user", "anna"), controller_mutation_rate=1.0))
    decide(one, creation("a", "b"), 7)
    other = decide(one, creation("c"), 7, client=QuotaClient("berta", "app"))
    own = decide(one, creation("d"), 7, client=None)
    assert [response.topics[0].error_code for response in (other, own)] == [0, 0]
