"""Frames survive any way a stream can be cut, and no announced size costs memory."""

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.model.errors import RemoteProtocolError
from klamm.protocol import FrameReader, frame


def feed(reader, data, step):
    """Hand over `data` in pieces of `step` bytes through the reader's own buffer; copies of the frames."""
    frames = []
    view = memoryview(data)
    while view:
        room = reader.get_buffer()
        assert len(room)
        count = min(step, len(room), len(view))
        room[:count] = view[:count]
        frames += [bytes(found) for found in reader.buffer_updated(count)]
        view = view[count:]
    return frames


STREAM = frame(b"one") + frame(b"") + frame(b"three" * 10)
FRAMES = [b"one", b"", b"three" * 10]


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_stream_cut_anywhere_gives_the_same_frames(cut):
    reader = FrameReader(1000)
    assert reader.receive(STREAM[:cut]) + reader.receive(STREAM[cut:]) == FRAMES
    assert reader.pending == 0


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("buffer_bytes", [16, 20, 4096])
def test_a_stream_in_small_pieces_gives_the_same_frames(step, buffer_bytes):
    assert feed(FrameReader(1000, buffer_bytes), STREAM * 3, step) == FRAMES * 3


@settings(max_examples=100)
@given(
    sizes=st.lists(st.integers(0, 20000), max_size=8),
    step=st.integers(1, 9000),
    buffer_bytes=st.integers(16, 10000),
)
def test_any_sizes_in_any_pieces(sizes, step, buffer_bytes):
    frames = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
    assert feed(FrameReader(20000, buffer_bytes), b"".join(map(frame, frames)), step) == frames


def test_frames_are_writable_views_that_nothing_copied():
    reader = FrameReader()
    room = reader.get_buffer()
    data = frame(b"abc") + frame(b"def")
    room[: len(data)] = data
    first, second = reader.buffer_updated(len(data))
    first[0:1] = b"A"
    assert bytes(first) == b"Abc"
    assert bytes(second) == b"def"
    assert first.obj is second.obj is room.obj


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_sizes_out_of_bounds_are_refused(size):
    with pytest.raises(RemoteProtocolError, match="at most 1000"):
        FrameReader(1000).receive(struct.pack(">i", size))


def test_the_greatest_size_is_accepted():
    assert FrameReader(1000).receive(frame(bytes(1000))) == [bytes(1000)]


def test_an_announced_size_costs_no_memory():
    reader = FrameReader(2**31 - 1)
    tracemalloc.start()
    try:
        reader.receive(struct.pack(">i", 2**31 - 1) + bytes(1000))
        reader.get_buffer()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # other threads allocate as well
    finally:
        tracemalloc.stop()


def test_a_large_buffer_is_given_back():
    reader = FrameReader()
    large = bytes(5_000_000)
    assert reader.receive(frame(large)) == [large]
    assert len(reader.get_buffer()) == 64 * 1024
