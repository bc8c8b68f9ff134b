"""The messages of the group protocol: bytes of Confluent's registry and Karapace, and who is elected."""

import json

from klamm.registry.store.election import RegistryIdentity, decode_identity, decode_result, elect


def test_the_identity_has_confluents_bytes():
    identity = RegistryIdentity("a.example", 8081)
    assert identity.encode() == (
        b'{"version":1,"host":"a.example","port":8081,"master_eligibility":true,"scheme":"http","leader":false}'
    )
    assert decode_identity(identity.encode()) == identity
    assert RegistryIdentity("::1", 8081).url == "http://[::1]:8081"


def test_karapaces_identity_is_read():
    data = b'{"version":2,"karapace_version":"6.2","host":"k","port":8081,"scheme":"https","master_eligibility":false}'
    assert decode_identity(data) == RegistryIdentity("k", 8081, eligible=False, scheme="https")
    for damaged in (b"", b"{}", b"[]", b"\xff", b'{"host":"x","port":"y"}'):
        assert decode_identity(damaged) is None


def test_the_smallest_url_is_elected():
    members = {
        "m1": RegistryIdentity("b", 1),
        "m2": RegistryIdentity("a", 2),
        "m3": RegistryIdentity("a", 1, eligible=False),
    }
    assignments = elect({name: member.encode() for name, member in members.items()})
    assert set(assignments) == set(members)
    assert len(set(assignments.values())) == 1
    result = decode_result(assignments["m1"])
    assert (result.member_id, result.leader, result.error) == ("m2", members["m2"], None)
    assert json.loads(assignments["m1"])["master_identity"]["master_eligibility"] is True


def test_a_leader_stays_when_others_join():
    members = {"m1": RegistryIdentity("a", 1), "m2": RegistryIdentity("b", 1, leading=True)}
    result = decode_result(elect({name: member.encode() for name, member in members.items()})["m1"])
    assert result.member_id == "m2"
    both = {name: member._replace(leading=True).encode() for name, member in members.items()}
    assert decode_result(elect(both)["m1"]).member_id == "m1"


def test_elections_without_a_leader():
    same = {"m1": RegistryIdentity("a", 1).encode(), "m2": RegistryIdentity("a", 1).encode()}
    assert json.loads(elect(same)["m1"])["error"] == 1
    assert "same URL" in decode_result(elect(same)["m1"]).error
    none = {"m1": RegistryIdentity("a", 1, eligible=False).encode(), "m2": b"damaged"}
    assert decode_result(elect(none)["m2"]).error == "no member may lead"
    for damaged in (b"", b"[]", b"{", b'{"master":"x","master_identity":1}'):
        assert decode_result(damaged).leader is None


def test_karapaces_assignment_is_read():
    data = (
        b'{"master":"m","error":0,"version":2,"master_identity":'
        b'{"version":2,"host":"k","port":1,"scheme":"http","master_eligibility":true,"karapace_version":"6.2"}}'
    )
    assert decode_result(data).leader == RegistryIdentity("k", 1)
