"""What Weights & Biases has written of a run that is kept offline: the last step that survived, whatever was killed.

Its files are logs in LevelDB's format behind a header of seven bytes: blocks of 32 KiB, of parts with a checksum, a
size and a kind (whole, first, middle, last); a part that was cut off is not there.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator
from pathlib import Path

_MAGIC = b":W&B"
_HEADER = 7
_BLOCK = 32 * 1024
_PART = struct.Struct("<IHB")
_WHOLE, _LAST = 1, 4


def last_step(folder: Path, run_id: str) -> int:
    """The last step of the rows in `folder`, wandb's own, that belong to a run; -1 where there is none."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    steps = [-1]
    for file in folder.glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"):
        for entry in entries(file.read_bytes()):
            record = messages.Record.FromString(entry)
            if record.WhichOneof("record_type") == "history":
                steps.append(record.history.step.num)
    return max(steps)


def entries(data: bytes) -> Iterator[bytes]:
    """The whole entries of a file, until the first that is none."""
    if not data.startswith(_MAGIC):
        return
    at, begun = _HEADER, b""
    while at + _PART.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _PART.size:  # too little for a part: filled up
            at += left
            continue
        _, size, kind = _PART.unpack_from(data, at)
        at += _PART.size
        if not kind or at + size > len(data):
            return
        begun += data[at : at + size]
        at += size
        if kind in (_WHOLE, _LAST):
            yield begun
            begun = b""
