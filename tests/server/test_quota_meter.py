"""Meters of requests with a manual clock: how much clients get through in a minute, and what is reported to them."""

from types import SimpleNamespace

import pytest

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE
from klamm.model.clock import ManualClock
from klamm.protocol.codec import encode
from klamm.protocol.messages.create_topics import CreateTopicsResponse
from klamm.protocol.messages.heartbeat import HeartbeatResponse
from klamm.protocol.messages.join_group import JoinGroupResponse
from klamm.protocol.messages.metadata_records import ClientQuotaRecord, EntityData
from klamm.security.core.principal import Principal
from klamm.security.core.quota_windows import WindowConfig
from klamm.server.handlers.groups.rebalance_replies import JOIN_FLEXIBLE_SINCE, encode_join_reply
from klamm.server.requests.access.quotas import BrokerQuotas, run_metered
from klamm.server.requests.deferred_reply import DeferredReply

WINDOW_MS = 11_000
WARM_UP_MS = 2 * WINDOW_MS
"""A client that was quiet may use the quota of a window at once."""
MEASURED_MS = 6 * WINDOW_MS
"""A minute in whole windows: as in Kafka, a client that always sends uses up the quota of a window at its beginning."""
PRODUCE, FETCH, JOIN_GROUP = 0, 1, 11


class Channel:
    """A connection that is muted by the manual clock."""

    def __init__(self, clock):
        self._clock = clock
        self.principal = Principal("User", "anna")
        self.muted_until_ms = 0
        self.state = None

    def mute(self, throttle_ms):
        self.muted_until_ms = max(self.muted_until_ms, self._clock.monotonic_ms() + throttle_ms)


class Broker:
    """Quotas of one user, on a manual clock that handlers also spend their CPU time by."""

    def __init__(self, **limits):
        self.clock = ManualClock(1_000_000)
        self.cpu_ns = 0
        self.throttle_ip = None
        self.quotas = BrokerQuotas(WindowConfig(), self.clock, self, self.read_cpu_ns)
        delta = MetadataDelta(EMPTY_IMAGE)
        user = [EntityData(entity_type="user", entity_name="anna")]
        delta.replay_all([ClientQuotaRecord(entity=user, key=key, value=float(value)) for key, value in limits.items()])
        self.quotas.on_metadata_update(delta, delta.apply(1, 1))

    def read_cpu_ns(self):
        return self.cpu_ns

    def channels(self):
        return ()

    def connect(self):
        return Channel(self.clock)

    def open_meter(self, channel, api_key=PRODUCE, version=9):
        context = SimpleNamespace(
            api_key=api_key, version=version, principal=channel.principal, client_id="app", channel=channel
        )
        meter = self.quotas.open_meter(context)
        meter.resume()
        return meter


def measure_rate(broker, connections, send):
    """Return what connections that always have something to send get through per second, in a minute."""
    channels = [broker.connect() for _ in range(connections)]
    start_ms = broker.clock.monotonic_ms()
    sent = 0
    while (elapsed_ms := broker.clock.monotonic_ms() - start_ms) < WARM_UP_MS + MEASURED_MS:
        for channel in channels:
            if channel.muted_until_ms <= broker.clock.monotonic_ms():
                size = send(broker, channel)
                sent += size if elapsed_ms >= WARM_UP_MS else 0
        broker.clock.advance(1)
    return sent * 1000 / MEASURED_MS


@pytest.mark.parametrize(("connections", "size"), [(1, 2_000), (1, 50_000), (4, 2_000), (4, 10_000)])
def test_a_producer_gets_its_quota_in_a_minute(connections, size):
    def produce(broker, channel):
        meter = broker.open_meter(channel)
        meter.record_produced(size, has_response=True)
        meter.pause()
        return size

    rate = measure_rate(Broker(producer_byte_rate=200_000), connections, produce)
    assert rate == pytest.approx(200_000, rel=0.05)


@pytest.mark.parametrize("connections", [1, 4])
def test_a_consumer_gets_its_quota_in_a_minute(connections):
    def fetch(broker, channel):
        meter = broker.open_meter(channel, FETCH, 12)
        is_empty = meter.record_fetched(60_000)
        meter.pause()
        return 0 if is_empty else 60_000

    rate = measure_rate(Broker(consumer_byte_rate=200_000), connections, fetch)
    assert rate == pytest.approx(200_000, rel=0.05)


def test_a_client_gets_its_share_of_time_in_a_minute():
    def request(broker, channel):
        meter = broker.open_meter(channel, 3, 12)
        broker.cpu_ns += 2_000_000
        meter.finish(HeartbeatResponse())
        meter.pause()
        return 2_000_000

    rate = measure_rate(Broker(request_percentage=10), 1, request)
    assert rate == pytest.approx(100_000_000, rel=0.05)


