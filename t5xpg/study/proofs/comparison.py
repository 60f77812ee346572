"""Comparison of two run directories, bit for bit, and the first place where they differ."""

import contextlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5xpg.base import digests
from t5xpg.base.files import sha256_of_file
from t5xpg.data.batch import hash_batch
from t5xpg.data.stream.client import DataService
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.identity import data_config
from t5xpg.run.batch_trail import UNKNOWN
from t5xpg.run.checkpoint import checkpoint_items
from t5xpg.run.checkpoint.folders import saved_steps
from t5xpg.run.directory import RunDirectory

_TEMPORARY = (".tmp", ".old")
_SHOWN_CHARACTERS = 300
_BATCHES = 8  # that are compared after a position

Arrays = dict[str, np.ndarray]


@dataclass
class RunComparison:
    """The equal parts, {name: {"sha256", …}}, and for each kind of difference a sentence on its first place."""

    equal: dict[str, dict[str, Any]] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    def add(self, name: str, difference: str | None, **facts: Any) -> None:
        """Note a part that was compared; `facts` describe the unbroken run."""
        if difference is None:
            self.equal[name] = facts
        else:
            self.differences.append(difference)


def compare(loaded: LoadedConfig, unbroken: Path, killed: Path, steps: int) -> RunComparison:
    """Compare two finished runs of `steps` updates: records, batches, and what their last checkpoints hold."""
    result = RunComparison()
    ours, theirs = RunDirectory(unbroken), RunDirectory(killed)
    _compare_lines(result, ours.metrics_jsonl, theirs.metrics_jsonl)
    _compare_lines(result, ours.batches, theirs.batches, expected=steps)
    missing = [each.checkpoints / str(steps) for each in (ours, theirs) if not (each.checkpoints / str(steps)).is_dir()]
    if missing:
        result.differences.append(f"There is no checkpoint {' and no '.join(map(str, missing))}.")
    else:
        _compare_checkpoints(result, loaded, ours.checkpoints / str(steps), theirs.checkpoints / str(steps))
        steps_kept = [saved_steps(each.checkpoints) for each in (ours, theirs)]
        difference = f"{theirs.checkpoints} holds the steps {steps_kept[1]}, in the unbroken run {steps_kept[0]}."
        result.add("checkpoints kept", None if steps_kept[0] == steps_kept[1] else difference, steps=steps_kept[0])
    left_names = leftovers(killed, unbroken)
    result.add("no temporary file left", f"{killed / left_names[0]} was left behind by a kill." if left_names else None)
    return result


def leftovers(killed: Path, unbroken: Path) -> list[str]:
    """The names of files that only the killed run has, and of all temporary files and checkpoints put aside."""

    def names(run: Path) -> set[str]:
        paths = [path for folder in (run, run / "checkpoints") if folder.is_dir() for path in folder.iterdir()]
        # an unbroken run reads no checkpoint, so that it has no digests to remember
        return {
            str(path.relative_to(run)) for path in paths if path.name != digests.MEMORY and not path.name.isdecimal()
        }

    temporary = {
        str(path.relative_to(killed))
        for path in killed.rglob("*")
        if path.name.endswith(_TEMPORARY) or "orbax-checkpoint-tmp" in path.name
    }
    return sorted((names(killed) - names(unbroken)) | temporary)


def read_checkpoint(folder: Path) -> dict[str, Arrays]:
    """The arrays of a checkpoint by item and name, without using a device: "params", "optimizer", "data".

    The arrays of "data" are the position as `DataService.open(…).state()` gave it.
    """
    items = {
        item: {
            jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(checkpoint_items.numpy_arrays(folder, item))
        }
        for item in checkpoint_items.ARRAYS
    }
    return items | {"data": checkpoint_items.unpack(items["data"]["npz"])}


