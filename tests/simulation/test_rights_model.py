"""The model of rights that decisions of nodes are compared with, and the comparison itself."""

import itertools
import random

from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.model.ids import Uuid
from klamm.security.core.acl import AccessControlEntry
from klamm.security.core.authorizer import StandardAuthorizer
from klamm.security.core.principal import Principal
from simulation.rights import OPERATIONS, VAULT, AppliedMetadata, RightsModel, TopicAcl, allows

READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL
ALLOW_WRITE = TopicAcl(VAULT, False, "User:guest-0", "*", WRITE, False)


def test_denials_come_first_and_imply_nothing():
    assert allows([ALLOW_WRITE], "guest-0", "h", DESCRIBE, VAULT)
    denied = ALLOW_WRITE._replace(denies=True, principal="User:*", prefixed=True, name="va")
    assert not allows([ALLOW_WRITE, denied], "guest-0", "h", WRITE, VAULT)
    assert allows([ALLOW_WRITE, denied], "guest-0", "h", DESCRIBE, VAULT)
    assert not allows([ALLOW_WRITE], "guest-1", "h", WRITE, VAULT)
    assert not allows([ALLOW_WRITE._replace(host="other")], "guest-0", "h", WRITE, VAULT)


def test_the_model_and_the_authorizer_agree():
    chance = random.Random(17)
    parts = [
        ((VAULT, False), ("va", True), ("vault-", True), ("*", False), ("*", True)),
        ("User:guest-0", "User:guest-1", "User:*", "Group:guest-0"),
        ("*", "guest-0", "10.9.9.9"),
        (*OPERATIONS, ALL, AclOperation.CREATE),
        (False, True),
    ]
    every = [TopicAcl(*name, *rest) for name, *rest in itertools.product(*parts)]
    for _ in range(300):
        entries = chance.sample(every, chance.randint(0, 6))
        authorizer = StandardAuthorizer()
        authorizer.update({Uuid(bytes([i]) * 16): _stored(entry) for i, entry in enumerate(entries)})
        for user, operation in itertools.product(("guest-0", "guest-1"), OPERATIONS):
            verdict = authorizer.authorize(Principal("User", user), user, operation, AclResourceType.TOPIC, VAULT)
            assert verdict.allowed is allows(entries, user, user, operation, VAULT), entries


def _stored(entry):
    return AccessControlEntry(
        AclResourceType.TOPIC,
        entry.name,
        PatternType.PREFIXED if entry.prefixed else PatternType.LITERAL,
        entry.principal,
        entry.host,
        entry.operation,
        AclPermission.DENY if entry.denies else AclPermission.ALLOW,
    )


class TestComparison:
    def make(self):
        violations = []
        model = RightsModel(violations.append)
        model._acls.append((10, frozenset({ALLOW_WRITE})))
        model._acls.append((20, frozenset()))
        return model, violations

    def test_a_decision_must_be_that_of_a_state_between_sending_and_answer(self):
        model, violations = self.make()
        process = object()
        for before, after, allowed in ((5, 9, False), (5, 12, True), (5, 12, False), (12, 15, True), (12, 25, False)):
            model.check_decision(
                AppliedMetadata(process, before), AppliedMetadata(process, after), "guest-0", WRITE, allowed=allowed
            )
        assert not violations
        model.check_decision(
            AppliedMetadata(process, 12), AppliedMetadata(process, 19), "guest-0", WRITE, allowed=False
        )
        model.check_decision(AppliedMetadata(process, 21), AppliedMetadata(process, 22), "guest-0", WRITE, allowed=True)
        assert [violation[:2] for violation in violations] == ["22", "22"]

    def test_a_process_that_was_replaced_is_not_judged(self):
        model, violations = self.make()
        model.check_decision(AppliedMetadata(object(), 5), AppliedMetadata(object(), 6), "guest-0", WRITE, allowed=True)
        assert not violations

    def test_a_login_must_be_that_of_the_credential(self):
        model, violations = self.make()
        model.passwords["guest-0", "one"] = {b"k1"}
        model._keys["guest-0"] += [(10, b"k1"), (20, b"k2")]
        process = object()

        def judge(offset, password, accepted):
            at = AppliedMetadata(process, offset)
            model.check_login(at, at, "guest-0", password, accepted=accepted)

        judge(5, "one", False)
        judge(12, "one", True)
        judge(20, "one", False)
        judge(12, "wrong", False)
        assert not violations
        judge(12, "wrong", True)
        judge(20, "one", True)
        judge(12, "one", False)
        assert len(violations) == 3
