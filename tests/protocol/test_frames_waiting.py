"""How many requests wait in a receive buffer, without taking them."""

import os
import random
import struct

from klamm.protocol.framing import BorrowedFrames

SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))


def receive(frames: BorrowedFrames, data: bytes) -> None:
    frames.free_space()[: len(data)] = data
    frames.add(len(data))


def test_as_many_frames_are_counted_as_can_be_taken():
    print(f"KLAMM_SEED={SEED}")
    generator = random.Random(SEED)
    for _ in range(200):
        frames = BorrowedFrames(8, 500)
        # At times a size that no frame can have, which ends the stream.
        sizes = [
            generator.choice((8, 20, 500, generator.choice((8, 7, 501, -1)))) for _ in range(generator.randrange(12))
        ]
        stream = b"".join(struct.pack(">i", size) + b"x" * max(size, 0) for size in sizes)
        receive(frames, stream[: generator.randrange(len(stream) + 1)])
        counted = frames.count_frames()
        assert counted == len(frames.take_frames()), sizes


def test_frames_that_were_put_back_are_counted():
    frames = BorrowedFrames(1, 100)
    receive(frames, (struct.pack(">i", 10) + b"x" * 10) * 3)
    taken = frames.take_frames()
    assert frames.count_frames() == 0
    frames.put_back(taken[0][1])
    assert frames.count_frames() == 2
