"""Plain data comes out of a channel as it went in, and nothing else goes in."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from commhooks.conformance.world.channel import Channel, ChannelClosed


@pytest.fixture
def ends() -> tuple[Channel, Channel]:
    """Two connected channels."""
    one, other = socket.socketpair()
    return Channel(one), Channel(other)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(0,), (1,), (), (3, 0, 2), (2, 3)])
def test_arrays(ends: tuple[Channel, Channel], dtype: str, shape: tuple[int, ...]) -> None:
    """Arrays keep dtype, shape and bits, empty ones and those of no dimension too."""
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    ends[0].send({"array": array, "again": [array]})
    received = ends[1].receive()
    for found in (received["array"], received["again"][0]):  # type: ignore[index, call-overload]
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        assert found.tobytes() == array.tobytes()


def test_other_data(ends: tuple[Channel, Channel]) -> None:
    """Numbers, text, bytes and what holds them come as they are; a tuple comes as a list."""
    message = {"n": None, "t": True, "i": 7, "f": float("inf"), "s": "ü\0", "b": b"\0\xff", "d": {"l": [1, [2]]}}
    ends[0].send({**message, "tuple": (1, 2), "number": np.float32(0.1)})
    received = ends[1].receive()
    assert received == {**message, "tuple": [1, 2], "number": float(np.float32(0.1))}


def test_a_large_message(ends: tuple[Channel, Channel]) -> None:
    """A message that is larger than the socket's buffer arrives whole."""
    array = np.random.default_rng(0).standard_normal(1 << 20)
    sender = threading.Thread(target=ends[0].send, args=({"array": array},))
    sender.start()
    assert np.array_equal(ends[1].receive()["array"], array)  # type: ignore[arg-type]
    sender.join()


@pytest.mark.parametrize("thing", [object(), {1: "a"}, {"x": {2, 3}}, 1j])
def test_other_things_are_refused(ends: tuple[Channel, Channel], thing: object) -> None:
    """An object of any other kind cannot be sent."""
    with pytest.raises(TypeError):
        ends[0].send({"thing": thing})  # type: ignore[dict-item]


def test_closed_channel(ends: tuple[Channel, Channel]) -> None:
    """The end of the other side is an error of its own, and so is silence beyond a time limit."""
    with pytest.raises(ChannelClosed):
        ends[1].receive(timeout=0.01)
    ends[0].close()
    with pytest.raises(ChannelClosed):
        ends[1].receive()
