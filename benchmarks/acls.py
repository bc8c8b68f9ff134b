"""What a decision of the authorizer costs with 10,000 ACLs: microseconds, best of several rounds.

PYTHONPATH=src python benchmarks/acls.py
"""

import timeit
from functools import partial

from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.model.ids import Uuid
from klamm.security.core.acl import AccessControlEntry
from klamm.security.core.authorizer import StandardAuthorizer
from klamm.security.core.principal import Principal

ENTRIES = 10_000
TEAMS, USERS = 500, 300


def build_entries():
    """A third of the entries are prefixes of twenty lengths, the others name topics."""
    entries = {}
    for number in range(ENTRIES):
        team = f"team{number % TEAMS}."
        prefixed = number % 3 == 0
        entries[Uuid(number.to_bytes(16))] = AccessControlEntry(
            AclResourceType.TOPIC,
            team + "x" * (number % 20) if prefixed else f"{team}topic{number}",
            PatternType.PREFIXED if prefixed else PatternType.LITERAL,
            f"User:u{number % USERS}",
            "*",
            AclOperation.READ,
            AclPermission.ALLOW,
        )
    return entries


def best(run, number):
    """Microseconds of one call: the fastest of seven rounds."""
    return min(timeit.repeat(run, number=number, repeat=7)) / number * 1e6


def measure():
    """Microseconds of a decision that is made, and of one that is remembered."""
    authorizer = StandardAuthorizer()
    authorizer.update(build_entries())
    arguments = (Principal("User", "u1"), "127.0.0.1", AclOperation.READ, AclResourceType.TOPIC, "team1.topic1")
    return {
        "first": best(partial(authorizer.decide, *arguments), 5_000),
        "remembered": best(partial(authorizer.authorize, *arguments), 100_000),
    }


def main():
    print(f"{ENTRIES} ACLs")
    for kind, microseconds in measure().items():
        print(f"  {kind + ' decision':20} {microseconds:8.2f} us")


if __name__ == "__main__":
    main()
