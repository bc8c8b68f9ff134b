"""Which connection is closed when those that are not logged in have used up their memory."""

import random

from klamm.server.login.budget import LoginBudget


class Peer:
    """What the budget knows of a connection."""

    def __init__(self, address: str) -> None:
        self.peer_address = (address, 1)
        self.closed = False

    def close(self, reason: str) -> None:
        assert not self.closed
        self.closed = True


def add(budget: LoginBudget, address: str = "10.0.0.1") -> Peer:
    peer = Peer(address)
    budget.add(peer, 10, 60)
    return peer


def test_the_oldest_silent_one_is_closed():
    budget = LoginBudget(100)
    peers = [add(budget) for _ in range(12)]
    assert [peer.closed for peer in peers] == [True] * 2 + [False] * 10
    assert len(budget) == 10


def test_a_login_that_has_begun_outlives_silent_connections():
    budget = LoginBudget(100)
    slow = add(budget)
    budget.begin(slow)
    flood = [add(budget) for _ in range(1_000)]
    assert not slow.closed
    assert sum(not peer.closed for peer in flood) == 4


def test_one_address_does_not_close_the_connections_of_others():
    budget = LoginBudget(1_000)
    silent = add(budget, "10.0.0.2")
    begun = add(budget, "10.0.0.3")
    budget.begin(begun)
    for peer in [add(budget, "10.0.0.9") for _ in range(50)]:
        budget.begin(peer)
    assert not silent.closed
    assert not begun.closed


def test_one_large_login_is_never_closed_for_itself():
    budget = LoginBudget(30)
    peer = add(budget)
    budget.begin(peer)
    assert not peer.closed
    other = add(budget)
    assert peer.closed
    assert not other.closed


def test_what_is_reserved_is_returned():
    budget, chance, peers = LoginBudget(500), random.Random(3), []
    for _ in range(3_000):
        match chance.randrange(4):
            case 0 | 1:
                peers.append(add(budget, f"10.0.0.{chance.randrange(5)}"))
            case 2 if peers:
                budget.begin(chance.choice(peers))
            case 3 if peers:
                budget.remove(peers.pop(chance.randrange(len(peers))))
        assert budget._used <= 500
    for peer in peers:
        budget.remove(peer)
    assert (budget._used, len(budget)) == (0, 0)
    assert not budget._silent._by_address
    assert not budget._begun._by_address
