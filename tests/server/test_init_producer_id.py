"""InitProducerId without a transactional id, and unknown kinds of coordinator."""

import pytest

from klamm.model.errors import ErrorCode


@pytest.mark.parametrize("version", range(6))
def test_every_answer_is_a_new_id(wire, version):
    replies = [wire.call("init_producer_id", version, transaction_timeout=1000) for _ in range(3)]
    assert {int(reply.error_code) for reply in replies} == {0}
    assert {reply.producer_epoch for reply in replies} == {0}
    assert len({reply.producer_id for reply in replies}) == 3


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_known_producer_gets_a_new_identity(wire, version):
    first = wire.call("init_producer_id", version)
    again = wire.call("init_producer_id", version, producer_id=first.producer_id, producer_epoch=first.producer_epoch)
    assert (again.error_code, again.producer_epoch) == (0, 0)
    assert again.producer_id != first.producer_id


@pytest.mark.parametrize(
    "fields", [{"transactional_id": ""}, {"producer_id": 5}, {"producer_epoch": 5}], ids=["no name", "id", "epoch"]
)
def test_half_an_identity_is_refused(wire, fields):
    assert wire.call("init_producer_id", 3, **fields).error_code == ErrorCode.INVALID_REQUEST


def test_kinds_of_coordinator_that_do_not_exist(wire):
    assert wire.call("find_coordinator", 3, key="g", key_type=9).error_code == ErrorCode.INVALID_REQUEST
