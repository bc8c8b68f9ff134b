"""Brokers of other days: transactions before version 2, and APIs that are not there."""

import pytest

from client.lying_broker import LyingBroker, api_versions
from harness import KlammProcess
from harness.client_stories import (
    an_older_producer_is_fenced,
    topic,
    transactions_are_seen_whole_or_not_at_all,
)
from klamm.client import Admin, Producer
from klamm.client.admin.types import UpgradeType
from klamm.client.errors import UnsupportedVersionError
from klamm.protocol.apis import BY_NAME


@pytest.fixture(scope="module")
def old_transactions(tmp_path_factory):
    with KlammProcess(tmp_path_factory.mktemp("klamm")) as node:
        with Admin(bootstrap_servers=node.bootstrap) as admin:
            admin.update_features({"transaction.version": 1}, upgrade=UpgradeType.SAFE_DOWNGRADE)
            assert admin.describe_features().finalized["transaction.version"] == 1
        yield node


@pytest.mark.parametrize("story", [transactions_are_seen_whole_or_not_at_all, an_older_producer_is_fenced])
def test_transactions_of_version_one(old_transactions, story):
    story(old_transactions.bootstrap)


def test_partitions_are_announced(old_transactions):
    name = topic(old_transactions.bootstrap, 3)
    with Producer(bootstrap_servers=old_transactions.bootstrap, transactional_id="announced") as producer:
        producer.init_transactions()
        epochs = []
        for _ in range(2):
            with producer.transaction():
                for partition in range(3):
                    producer.send(name, b"x", partition=partition)
            epochs.append(producer._inner._identity.epoch)
        assert not producer._inner.transactions.implicit
        assert epochs[0] == epochs[1]


def test_what_a_broker_does_not_speak_is_said():
    def few(_request, version):
        versions = api_versions(version)
        served = (BY_NAME["Metadata"].key, BY_NAME["ApiVersions"].key)
        versions.api_keys = [api for api in versions.api_keys if api.api_key in served]
        return versions

    with (
        LyingBroker({"ApiVersions": few}) as broker,
        Admin(bootstrap_servers=broker.bootstrap) as admin,
        pytest.raises(UnsupportedVersionError, match="DescribeAcls"),
    ):
        admin.describe_acls()
