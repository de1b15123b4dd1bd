"""Plain data over a socket, between the controller and the processes of a world.

Numbers, text, lists, dictionaries with text as keys, bytes and numpy arrays travel, and nothing else: no object of the
sender can run code at the receiver, and the two may be different interpreters with different numpy versions.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Plain: TypeAlias = "bool | int | float | str | bytes | Array | Sequence[Plain] | Mapping[str, Plain] | None"

_LENGTHS = struct.Struct("!QQ")
_ARRAY, _BYTES = "$array", "$bytes"


class ChannelClosed(Exception):
    """The other end is gone."""


class Channel:
    """Sends and receives messages of plain data over a connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def fileno(self) -> int:
        """The socket's file descriptor, so that a selector can wait for a message."""
        return self._connection.fileno()

    def send(self, message: Mapping[str, Plain]) -> None:
        """Sends one message.

        Raises:
            TypeError: The message is not plain data.
            ChannelClosed: The other end is gone.
        """
        header, blobs = pack(message)
        try:
            self._connection.sendall(_LENGTHS.pack(len(header), sum(map(len, blobs))) + header)
            for blob in blobs:
                self._connection.sendall(blob)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout: float | None = None) -> dict[str, Plain]:
        """Waits for one message.

        Args:
            timeout: Seconds to wait for it; for ever by default.

        Raises:
            ChannelClosed: The other end is gone, or the time is up.
        """
        self._connection.settimeout(timeout)
        header_length, body_length = _LENGTHS.unpack(self._exactly(_LENGTHS.size))
        header = self._exactly(header_length)
        return unpack(bytes(header), self._exactly(body_length))

    def close(self) -> None:
        """Closes the socket."""
        self._connection.close()

    def _exactly(self, length: int) -> memoryview:
        data = bytearray(length)
        view = memoryview(data)
        done = 0
        while done < length:
            try:
                count = self._connection.recv_into(view[done:])
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if count == 0:
                raise ChannelClosed("the other end closed the connection")
            done += count
        return view


def pack(message: Mapping[str, Plain]) -> tuple[bytes, list[bytes]]:
    """Makes the JSON text of a message, and the contents of the arrays and bytes in it."""
    blobs: list[bytes] = []

    def replace(value: object) -> object:
        if isinstance(value, np.ndarray):
            blobs.append(np.ascontiguousarray(value).tobytes())
            return {_ARRAY: [value.dtype.str, list(value.shape)]}
        if isinstance(value, bytes):
            blobs.append(value)
            return {_BYTES: len(value)}
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Mapping):
            return {_text(key): replace(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [replace(item) for item in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(f"only plain data can be sent, got {type(value).__name__}")

    return json.dumps(replace(message)).encode(), blobs


def unpack(header: bytes, body: memoryview) -> dict[str, Plain]:
    """Makes the message again from its JSON text and the contents of its arrays and bytes."""
    start = 0

    def restore(value: object) -> Plain:
        nonlocal start
        if isinstance(value, list):
            return [restore(item) for item in value]
        if not isinstance(value, dict):
            return value  # type: ignore[return-value]
        if _ARRAY in value:
            dtype, shape = np.dtype(value[_ARRAY][0]), tuple(value[_ARRAY][1])
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(body, dtype, count, start).reshape(shape)
            start += array.nbytes
            return array
        if _BYTES in value:
            blob = bytes(body[start : start + value[_BYTES]])
            start += len(blob)
            return blob
        return {key: restore(item) for key, item in value.items()}

    restored = restore(json.loads(header))
    assert isinstance(restored, dict)
    return restored


def _text(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"keys must be text, got {key!r}")
    return key


def connect(address: str) -> socket.socket:
    """Connects to ``unix:/path`` or ``tcp:host:port``."""
    kind, _, where = address.partition(":")
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(where)
        return connection
    host, _, port = where.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
