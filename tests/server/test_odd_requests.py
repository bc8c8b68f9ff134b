"""Requests that few clients send, with the answers Apache Kafka 4.3.1 gives to a raw client.

`compat/test_odd_requests_beside.py` asks both brokers; here the answers are written down, so that every change is
judged without a JVM. No older test sent any of these: client libraries never do, and the tests were written beside
the handlers.
"""

import itertools

import pytest

from harness.odd_requests import PROBES

NOT_ASKED, ON_TOPIC, ON_GROUP, ON_CLUSTER = -(2**31), 3576, 3400, 8096
UNKNOWN_TOPIC, UNKNOWN_ID, INCONSISTENT_ID, INVALID_REQUEST, SECURITY_DISABLED, INVALID_CONFIG = 3, 100, 103, 42, 54, 40


def read(name, code=0, partition=0):
    """One partition of a Fetch answer: its one record can be read, or an error says why not."""
    return (name, partition, code, -1 if code else 1)


def test_settings(wire):
    assert PROBES["removed_min_isr"](wire) == (INVALID_CONFIG, INVALID_CONFIG, INVALID_CONFIG, True)
    assert PROBES["padded_number"](wire) == [0, 0, True, "3600000", 0, True]
    assert PROBES["long_value"](wire) == (0, INVALID_CONFIG)


def test_metadata_by_id_before_ids_could_be_asked_for(wire):
    answers = PROBES["metadata_by_id_and_name"](wire)
    for version, requested, topics, brokers, without_cluster in answers:
        [(code, name, _)] = topics
        old = version < 12
        assert (code, name) == ((INVALID_REQUEST, requested or "") if old else (UNKNOWN_ID, None))
        assert (brokers, without_cluster) == ((0, True) if old else (1, False))


def test_a_protocol_named_twice_counts_once(wire):
    assert PROBES["protocol_named_twice"](wire) == [(0, 1), (0, 1)]


def test_a_retention_beyond_the_last_moment(wire):
    *answers, committed = PROBES["far_retention"](wire)
    assert {code for _, _, code in answers} == {0}
    assert (len(answers), committed) == (24, 5)


def test_coordinators_there_are_none_of(wire):
    answers = PROBES["share_coordinator"](wire)
    assert len(answers) == 28
    assert all(code in (INVALID_REQUEST, [INVALID_REQUEST]) for *_, code in answers)


def test_access_rules_without_an_authorizer(wire):
    answer = (SECURITY_DISABLED, "No Authorizer is configured.")
    assert PROBES["acls"](wire) == list(
        itertools.chain.from_iterable(
            [
                (version, SECURITY_DISABLED, "No Authorizer is configured on the broker", 0),
                [answer, answer],
                [(*answer, 0)],
            ]
            for version in (1, 2, 3)
        )
    )


def test_authorized_operations_are_told_to_those_who_ask(wire):
    for what, *rest in PROBES["authorized_operations"](wire):
        if what == "describe_topic_partitions":
            assert rest == [[ON_TOPIC]]
            continue
        version, requested, *answer = rest
        if what == "metadata":
            cluster, topics = answer
            assert cluster == (None if version > 10 else ON_CLUSTER if requested else NOT_ASKED)
            expected = ON_TOPIC if requested else NOT_ASKED
            assert topics == [(0, expected), (UNKNOWN_TOPIC, expected)]
        elif what == "describe_cluster":
            assert answer == [ON_CLUSTER if requested else NOT_ASKED]
        else:
            known = (0, ON_GROUP if requested else NOT_ASKED)
            unknown = known if what == "describe_groups" and version < 6 else (69, NOT_ASKED)
            assert answer == [[known, unknown]]


def test_static_voters_have_no_directory_ids(wire):
    """Older tests looked at the leader alone, where the id of its own folder seemed natural."""
    assert PROBES["static_voters"](wire) == [(1, True)]


def test_sasl_where_none_is_needed(wire):
    """Older tests compared the list of APIs with the routes it is made from; tools guess the version from the list."""
    refused = (34, "SaslAuthenticate request received after successful authentication", b"")
    assert PROBES["sasl_on_plaintext"](wire) == [
        (0, 1),
        (0, 2),
        *((version, 34, []) for version in (0, 1)),
        *((version, *refused) for version in (0, 1, 2)),
    ]


@pytest.mark.parametrize("version", [12, 13, 17])
def test_a_session_over_topics_that_go_and_come(wire, version):
    kept = read("kept")
    gone = [(0, [read("gone", UNKNOWN_TOPIC), kept])] * 2
    assert PROBES[f"deleted_inside_a_session_v{version}"](wire) == [(0, [read("gone"), kept]), *gone]
    missing = UNKNOWN_TOPIC if version == 12 else UNKNOWN_ID
    unknown = (0, [kept, read("kept", UNKNOWN_TOPIC, 7), read("unknown", missing)])
    assert PROBES[f"unknown_from_the_start_v{version}"](wire) == [unknown] * 3
    again = PROBES[f"made_anew_inside_a_session_v{version}"](wire)
    if version == 12:
        assert again == [(0, [read("again"), kept])] * 5
    else:
        old = read("old", INCONSISTENT_ID)
        both = (0, [kept, read("new"), old])
        assert again == [(0, [kept, read("old")]), (0, [kept, old]), (0, [kept, old]), both, both]


def test_a_name_that_comes_to_be_inside_a_session(wire):
    kept, late = read("kept"), read("late")
    first, *others = PROBES["unknown_that_comes_to_be_v12"](wire)
    assert first == (0, [kept, read("late", UNKNOWN_TOPIC)])
    assert others == [(0, [kept, late])] * 2


@pytest.mark.parametrize("version", [12, 13])
def test_a_session_speaks_names_or_ids(wire, version):
    assert PROBES[f"names_and_ids_mixed_v{version}"](wire) == ((0, [read("topic")]), (106, []))
