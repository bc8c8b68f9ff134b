"""The framer alone: any pieces, any sizes, any pauses; what comes out is what went in.

The tests of a whole connection could not see a read into an empty view: whether a connection is paused exactly
where the buffer ends depends on how fast its peer takes the responses.
"""

import random
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from klamm.client.core.buffer_pool import BufferPool
from klamm.model.errors import RemoteProtocolError
from klamm.protocol.framing import (
    BUFFER_BUSY_BYTES,
    BUFFER_BYTES,
    LARGE_BYTES,
    PREFIX_BYTES,
    BorrowedFrames,
    OwnedFrames,
    encode_frame,
)

SIZES = st.one_of(
    st.integers(8, 300),
    st.integers(8, 400_000),
    st.sampled_from(
        [
            size - edge
            for size in (BUFFER_BYTES, 2 * BUFFER_BYTES, LARGE_BYTES, BUFFER_BUSY_BYTES, 2 * BUFFER_BUSY_BYTES)
            for edge in (8, 5, 4, 3, 1, 0, -1, -4)
        ]
    ),
)
CHUNKS = st.lists(st.one_of(st.integers(1, 9), st.integers(1, 70_000), st.just(1 << 20)), min_size=1, max_size=20)
PAUSES = st.lists(st.integers(0, 5), min_size=1, max_size=20)
"""How many frames are handled before the owner pauses; 0 for no pause."""


