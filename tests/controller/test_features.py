"""Feature levels, the first records of a cluster, and producer id blocks."""

import pytest

from klamm.metadata import FeatureRange, MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE
from klamm.model.errors import ErrorCode
from klamm.protocol.messages import metadata_records as r
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from klamm.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

UPGRADE, SAFE, UNSAFE = 1, 2, 3
ELR = "eligible.leader.replicas.version"


def update(one, name, level, kind=UPGRADE, *, version=2, **fields):
    change = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
    request = UpdateFeaturesRequest(feature_updates=[change], **fields)
    return one.commit(one.controller.update_features(request, version))


def test_an_empty_log_starts_with_the_feature_levels(cluster):
    one = cluster()
    assert one.log == [
        r.FeatureLevelRecord(name="metadata.version", feature_level=30),
        r.FeatureLevelRecord(name=ELR, feature_level=1),
        r.FeatureLevelRecord(name="group.version", feature_level=1),
        r.FeatureLevelRecord(name="transaction.version", feature_level=2),
        r.ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="1"),
    ]
    assert one.controller.take_over(one.image, one.now_ms).records == ()


def test_the_levels_of_a_fresh_kafka_4_3_node_can_be_asked_for(cluster):
    levels = {
        "transaction.version": 2,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        ELR: 1,
        "metadata.version": 30,
    }
    assert dict(cluster(finalized_features=levels).image.features) == levels


def test_the_static_minimum_is_written_down_for_all(cluster):
    one = cluster(static={"min.insync.replicas": "2"})
    assert one.image.broker_configs(None) == {"min.insync.replicas": "2"}


def test_a_feature_is_turned_off_and_on(cluster):
    one = cluster(1)
    assert update(one, ELR, 0).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert update(one, ELR, 0, SAFE).error_code == 0
    assert one.log[-1] == r.ClearElrRecord(topic_name="")
    assert ELR not in one.image.features
    answer = update(one, ELR, 1, version=1)
    assert [(result.feature, result.error_code, result.error_message) for result in answer.results] == [(ELR, 0, None)]
    assert one.image.features[ELR] == 1


@pytest.mark.parametrize(
    ("name", "level", "kind"),
    [
        (ELR, 2, UPGRADE),
        (ELR, -1, UPGRADE),
        (ELR, 1, 9),
        ("unheard.of", 1, UPGRADE),
        ("metadata.version", 31, UPGRADE),
        ("metadata.version", 29, SAFE),
        ("metadata.version", 29, UNSAFE),
    ],
)
def test_levels_refused(cluster, name, level, kind):
    one = cluster(1)
    before = one.image.features
    answer = update(one, name, level, kind)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert name in answer.error_message
    assert one.image.features == before


def test_a_level_some_broker_cannot_run_is_refused(cluster):
    spans = {"metadata.version": FeatureRange(30, 30), "share.version": FeatureRange(0, 1)}
    one = cluster(1, supported_features=spans)
    answer = update(one, "share.version", 1)
    assert "Broker 1" in answer.error_message


def test_one_bad_update_refuses_all_of_them(cluster):
    one = cluster(1)
    changes = [
        FeatureUpdateKey(feature=ELR, max_version_level=0, upgrade_type=SAFE),
        FeatureUpdateKey(feature="unheard.of", max_version_level=1),
    ]
    request = UpdateFeaturesRequest(feature_updates=changes)
    assert one.commit(one.controller.update_features(request, 2)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert one.image.features[ELR] == 1


def test_an_update_can_be_tried_out(cluster):
    one = cluster(1)
    assert update(one, ELR, 0, SAFE, validate_only=True).error_code == 0
    assert one.image.features[ELR] == 1


def test_version_0_allows_downgrades_by_a_flag(cluster):
    one = cluster(1)
    change = FeatureUpdateKey(feature=ELR, max_version_level=0, allow_downgrade=True)
    one.commit(one.controller.update_features(UpdateFeaturesRequest(feature_updates=[change]), 0))
    assert ELR not in one.image.features


def test_producer_ids_come_in_blocks_and_never_twice(cluster):
    one = cluster(1)
    request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=one.epochs[1])
    blocks = [one.commit(one.controller.allocate_producer_ids(request)) for _ in range(3)]
    assert [(block.producer_id_start, block.producer_id_len) for block in blocks] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]


def test_producer_ids_are_given_to_registered_brokers_only(cluster):
    one = cluster(1)
    for broker_id, epoch in ((2, 0), (1, one.epochs[1] + 1)):
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
        answer = one.commit(one.controller.allocate_producer_ids(request))
        assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_producer_ids_end_somewhere(cluster):
    one = cluster(1)
    one.controller.replay([r.ProducerIdsRecord(next_producer_id=2**63 - 500)])
    request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=one.epochs[1])
    assert one.controller.allocate_producer_ids(request).response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_what_was_decided_is_all_there_is_to_know(cluster):
    three = cluster(3)
    three.create("orders", 3, 3, configs={"retention.ms": "5"})
    three.silence(2)
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all(three.log)
    assert delta.apply(three.next_offset - 1, 1) == three.image


# kraft.version, the quorum's own

KRAFT = "kraft.version"


def ask_for_kraft(one, level, kind=UPGRADE, *others, now=0, **fields):
    changes = [FeatureUpdateKey(feature=KRAFT, max_version_level=level, upgrade_type=kind), *others]
    request = UpdateFeaturesRequest(feature_updates=changes, **fields)
    return one.controller.update_features(request, 2, now)


def test_the_level_of_the_quorum_is_no_record_of_the_metadata(cluster):
    """A record that says nothing follows what the quorum writes: who has read it has read both."""
    one = cluster()
    decision = ask_for_kraft(one, 1)
    assert (decision.records, decision.response.error_code) == ((r.NoOpRecord(),), 0)
    assert ask_for_kraft(one, 1, validate_only=True).records == ()
    assert ask_for_kraft(one, 1, now=1).response.error_code == 0, "a repeated request"


@pytest.mark.parametrize("kind", [UPGRADE, SAFE, UNSAFE])
def test_the_level_of_the_quorum_never_goes_back(cluster, kind):
    answer = ask_for_kraft(cluster(), 0, kind, now=1).response
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_a_level_the_quorum_does_not_have_is_refused_with_everything_else(cluster):
    one = cluster()
    elr = FeatureUpdateKey(feature=ELR, max_version_level=0, upgrade_type=SAFE)
    decision = ask_for_kraft(one, 2, UPGRADE, elr)
    assert (decision.records, decision.response.error_code) == ((), ErrorCode.INVALID_UPDATE_VERSION)
    wrong = FeatureUpdateKey(feature=ELR, max_version_level=99, upgrade_type=UPGRADE)
    assert ask_for_kraft(one, 1, UPGRADE, wrong).response.error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_a_broker_that_does_not_know_the_level_is_named(cluster):
    answer = ask_for_kraft(cluster(1), 1).response
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "Broker 1" in answer.error_message
