"""Datasets of the Hugging Face hub, loaded with `datasets` (imported late: it takes seconds)."""

import contextlib
import logging
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.data.text.lines import text_in
from t5xpg.data.text.manifest import SPLITS

_ROWS_AT_ONCE = 1000
_REACH_SECONDS = 5.0


def splits(
    path: str, configuration: str | None, revision: str | None, streamed: bool = False
) -> dict[str | None, tuple[Iterator[str], int | None]]:
    """The texts of each split of a dataset (a name on the hub, or a local folder), and their number. Without a network,
    the copy in the cache of `datasets` is used.

    streamed: texts are read as they come, without a copy or a number; if not all three splits exist, only train,
    under the name None. UserError if the dataset is not available, or lacks splits or columns: at once, or at a row.
    """
    loaded = load(path, configuration, revision=revision, streaming=streamed)
    has_splits = not streamed or set(SPLITS) <= set(loaded)
    names: dict[str | None, str] = {split: split for split in SPLITS} if has_splits else {None: "train"}
    texts: dict[str | None, tuple[Iterator[str], int | None]] = {}
    for split, name in names.items():
        if name not in loaded:
            raise UserError(f"{path} has no split {name!r}: it has {', '.join(map(str, loaded))}.")
        data = loaded[name]
        if not streamed and "text" not in data.column_names:
            raise UserError(f'{path} has no column "text": it has {", ".join(data.column_names)}.')
        batches = data.iter(1) if streamed else data.select_columns("text").iter(_ROWS_AT_ONCE)
        texts[split] = (_texts(batches, f"{path} {name}"), None if streamed else len(data))
    return texts


def _texts(batches: Iterator[Mapping[str, list[Any]]], name: str) -> Iterator[str]:
    """Yields the column "text". Raises UserError at a row that is no text, or cannot be read."""
    row = 0
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:  # of the network, the file system, the format
            raise UserError(f"{name} cannot be read on after row {row}: {_reason(error)}") from error
        if batch is None:
            return
        if "text" not in batch:
            raise UserError(f'{name} has no column "text": it has {", ".join(batch)}.')
        for text in batch["text"]:
            row += 1
            yield text_in(text, "text", f"{name}, row {row}")


def load(path: str, configuration: str | None, **options: Any) -> Any:
    """The result of `datasets.load_dataset`. Raises UserError if the dataset is not available."""
    import datasets

    # no retries and hints in the log; the library's progress bars (download, conversion) only on a terminal
    for name in ("datasets", "huggingface_hub", "fsspec", "filelock"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    with _offline_where_unreachable() as reached:
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
    """Let the hub's client use only its cache if the hub is unreachable, instead of retrying for minutes. Yields True
    if it was reached."""
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
    if {address.scheme, "all"} & set(urllib.request.getproxies()):
        return True  # the proxy reaches it, or says why not
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), timeout=_REACH_SECONDS).close()
    except OSError:
        return False
    return True
