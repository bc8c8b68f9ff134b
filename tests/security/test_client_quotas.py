"""Quotas of clients: who shares a window, what changes of quotas keep, and the charge of changes of the cluster."""

import math

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.security.core.client_quotas import ClientQuotas, MutationCharge, MutationQuota
from klamm.security.core.quota_windows import THROTTLE_MS_MAX, TokenBucket, WindowConfig

USER, CLIENT = (("user", "anna"),), (("client-id", "app"),)
DEFAULT_CLIENT = (("client-id", None),)
PRODUCE, FETCH, MUTATIONS = "producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate"


@pytest.fixture
def quotas():
    return ClientQuotas(WindowConfig())


def test_a_client_without_a_quota_has_no_limits(quotas):
    assert not quotas.active
    quotas.set_quotas({USER: {PRODUCE: 10.0}})
    assert quotas.active
    assert quotas.find("berta", "app", 0) is None


def test_limits_are_found_by_key(quotas):
    quotas.set_quotas({USER: {PRODUCE: 10.0}, CLIENT: {FETCH: 20.0, MUTATIONS: 2.0}})
    limits = quotas.find("anna", "app", 0)
    assert (limits.produce.limit, limits.fetch.limit, limits.mutations.limit) == (10.0, 20.0, 2.0)
    assert limits.request is None


def test_all_client_ids_of_a_user_share_its_window(quotas):
    quotas.set_quotas({USER: {PRODUCE: 10.0}})
    quotas.find("anna", "one", 0).produce.record(100, 0)
    assert quotas.find("anna", "two", 0).produce.record(10, 0) == 1_000


def test_a_default_gives_every_client_id_a_window_of_its_own(quotas):
    quotas.set_quotas({DEFAULT_CLIENT: {PRODUCE: 10.0}})
    quotas.find("anna", "one", 0).produce.record(200, 0)
    assert quotas.find("anna", "two", 0).produce.record(100, 0) == 0
    assert quotas.find("berta", "one", 0).produce.record(1, 0) > 0


def test_a_changed_limit_keeps_what_was_used(quotas):
    quotas.set_quotas({USER: {PRODUCE: 100.0}})
    assert quotas.find("anna", "app", 0).produce.record(1_000, 0) == 0
    quotas.set_quotas({USER: {PRODUCE: 50.0}})
    assert quotas.find("anna", "app", 0).produce.record(0, 0) == 10_000
    quotas.set_quotas({})
    assert quotas.find("anna", "app", 0) is None


def test_windows_of_clients_that_have_gone_are_forgotten(quotas):
    quotas.set_quotas({DEFAULT_CLIENT: {PRODUCE: 10.0, MUTATIONS: 1.0}})
    most = 0
    for number in range(5_000):
        now_ms = number * 100
        quotas.find("anna", f"client-{number}", now_ms).produce.record(1, now_ms)
        most = max(most, len(quotas._windows))
    assert most <= 250


def test_a_window_in_use_is_never_forgotten(quotas):
    quotas.set_quotas({DEFAULT_CLIENT: {PRODUCE: 10.0, FETCH: 10.0}})
    window = quotas.find("anna", "busy", 0).produce.window
    for number in range(1_000):
        now_ms = number * 100
        limits = quotas.find("anna", "busy", now_ms)
        limits.produce.record(1, now_ms)
        assert limits.produce.window is window
        quotas.find("anna", f"client-{number}", now_ms)


def test_one_fetch_returns_at_most_what_a_window_allows(quotas):
    quotas.set_quotas({USER: {FETCH: 500.0}})
    assert quotas.fetch_bytes_max(quotas.find("anna", "app", 0).fetch) == 5_000


def test_the_connection_rate_of_an_address(quotas):
    rate = "connection_creation_rate"
    quotas.set_quotas({(("ip", "10.0.0.1"),): {rate: 5.0}})
    assert not quotas.active, "a quota of an address does not slow down requests"
    assert quotas.connection_creation_rate("10.0.0.1") == 5.0
    assert quotas.connection_creation_rate("10.0.0.2") is None
    quotas.set_quotas({(("ip", "10.0.0.1"),): {rate: 5.0}, (("ip", None),): {rate: 7.0}})
    assert quotas.connection_creation_rate("10.0.0.2") == 7.0


def test_an_address_gets_its_rate_of_connections_however_often_it_tries(quotas):
    quotas.set_quotas({(("ip", None),): {"connection_creation_rate": 2.0}})
    accepted = 0
    for now_ms in range(0, 66_000, 10):
        delay_ms = quotas.record_connection("10.0.0.1", now_ms)
        assert 0 <= delay_ms <= 1_000
        accepted += not delay_ms
    assert accepted == pytest.approx(2 * 66, rel=0.05)
    assert quotas.record_connection("10.0.0.2", 66_000) == 0, "a default gives every address a rate of its own"


def test_changes_beyond_the_quota_are_refused_once_the_bucket_is_below_zero():
    quota = MutationQuota(2.0, TokenBucket(WindowConfig()))
    charge = MutationCharge(quota, 0, strict=True)
    charge.charge(30)
    assert charge.throttle_ms == 0, "the request that empties the bucket is carried out and does not wait"
    with pytest.raises(KlammError) as refusal:
        charge.charge(1)
    assert refusal.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert charge.throttle_ms == 4_000
    MutationCharge(quota, 4_000, strict=True).charge(1)


def test_changes_of_older_versions_are_carried_out_and_wait():
    charge = MutationCharge(MutationQuota(2.0, TokenBucket(WindowConfig())), 0, strict=False)
    charge.charge(30)
    charge.charge(2)
    assert charge.throttle_ms == 5_000


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
def test_limits_that_no_request_can_set_are_ignored(quotas, limit):
    """A metadata log that another program has written may hold them; Produce must not fail for the client."""
    quotas.set_quotas({USER: {PRODUCE: limit, FETCH: 1e308}, (): {PRODUCE: 1.0}})
    limits = quotas.find("anna", "app", 0)
    assert limits.produce is None
    assert quotas.fetch_bytes_max(limits.fetch) == 2**31 - 1


def test_a_limit_near_zero_throttles_for_as_long_as_there_is(quotas):
    quotas.set_quotas({USER: {"request_percentage": 5e-324, MUTATIONS: 5e-324}})
    limits = quotas.find("anna", "app", 0)
    assert limits.request.record(50, 0) == THROTTLE_MS_MAX
    limits.mutations.bucket.take(1, limits.mutations.limit, 0)
    assert limits.mutations.bucket.throttle_ms(limits.mutations.limit, 0) == THROTTLE_MS_MAX


def test_long_client_ids_keep_their_own_windows_in_little_memory(quotas):
    """A client id may have 32 KB, and every request may have another one."""
    quotas.set_quotas({DEFAULT_CLIENT: {PRODUCE: 10.0, MUTATIONS: 1.0}})
    first, second = "x" * 30_000 + "1", "x" * 30_000 + "2"
    assert quotas.find("anna", first, 0).produce.record(200, 0) > 0
    assert quotas.find("anna", first, 0).produce.record(1, 0) > 0
    assert quotas.find("anna", second, 0).produce.record(50, 0) == 0
    names = [name for key in (*quotas._windows, *quotas._buckets, *quotas._limits) for name in key]
    assert max(map(len, names)) < 400


def test_a_quota_of_a_long_client_id_applies_to_it(quotas):
    name = "x" * 30_000
    quotas.set_quotas({(("client-id", name),): {PRODUCE: 10.0}})
    assert quotas.find("anna", name, 0).produce.limit == 10.0
    assert quotas.find("anna", name + "y", 0) is None