def frame_of(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def piece(chunks: list[int], turn: int) -> int:
    """How much comes next; a long stream in pieces of one byte would take minutes."""
    return max(chunks[turn % len(chunks)], 1 if turn < 300 else 50_000)


def run(bodies: list[bytes], chunks: list[int], pauses: list[int]) -> BorrowedFrames:
    """Feed the frames in pieces; take them as a connection does that pauses after some frames and goes on later."""
    buffer = BorrowedFrames(8, 1 << 24)
    stream = memoryview(b"".join(map(frame_of, bodies)))
    frames: list[bytes] = []
    borrowed: list[tuple[memoryview, bytes]] = []
    turn = 0
    while stream:
        space = buffer.free_space()
        assert len(space) > 0, "a read into nothing"
        count = min(len(space), piece(chunks, turn), len(stream))
        space[:count] = stream[:count]
        stream = stream[count:]
        buffer.add(count)
        borrowed.clear()
        while True:
            until_pause = pauses[turn % len(pauses)]
            turn += 1
            paused = False
            for start, end in buffer.take_frames():
                view = buffer.view[start:end]
                frames.append(bytes(view))
                borrowed.append((view, frames[-1]))
                until_pause -= 1
                if until_pause == 0:
                    buffer.put_back(end)
                    paused = True
                    break
            if not paused or not buffer.pending:
                break  # a pause at the end of the last frame: the next step is a read, no frame is searched for in vain
        assert all(view == copy for view, copy in borrowed), "a borrowed frame was overwritten"
        assert not buffer.problem
        assert buffer.pending + 4 * len(frames) + sum(map(len, frames)) + len(stream) == sum(4 + len(b) for b in bodies)
    assert frames == bodies
    assert buffer.pending == 0
    assert len(buffer.free_space()) > 0
    return buffer


@settings(max_examples=60)
@given(sizes=st.lists(SIZES, min_size=1, max_size=12), chunks=CHUNKS, pauses=PAUSES, seed=st.integers(0, 2**32))
@example(sizes=[300_000, 300_000, 9], chunks=[1 << 20], pauses=[1], seed=0)
@example(sizes=[BUFFER_BYTES - 4, 8], chunks=[1 << 20], pauses=[1], seed=0)
def test_bytes_out_are_bytes_in(sizes, chunks, pauses, seed):
    source = random.Random(seed)
    run([source.randbytes(size) for size in sizes], chunks, pauses)


@settings(max_examples=40)
@given(sizes=st.lists(SIZES, min_size=1, max_size=8), chunks=CHUNKS, keeps=st.lists(st.booleans(), min_size=1))
def test_reading_on_beside_frames_that_were_not_taken_is_safe(sizes, chunks, keeps):
    """No owner reads on while it is paused; one that does loses nothing and never reads into nothing."""
    source = random.Random(5)
    bodies = [source.randbytes(size) for size in sizes]
    buffer = BorrowedFrames(8, 1 << 24)
    stream = memoryview(b"".join(map(frame_of, bodies)))
    frames = []
    turn = 0
    while stream:
        space = buffer.free_space()
        count = min(len(space), piece(chunks, turn), len(stream))
        assert count > 0
        space[:count] = stream[:count]
        stream = stream[count:]
        buffer.add(count)
        keep = keeps[turn % len(keeps)]
        turn += 1
        if not (keep and stream):
            frames += [bytes(buffer.view[start:end]) for start, end in buffer.take_frames()]
    assert frames == bodies


@settings(max_examples=40)
@given(chunks=CHUNKS, declared=st.integers(1 << 20, (1 << 24)))
def test_memory_follows_the_bytes_that_came(chunks, declared):
    buffer = BorrowedFrames(8, 1 << 24)
    buffer.free_space()[:4] = struct.pack(">i", declared)
    buffer.add(4)
    came = 4
    for chunk in chunks:
        assert buffer.take_frames() == []
        assert buffer.lacking == 4 + declared - came
        space = buffer.free_space()
        count = min(len(space), chunk, buffer.lacking)
        assert count > 0
        buffer.add(count)
        came += count
        if came == 4 + declared:
            break
        assert len(buffer.view) <= max(4 * came, BUFFER_BUSY_BYTES)


@pytest.mark.parametrize("size", [-1, 0, 7, 1001, 2**31 - 1])
def test_a_size_that_cannot_be_is_refused(size):
    buffer = BorrowedFrames(8, 1000)
    buffer.free_space()[:4] = struct.pack(">i", size)
    buffer.add(4)
    assert buffer.take_frames() == []
    assert str(size) in buffer.problem
    assert len(buffer.free_space()) > 0


def test_frames_before_a_size_that_cannot_be_are_whole():
    buffer = BorrowedFrames(8, 1000)
    data = frame_of(b"good one") + frame_of(b"good two") + struct.pack(">i", -5)
    buffer.free_space()[: len(data)] = data
    buffer.add(len(data))
    frames = buffer.take_frames()
    assert [bytes(buffer.view[start:end]) for start, end in frames] == [b"good one", b"good two"]
    assert "-5" in buffer.problem
    buffer.put_back(frames[0][1])
    assert not buffer.problem
    assert [bytes(buffer.view[start:end]) for start, end in buffer.take_frames()] == [b"good two"]
    assert "-5" in buffer.problem


def test_a_large_frame_is_read_to_its_end_and_no_further():
    size = 500_000
    buffer = run([bytes(size)] * 3, [1 << 20], [1])
    capacity = len(buffer.view)
    assert len(buffer.free_space()) == PREFIX_BYTES + size < capacity


def test_a_grown_buffer_is_given_back_when_it_is_empty():
    buffer = run([bytes(500_000)], [1 << 20], [1])
    buffer.shrink(BUFFER_BUSY_BYTES)
    assert len(buffer.view) == len(buffer.free_space()) == BUFFER_BYTES
    buffer.free_space()[:3] = b"\0\0\0"
    buffer.add(3)
    held = len(buffer.view)
    buffer.shrink(0)
    assert len(buffer.view) == held


def feed(frames, data, step):
    received = []
    while data:
        space = frames.free_space()
        count = min(len(space), step, len(data))
        space[:count] = data[:count]
        received += frames.receive(count)
        data = data[count:]
    return received


@pytest.mark.parametrize("step", [1, 7, 4096, 1 << 20])
def test_owned_frames_are_cut_from_any_stream(step):
    bodies = [b"four", b"x" * 70_000, b"y" * 10, b"z" * 300_000, b"q" * 65_532, b"end!"]
    if step == 1:
        bodies = [b"four", b"x" * 70_000, b"end!"]
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    frames = OwnedFrames(4, 1 << 20, BufferPool(6))
    assert [bytes(frame) for frame in feed(frames, stream, step)] == bodies


@settings(max_examples=60)
@given(
    sizes=st.lists(st.one_of(st.integers(4, 300), st.integers(4, 400_000)), min_size=1, max_size=10),
    step=st.one_of(st.integers(1000, 70_000), st.just(1 << 20)),
    seed=st.integers(0, 2**32),
)
@example(sizes=[300_000, 100_000, 10], step=1 << 20, seed=0)
def test_owned_frames_that_are_let_go_are_cut_from_any_stream(sizes, step, seed):
    """Answers that were let go leave their buffer to a smaller one, which must not read beyond its own end.

    The tests above keep every frame, so no buffer was ever larger than the frame it was used for.
    """
    source = random.Random(seed)
    bodies = [source.randbytes(size) for size in sizes]
    stream = memoryview(b"".join(struct.pack(">i", len(body)) + body for body in bodies))
    frames = OwnedFrames(4, 1 << 20, BufferPool(6))
    received = []
    while stream:
        space = frames.free_space()
        assert len(space)
        count = min(len(space), step, len(stream))
        space[:count] = stream[:count]
        received += map(bytes, frames.receive(count))
        stream = stream[count:]
        del space
    assert received == bodies


def test_a_large_frame_is_not_overwritten_while_it_is_kept():
    frames = OwnedFrames(4, 1 << 20, BufferPool(6))
    frame = struct.pack(">i", 100_000)
    (first,) = feed(frames, frame + b"a" * 100_000, 1 << 20)
    (second,) = feed(frames, frame + b"b" * 100_000, 1 << 20)
    assert bytes(first) == b"a" * 100_000
    del first
    (third,) = feed(frames, frame + b"c" * 100_000, 1 << 20)
    assert (bytes(second), bytes(third)) == (b"b" * 100_000, b"c" * 100_000)


def test_no_memory_is_given_for_a_size_that_was_only_announced():
    frames = OwnedFrames(4, 512 << 20)
    feed(frames, struct.pack(">i", 400 << 20) + b"x" * 1000, 1004)
    assert len(frames.free_space()) <= 1 << 20
    with pytest.raises(RemoteProtocolError):
        feed(OwnedFrames(4, 1000), struct.pack(">i", 1001), 4)


@settings(max_examples=60)
@given(sizes=st.lists(SIZES, min_size=1, max_size=8), chunks=CHUNKS, pooled=st.booleans())
def test_frames_fed_in_any_pieces_come_out_whole(sizes, chunks, pooled):
    source = random.Random(7)
    bodies = [source.randbytes(size) for size in sizes]
    frames = OwnedFrames(4, 1 << 20, BufferPool(2) if pooled else None)
    stream = memoryview(b"".join(encode_frame((body[:3], body[3:])) for body in bodies))
    received, step = [], 0
    while stream:
        count = piece(chunks, step)
        received += frames.feed(stream[:count])
        stream = stream[count:]
        step += 1
    assert received == bodies, "every frame is kept, so none may be overwritten"


@pytest.mark.parametrize("size", [-1, 0, 3, 1001, 2**31 - 1])
def test_owned_frames_of_a_size_out_of_bounds_are_refused(size):
    with pytest.raises(RemoteProtocolError, match=f"a frame of {size} bytes is"):
        OwnedFrames(4, 1000).feed(struct.pack(">i", size))