def first_difference(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> str | None:
    """A text on the first array that differs, and the place in it; None if all arrays are equal bit for bit."""
    for name in sorted({*ours, *theirs}):
        if name not in ours or name not in theirs:
            return f"{name} is in the {'killed' if name in theirs else 'unbroken'} run only"
        a, b = ours[name], theirs[name]
        kinds = [f"{array.dtype.name}{list(array.shape)}" for array in (a, b)]
        if kinds[0] != kinds[1]:
            return f"{name} is {kinds[0]} in the unbroken run, {kinds[1]} in the killed one"
        if a.tobytes() != b.tobytes():
            rows = (np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, -1) for array in (a, b))
            different = np.flatnonzero(np.not_equal(*rows).any(axis=1))
            place = [int(index) for index in np.unravel_index(different[0], a.shape)]
            values = [array.reshape(-1)[different[0]] for array in (a, b)]
            return (
                f"{name} differs in {len(different):,} of {a.size:,} values, first at {place}: {values[0]!r} in the "
                f"unbroken run, {values[1]!r} in the killed one"
            )
    return None


def _compare_lines(result: RunComparison, ours: Path, theirs: Path, expected: int | None = None) -> None:
    """Compare two files line by line. No line may be `UNKNOWN`. expected: the number of lines there must be, if any."""
    a, b = (path.read_bytes().splitlines() if path.is_file() else [] for path in (ours, theirs))
    difference = None
    if a != b:
        pairs = itertools.zip_longest(a, b, fillvalue=b"no such line")
        number, pair = next((number, pair) for number, pair in enumerate(pairs, start=1) if pair[0] != pair[1])
        shown = [line.decode("utf-8", "replace")[:_SHOWN_CHARACTERS] for line in pair]
        difference = f"{theirs}, line {number}: {shown[1]}; in the unbroken run: {shown[0]}"
    elif not a or (expected is not None and len(a) != expected) or UNKNOWN.encode("ascii") in a:
        difference = f"{ours} is not whole: it has {len(a):,} lines. There is nothing to compare."
    sha256 = sha256_of_file(ours) if ours.is_file() else ""
    result.add(ours.name, difference, sha256=sha256, lines=len(a))


def _compare_checkpoints(result: RunComparison, loaded: LoadedConfig, ours: Path, theirs: Path) -> None:
    a, b = read_checkpoint(ours), read_checkpoint(theirs)
    for item, name in (("params", "parameters"), ("optimizer", "optimiser")):
        difference = first_difference(a[item], b[item])
        result.add(
            name,
            None if difference is None else f"{theirs / item}: {difference}.",
            sha256=checkpoint_items.sha256_of_arrays(a[item]),
            arrays=len(a[item]),
            values=sum(array.size for array in a[item].values()),
        )
    method, difference = compare_positions(loaded, a["data"], b["data"])
    result.add("data position", None if difference is None else f"{theirs / 'data'}: {difference}.", compared=method)
    metas = [json.loads((folder / "meta" / "metadata").read_text(encoding="utf-8")) for folder in (ours, theirs)]
    result.add("meta", None if metas[0] == metas[1] else f"{theirs / 'meta'} is another than {ours / 'meta'}.")


def compare_positions(loaded: LoadedConfig, ours: Arrays, theirs: Arrays) -> tuple[str, str | None]:
    """(what was compared, the first difference or None) of two positions in an experiment's training stream.

    The same position can be written down in more than one way: where the bytes differ, the batches that follow decide.
    """
    if ours.keys() == theirs.keys() and all(ours[name].tobytes() == theirs[name].tobytes() for name in ours):
        return "byte for byte", None
    data = data_config(loaded.experiment.train_dataset, loaded.experiment.random_seed)
    hashes: list[list[str]] = []
    with DataService() as service:
        for position in (ours, theirs):
            with contextlib.closing(service.open(data)) as stream:
                stream.restore(position)
                hashes.append([hash_batch(next(stream)) for _ in range(_BATCHES)])
    for number, (a, b) in enumerate(zip(*hashes, strict=True), start=1):
        if a != b:
            return "", f"of the batches that follow its position, number {number} is another one"
    return f"the next {_BATCHES} batches", None
