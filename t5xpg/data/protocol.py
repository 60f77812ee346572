"""Messages between the training process and the data process: a JSON object and arrays, over a stream socket.

A frame is 8 bytes (two little-endian uint32: the length of the header, and a mark), the header (UTF-8 JSON: the
message, and name, dtype and shape of every array), then the bytes of the arrays in that order. Nothing is pickled: a
frame can only ever be data.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

_PREFIX = struct.Struct("<II")
_MARK = 0x54355847


def send(connection: socket.socket, message: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
    """Send one frame. Raises OSError where the other side is gone."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    table = [[name, array.dtype.str, list(array.shape)] for name, array in contiguous.items()]
    header = json.dumps({"message": message, "arrays": table}).encode("utf-8")
    connection.sendall(_PREFIX.pack(len(header), _MARK) + header)
    for array in contiguous.values():
        if array.nbytes:
            connection.sendall(_bytes_of(array))


def receive(connection: socket.socket) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Wait for one frame. Raises EOFError where the other side has closed, ValueError for bytes that are no frame."""
    length, mark = _PREFIX.unpack(_read(connection, _PREFIX.size))
    if mark != _MARK:
        raise ValueError("not a frame: the two processes have lost step with each other")
    header = json.loads(bytes(_read(connection, length)).decode("utf-8"))
    arrays = {}
    for name, dtype, shape in header["arrays"]:
        array = np.empty(shape, np.dtype(dtype))
        if array.nbytes:
            _read_into(connection, _bytes_of(array))
        arrays[name] = array
    return header["message"], arrays


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _read(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    _read_into(connection, memoryview(data))
    return data


def _read_into(connection: socket.socket, view: memoryview) -> None:
    while view:
        try:
            count = connection.recv_into(view)
        except ConnectionResetError:
            count = 0
        if count == 0:
            raise EOFError("the connection was closed")
        view = view[count:]
