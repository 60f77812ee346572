"""Datasets of the Hugging Face hub, loaded with `datasets` (imported late: it takes seconds)."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.data.text.manifest import SPLITS

_ROWS_AT_ONCE = 1000
_REACH_SECONDS = 5.0


class TextColumn:
    """The column "text" of a loaded split: iterable, with a length, a thousand rows in memory at a time.

    `name` is that of the split in messages. Iterating raises UserError at a row that is no text.
    """

    def __init__(self, split: Any, name: str = "the split") -> None:
        self._split = split
        self._name = name

    def __len__(self) -> int:
        return len(self._split)

    def __iter__(self) -> Iterator[str]:
        row = 0
        for batch in self._split.select_columns("text").iter(batch_size=_ROWS_AT_ONCE):
            for text in batch["text"]:
                row += 1
                if not isinstance(text, str):
                    raise UserError(f'{self._name}, row {row}: "text" is {type(text).__name__}, expected a string.')
                yield text


def load_splits(path: str, configuration: str | None, revision: str | None) -> dict[str, TextColumn]:
    """The train, validation and test splits of a dataset.

    `path` is a name on the hub, or a local folder laid out like one. Without a network the copy in the cache of
    `datasets` is used. Raises UserError where there is none, or where the dataset has other splits or columns.
    """
    import datasets

    with _quiet(), _offline_where_unreachable() as reached:
        try:
            loaded = datasets.load_dataset(path, configuration, revision=revision)
        except Exception as error:  # connection, hub, file and generation errors share no base class
            raise UserError(_cannot_load(path, configuration, reached, error)) from error
    for split in SPLITS:
        if split not in loaded:
            raise UserError(f"{path} has no split {split!r}: it has {', '.join(loaded)}.")
        if "text" not in loaded[split].column_names:
            raise UserError(f'{path} has no column "text": it has {", ".join(loaded[split].column_names)}.')
    return {split: TextColumn(loaded[split], f"{path} {split}") for split in SPLITS}


def stream_splits(path: str, configuration: str | None, revision: str | None) -> dict[str | None, Iterator[str]]:
    """The texts of a dataset as they come, without a copy of it: nothing is fetched before it is asked for.

    The three splits; where it has not got all of them, its train split under the name None, for a text without splits.
    Raises UserError where the dataset cannot be had, there or at a row.
    """
    import datasets

    with _quiet(), _offline_where_unreachable() as reached:
        try:
            loaded = datasets.load_dataset(path, configuration, revision=revision, streaming=True)
        except Exception as error:  # connection, hub, file and generation errors share no base class
            raise UserError(_cannot_load(path, configuration, reached, error)) from error
    if "train" not in loaded:
        raise UserError(f"{path} has no split 'train': it has {', '.join(map(str, loaded))}.")
    if not set(SPLITS) <= set(loaded):
        return {None: _streamed_texts(loaded["train"], f"{path} train")}
    return {split: _streamed_texts(loaded[split], f"{path} {split}") for split in SPLITS}


def _streamed_texts(split: Any, name: str) -> Iterator[str]:
    """The column "text". Raises UserError at a row that is no text, or cannot be read."""
    row = 0
    rows = iter(split)
    while True:
        try:
            values = next(rows, None)
        except Exception as error:  # of the network, the file system, the format
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise UserError(f"{name} cannot be read on after row {row}: {reason}") from error
        if values is None:
            return
        row += 1
        if "text" not in values:
            raise UserError(f'{name} has no column "text": it has {", ".join(values)}.')
        if not isinstance(values["text"], str):
            raise UserError(f'{name}, row {row}: "text" is {type(values["text"]).__name__}, expected a string.')
        yield values["text"]


def rows(
    path: str, configuration: str | None, revision: str | None, split: str, streaming: bool
) -> Iterator[dict[str, Any]]:
    """The rows of a split of a dataset, in order: from its copy in the cache of `datasets`, which is made first.

    With `streaming` they are taken as they come, without a copy.
    `path` is a name on the hub, or a local folder. Raises UserError where the dataset cannot be had.
    """
    import datasets

    with _quiet(), _offline_where_unreachable() as reached:
        try:
            loaded = datasets.load_dataset(path, configuration, revision=revision, split=split, streaming=streaming)
        except Exception as error:  # connection, hub, file and generation errors share no base class
            raise UserError(_cannot_load(path, configuration, reached, error)) from error
    yield from loaded


def _cannot_load(path: str, configuration: str | None, reached: bool, error: Exception) -> str:
    absent = not reached and not Path(path).exists()
    reason = "there is no network" if absent else " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return (
        f"Cannot load {path} ({configuration}): {reason}. Two ways on: "
        'FILES="train=… validation=… test=…" builds it from local files (text, JSON lines, parquet); or make it on a '
        "machine with a network and copy its folder below data/, or the cache of `datasets` (HF_HOME), here."
    )


@contextlib.contextmanager
def _offline_where_unreachable() -> Iterator[bool]:
    """Tell the hub's client to use its cache alone where the hub cannot be reached, instead of retrying for minutes.

    Yields whether the hub was reached.
    """
    import datasets
    import huggingface_hub

    reached = not huggingface_hub.constants.HF_HUB_OFFLINE and _reachable(huggingface_hub.constants.ENDPOINT)
    before = (huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE)
    if not reached:
        huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield reached
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _reachable(endpoint: str) -> bool:
    address = urllib.parse.urlsplit(endpoint)
    if urllib.request.getproxies().get(address.scheme):
        return True  # the proxy reaches it, or says why not
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), timeout=_REACH_SECONDS).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No retries and hints in the log; the library's bars (download, conversion) on a terminal alone."""
    import datasets

    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub", "fsspec", "filelock")]
    levels = [logger.level for logger in loggers]
    bars = datasets.utils.are_progress_bars_disabled()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()
