"""Whether two run directories hold the same run, bit for bit, and the first place where they do not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from t5xpg.base import digests
from t5xpg.data.batch import hash_batch
from t5xpg.data.stream.client import DataService
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.identity import data_config
from t5xpg.run.batch_trail import LINE, UNKNOWN
from t5xpg.run.checkpoint import items as checkpoint_items
from t5xpg.run.directory import RunDirectory

_TEMPORARY = (".tmp", ".old", ".orbax-checkpoint-tmp")
_SHOWN_CHARACTERS = 300

Arrays = dict[str, np.ndarray]
# From two data positions to (what was compared, the first difference or None).
ComparePositions = Callable[[Arrays, Arrays], tuple[str, str | None]]


@dataclass
class Comparison:
    """What was found equal, {what: {"sha256", …}}, and a sentence for each kind of difference: where it is first."""

    equal: dict[str, dict[str, Any]] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    def add(self, what: str, difference: str | None, **facts: Any) -> None:
        """Note one thing that was compared; `facts` are of the unbroken run."""
        if difference is None:
            self.equal[what] = facts
        else:
            self.differences.append(difference)


def compare(unbroken: Path, killed: Path, steps: int, positions: ComparePositions) -> Comparison:
    """Compare two finished runs of `steps` updates: records, batches, and what their last checkpoints hold.

    positions: compares the two positions in the data, where their bytes differ; the same position can be written down
    in more than one way.
    """
    found = Comparison()
    ours, theirs = RunDirectory(unbroken), RunDirectory(killed)
    _compare_records(found, ours.metrics_jsonl, theirs.metrics_jsonl)
    _compare_batches(found, ours.batches, theirs.batches, steps)
    lacking = [each.checkpoints / str(steps) for each in (ours, theirs) if not (each.checkpoints / str(steps)).is_dir()]
    if lacking:
        found.differences.append(f"There is no checkpoint {' and no '.join(map(str, lacking))}.")
    else:
        _compare_checkpoints(found, ours.checkpoints / str(steps), theirs.checkpoints / str(steps), positions)
        steps_kept = [kept(each.checkpoints) for each in (ours, theirs)]
        difference = f"{theirs.checkpoints} holds the steps {steps_kept[1]}, in the unbroken run {steps_kept[0]}."
        found.add("checkpoints kept", None if steps_kept[0] == steps_kept[1] else difference, steps=steps_kept[0])
    left = litter(killed, unbroken)
    found.add("no temporary file left", f"{killed / left[0]} was left behind by a kill." if left else None)
    return found


def kept(checkpoints: Path) -> list[int]:
    """The steps that a run has checkpoints of, ascending."""
    names = [entry.name for entry in checkpoints.iterdir()] if checkpoints.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def litter(killed: Path, unbroken: Path) -> list[str]:
    """What lies in the killed run and in no finished one: unfinished and temporary files, checkpoints put aside."""

    def names(run: Path) -> set[str]:
        kept = [path for folder in (run, run / "checkpoints") if folder.is_dir() for path in folder.iterdir()]
        # an unbroken run reads no checkpoint, so that there is nothing whose digest it would remember
        return {
            str(path.relative_to(run)) for path in kept if path.name != digests.MEMORY and not path.name.isdecimal()
        }

    temporary = {
        str(path.relative_to(killed))
        for path in killed.rglob("*")
        if path.name.endswith(_TEMPORARY) or "orbax-checkpoint-tmp" in path.name
    }
    return sorted((names(killed) - names(unbroken)) | temporary)


def read_checkpoint(folder: Path) -> dict[str, Arrays]:
    """The arrays of a checkpoint by item and name, without using a device: "params", "optimizer", "data".

    Those of "data" are the position as `DataService.open(…).state()` gave it.
    """
    reader = ocp.PyTreeCheckpointHandler()
    items: dict[str, Arrays] = {}
    for item in ("params", "optimizer", "data"):
        tree = reader.metadata(folder.absolute() / item).tree
        as_numpy = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        restored = reader.restore(folder.absolute() / item, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
        items[item] = {
            jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(restored)
        }
    items["data"] = checkpoint_items.unpack(items["data"]["npz"])
    return items


def first_difference(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> str | None:
    """A text that names the first array which is not the same in both, and where; None where all are, bit for bit."""
    for name in sorted({*ours, *theirs}):
        if name not in ours or name not in theirs:
            return f"{name} is in the {'killed' if name in theirs else 'unbroken'} run only"
        one, other = ours[name], theirs[name]
        kinds = [f"{array.dtype.name}{list(array.shape)}" for array in (one, other)]
        if kinds[0] != kinds[1]:
            return f"{name} is {kinds[0]} in the unbroken run, {kinds[1]} in the killed one"
        if one.tobytes() != other.tobytes():
            rows = (np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, -1) for array in (one, other))
            different = np.flatnonzero(np.not_equal(*rows).any(axis=1))
            at = [int(index) for index in np.unravel_index(different[0], one.shape)]
            values = [array.reshape(-1)[different[0]] for array in (one, other)]
            return (
                f"{name} differs in {len(different):,} of {one.size:,} values, first at {at}: {values[0]!r} in the "
                f"unbroken run, {values[1]!r} in the killed one"
            )
    return None


def _compare_records(found: Comparison, ours: Path, theirs: Path) -> None:
    texts = [path.read_bytes() if path.is_file() else b"" for path in (ours, theirs)]
    difference = None
    if texts[0] != texts[1]:
        lines = [text.splitlines(keepends=True) for text in texts]
        number = next(
            (index for index, pair in enumerate(zip(*lines, strict=False)) if pair[0] != pair[1]),
            min(map(len, lines)),
        )
        said = [_line(each, number) for each in lines]
        difference = f"{theirs}, line {number + 1}: {said[1]}; in the unbroken run: {said[0]}"
    elif not texts[0]:
        difference = f"{ours} holds nothing: there is nothing to compare."
    found.add(ours.name, difference, sha256=hashlib.sha256(texts[0]).hexdigest(), records=texts[0].count(b"\n"))


def _line(lines: list[bytes], number: int) -> str:
    if number >= len(lines):
        return "no such line"
    text = lines[number].decode("utf-8", "replace").rstrip("\n")
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _compare_batches(found: Comparison, ours: Path, theirs: Path, steps: int) -> None:
    texts = [path.read_bytes() if path.is_file() else b"" for path in (ours, theirs)]
    hashes = [[text[at : at + LINE].decode("ascii", "replace") for at in range(0, len(text), LINE)] for text in texts]
    difference = None
    for path, each in zip((ours, theirs), hashes, strict=True):
        if len(each) != steps:
            difference = f"{path} has the hashes of {len(each):,} batches for {steps:,} updates."
        elif f"{UNKNOWN}\n" in each:
            difference = f"{path} lacks the hash of the batch of step {each.index(f'{UNKNOWN}' + chr(10)) + 1}."
    if difference is None and texts[0] != texts[1]:
        step = next(index for index, pair in enumerate(zip(*hashes, strict=True)) if pair[0] != pair[1]) + 1
        said = [each[step - 1].strip()[:16] for each in hashes]
        difference = f"{theirs}: the batch of step {step} has the hash {said[1]}…, in the unbroken run {said[0]}…"
    found.add(ours.name, difference, sha256=hashlib.sha256(texts[0]).hexdigest(), batches=steps)


def _compare_checkpoints(found: Comparison, ours: Path, theirs: Path, positions: ComparePositions) -> None:
    one, other = read_checkpoint(ours), read_checkpoint(theirs)
    for item, what in (("params", "parameters"), ("optimizer", "optimiser")):
        difference = first_difference(one[item], other[item])
        found.add(
            what,
            None if difference is None else f"{theirs / item}: {difference}.",
            sha256=checkpoint_items.sha256_of_arrays(one[item]),
            arrays=len(one[item]),
            values=sum(array.size for array in one[item].values()),
        )
    how, difference = positions(one["data"], other["data"])
    found.add("data position", None if difference is None else f"{theirs / 'data'}: {difference}.", compared=how)
    metas = [json.loads((folder / "meta" / "metadata").read_text(encoding="utf-8")) for folder in (ours, theirs)]
    found.add("meta", None if metas[0] == metas[1] else f"{theirs / 'meta'} is another than {ours / 'meta'}.")


_BATCHES = 8


class PositionComparison:
    """Compares positions of an experiment's training stream. A context manager, for the data process it may need."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded
        self._service: DataService | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._service is not None:
            self._service.close()

    def __call__(self, ours: Arrays, theirs: Arrays) -> tuple[str, str | None]:
        """(what was compared, the first difference or None). Where the bytes differ, the batches that follow decide."""
        if ours.keys() == theirs.keys() and all(ours[name].tobytes() == theirs[name].tobytes() for name in ours):
            return "byte for byte", None
        for number, (one, other) in enumerate(zip(self._next(ours), self._next(theirs), strict=True)):
            if one != other:
                return "", f"of the batches that follow its position, number {number + 1} is another one"
        return f"the next {_BATCHES} batches", None

    def _next(self, position: Arrays) -> list[str]:
        if self._service is None:
            self._service = DataService()
        experiment = self._loaded.experiment
        stream = self._service.open(data_config(experiment.train_dataset, experiment.random_seed))
        try:
            stream.restore(position)
            return [hash_batch(next(stream)) for _ in range(_BATCHES)]
        finally:
            stream.close()
