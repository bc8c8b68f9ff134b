"""The only socket code: listeners, connections, turns of the loop.

Owns accepting, reading frames, keeping replies in request order, sending them (record bytes with sendfile), limits and
idle connections. Knows nothing of what a frame means: a `FrameHandler` does.
"""

from klamm.net.channel import Channel, FileRegion, FrameHandler, Slot
from klamm.net.poller import TurnLoop
from klamm.net.server import NetConfig, NetServer
from klamm.net.turn import Turn

__all__ = ["Channel", "FileRegion", "FrameHandler", "NetConfig", "NetServer", "Slot", "Turn", "TurnLoop"]