def test_the_largest_throttle_time_for_requests_is_one_window():
    broker = Broker(request_percentage=1)
    channel = broker.connect()
    meter = broker.open_meter(channel, 3, 12)
    broker.cpu_ns += 5_000_000_000
    response = meter.finish(HeartbeatResponse())
    assert response.throttle_time_ms == 1_000
    assert channel.muted_until_ms == broker.clock.monotonic_ms() + 1_000


def test_a_response_to_several_members_is_not_changed_for_one_of_them():
    broker = Broker(request_percentage=1)
    meter = broker.open_meter(broker.connect(), 12, 4)
    broker.cpu_ns += 5_000_000_000
    shared = HeartbeatResponse()
    assert meter.finish(shared).throttle_time_ms == 1_000
    assert shared.throttle_time_ms == 0


def test_the_time_after_the_response_is_counted():
    broker = Broker(request_percentage=100)
    channel = broker.connect()
    meter = broker.open_meter(channel, 3, 12)
    meter.finish(HeartbeatResponse())
    broker.cpu_ns += 50_000_000_000
    meter.pause()
    later = broker.open_meter(channel, 3, 12)
    response = later.finish(HeartbeatResponse())
    assert response.throttle_time_ms == 1_000


def test_the_steps_of_a_coroutine_are_counted_and_not_its_waits():
    broker = Broker(request_percentage=100)
    meter = broker.open_meter(broker.connect(), 3, 12)
    meter.pause()

    class Wait:
        def __await__(self):
            yield "waiting"

    async def handle():
        broker.cpu_ns += 1_000
        await Wait()
        broker.cpu_ns += 10
        return "done"

    work = run_metered(handle(), meter)
    assert work.send(None) == "waiting"
    broker.cpu_ns += 1_000_000_000
    with pytest.raises(StopIteration) as end:
        work.send(None)
    assert (end.value.value, meter._busy_ns) == ("done", 1_010)


def test_the_longest_time_to_wait_is_reported():
    broker = Broker(producer_byte_rate=100, request_percentage=1)
    meter = broker.open_meter(broker.connect())
    broker.cpu_ns += 5_000_000_000
    meter.record_produced(2_000, has_response=True)
    response = meter.finish(HeartbeatResponse())
    assert response.throttle_time_ms == 10_000


def test_the_time_that_the_controller_decides_mutes_the_connection():
    broker = Broker(controller_mutation_rate=1)
    channel = broker.connect()
    meter = broker.open_meter(channel, 19, 7)
    response = meter.finish(CreateTopicsResponse(throttle_time_ms=7_000))
    assert (response.throttle_time_ms, channel.muted_until_ms) == (7_000, broker.clock.monotonic_ms() + 7_000)


def test_a_throttle_time_fits_into_its_field():
    broker = Broker(producer_byte_rate=1)
    meter = broker.open_meter(broker.connect())
    meter.record_produced(100_000_000, has_response=True)
    assert meter.throttle_ms == 2**31 - 1


def test_a_batch_larger_than_a_window_is_sent_alone():
    broker = Broker(consumer_byte_rate=1_000)
    channel = broker.connect()
    sent = 0
    for _ in range(60_000):
        if channel.muted_until_ms <= broker.clock.monotonic_ms():
            sent += not broker.open_meter(channel, FETCH, 12).record_fetched(50_000)
        broker.clock.advance(1)
    assert sent == 2, "50 s of the quota, a minute long"


def test_requests_of_brokers_are_not_measured():
    broker = Broker(request_percentage=1)
    channel = broker.connect()
    for api_key, version in ((27, 1), (24, 4)):
        context = SimpleNamespace(
            api_key=api_key, version=version, principal=channel.principal, client_id="", channel=channel
        )
        assert broker.quotas.open_meter(context) is None


class Slot:
    def send(self, parts):
        (self.frame,) = parts


@pytest.mark.parametrize("version", range(10))
def test_an_encoded_reply_gets_the_throttle_time(version):
    broker = Broker(request_percentage=1)
    channel, slot = broker.connect(), Slot()
    channel.defer = lambda: slot
    meter = broker.open_meter(channel, JOIN_GROUP, version)
    broker.cpu_ns += 5_000_000_000
    context = SimpleNamespace(api_key=JOIN_GROUP, version=version, channel=channel, meter=meter, frame=None)
    response = JoinGroupResponse(generation_id=7, protocol_type="consumer", protocol_name="range", leader="a")
    response.member_id = "b"
    DeferredReply(context, None).send(encode_join_reply(1, version, response))
    response.throttle_time_ms = 1_000
    flexible = version >= JOIN_FLEXIBLE_SINCE
    assert slot.frame[8:] == (b"\0" if flexible else b"") + encode(response, version)
