"""Datasets of the Hugging Face hub, loaded with `datasets` (imported late: it takes seconds)."""

from __future__ import annotations

import contextlib
import itertools
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
        batches = self._split.select_columns("text").iter(batch_size=_ROWS_AT_ONCE)
        for row, text in enumerate((text for batch in batches for text in batch["text"]), 1):
            yield _checked(text, self._name, row)


def load_splits(path: str, configuration: str | None, revision: str | None) -> dict[str, TextColumn]:
    """The train, validation and test splits of a dataset.

    `path` is a name on the hub, or a local folder laid out like one. Without a network the copy in the cache of
    `datasets` is used. Raises UserError where there is none, or where the dataset has other splits or columns.
    """
    loaded = _load(path, configuration, revision=revision)
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
    loaded = _load(path, configuration, revision=revision, streaming=True)
    if "train" not in loaded:
        raise UserError(f"{path} has no split 'train': it has {', '.join(map(str, loaded))}.")
    if not set(SPLITS) <= set(loaded):
        return {None: _streamed_texts(loaded["train"], f"{path} train")}
    return {split: _streamed_texts(loaded[split], f"{path} {split}") for split in SPLITS}


def _streamed_texts(split: Any, name: str) -> Iterator[str]:
    """The column "text". Raises UserError at a row that is no text, or cannot be read."""
    rows = iter(split)
    for row in itertools.count(1):
        try:
            values = next(rows, None)
        except Exception as error:  # of the network, the file system, the format
            raise UserError(f"{name} cannot be read on after row {row - 1}: {_reason(error)}") from error
        if values is None:
            return
        if "text" not in values:
            raise UserError(f'{name} has no column "text": it has {", ".join(values)}.')
        yield _checked(values["text"], name, row)


def _checked(text: Any, split: str, row: int) -> str:
    if not isinstance(text, str):
        raise UserError(f'{split}, row {row}: "text" is {type(text).__name__}, expected a string.')
    return text


def rows(
    path: str, configuration: str | None, revision: str | None, split: str, streaming: bool
) -> Iterator[dict[str, Any]]:
    """The rows of a split of a dataset, in order: from its copy in the cache of `datasets`, which is made first.

    With `streaming` they are taken as they come, without a copy.
    `path` is a name on the hub, or a local folder. Raises UserError where the dataset cannot be had.
    """
    yield from _load(path, configuration, revision=revision, split=split, streaming=streaming)


def _load(path: str, configuration: str | None, **options: Any) -> Any:
    """What `datasets.load_dataset` gives. Raises UserError where the dataset cannot be had."""
    import datasets

    with _quiet(), _offline_where_unreachable() as reached:
        try:
            return datasets.load_dataset(path, configuration, **options)
        except Exception as error:  # connection, hub, file and generation errors share no base class
            reason = _reason(error) if reached or Path(path).exists() else "there is no network"
            raise UserError(
                f"Cannot load {path} ({configuration}): {reason}. Two ways on: "
                'FILES="train=… validation=… test=…" builds it from local files (text, JSON lines, parquet); or make '
                "it on a machine with a network and copy its folder below data/, or the cache of `datasets` (HF_HOME), "
                "here."
            ) from error


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


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
