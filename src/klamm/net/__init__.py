"""The only socket code: listeners, connections, turns of the loop.

Owns accepting, reading frames, keeping replies in request order, sending them (record bytes with sendfile), limits and
idle connections; and, outbound, `Peer`: a node asking another. What a request means is a `FrameHandler`'s business.
"""

from klamm.net.channel import Channel, FrameHandler, Slot
from klamm.net.file_region import FileRegion
from klamm.net.loop_turn import LoopTurn
from klamm.net.outbound import OutboundSecurity
from klamm.net.peer import Peer, PeerGone, Peers
from klamm.net.poller import TurnLoop
from klamm.net.server import NetConfig, NetServer

__all__ = [
    "Channel",
    "FileRegion",
    "FrameHandler",
    "LoopTurn",
    "NetConfig",
    "NetServer",
    "OutboundSecurity",
    "Peer",
    "PeerGone",
    "Peers",
    "Slot",
    "TurnLoop",
]
