"""`make runs`: the run directories, how far each is and what it takes of the disk; and room made safely."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from shutil import rmtree

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.page import UNKNOWN, aligned, cell
from t5xpg.base.paths import shown
from t5xpg.run.best import Best, BestMetric
from t5xpg.run.checkpoint.folders import saved_steps
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import read_jsonl, whole_split

_IMPORTED, _FINISHED, _STOPPED, _BUSY = "imported", "finished", "stopped", "busy"
_MB = 1e6


@dataclass(frozen=True)
class Listed:
    """A run directory. state: "imported", "finished", "stopped", or "busy" where a process works in it. loss: of the
    last validation, nats per target token. checkpoints: the steps of those that are saved."""

    name: str
    experiment: str
    state: str
    step: int
    total_steps: int | None
    loss: float | None
    checkpoints: tuple[int, ...]
    bytes: int


def listed(folder: Path) -> Iterator[Listed]:
    """The runs in a folder, by name. A folder without a run.json is none."""
    for path in sorted(folder.glob("*")):
        run = RunDirectory(path)
        if run.exists():
            yield _listed(run)


def print_runs(folder: Path, *, as_json: bool = False) -> int:
    """List the runs in `folder`, as a table or as JSON; returns 0."""
    runs = list(listed(folder))
    if as_json:
        print(json.dumps([asdict(run) for run in runs], indent=1))
        return 0
    if not runs:
        print(f"no run directories in {folder}")
        return 0
    header = ["run", "experiment", "state", "step", "of", "loss", "checkpoints", "MB"]
    rows = [
        [run.name, run.experiment, run.state, *map(cell, (run.step, run.total_steps, run.loss, len(run.checkpoints))),
         f"{run.bytes / _MB:,.1f}"]
        for run in runs
    ]  # fmt: skip
    print("\n".join(aligned(header, rows, numbers_from=3)))
    return 0


def remove(folder: Path, patterns: Sequence[str], *, yes: bool = False) -> int:
    """Delete the runs that the patterns name ("*", "mine_*"), after a yes on the terminal (`yes`: without asking).

    One that a process works in is kept. Returns the exit code: 1 where nobody could be asked or the answer was no.
    Raises UserError for a pattern that names no run.
    """
    runs = list(listed(folder))
    names = [run.name for run in runs]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(f"REMOVE={pattern}: there is no such run in {shown(folder)}.{nearest(pattern, names)}")
    chosen = [run for run in runs if any(fnmatchcase(run.name, pattern) for pattern in patterns)]
    for run in chosen:
        print(f"  {run.name}  {run.bytes / _MB:,.1f} MB  {run.state}, step {run.step:,}")
    if not _agreed(f"Delete {'it' if len(chosen) == 1 else f'these {len(chosen)}'}?", yes):
        return 1
    for run in chosen:
        directory = RunDirectory(folder / run.name)
        _delete(directory, [directory.path])
    return 0


def thin(folder: Path, *, yes: bool = False) -> int:
    """Of each run that is finished, delete all checkpoints but the last and the best; as `remove`."""
    found = []
    for run in listed(folder):
        directory = RunDirectory(folder / run.name)
        superfluous = sorted(set(run.checkpoints[:-1]) - {_best(directory)}) if run.state == _FINISHED else []
        if superfluous:
            found.append((directory, superfluous))
            print(f"  {run.name}  checkpoints {', '.join(f'{step:,}' for step in superfluous)}")
    if not found:
        print("no finished run has checkpoints besides its last and its best one")
        return 0
    if not _agreed("Delete them?", yes):
        return 1
    for directory, steps in found:
        _delete(directory, [directory.checkpoints / str(step) for step in steps])
    return 0


def _listed(run: RunDirectory) -> Listed:
    name, size = run.path.name, sum(file.lstat().st_size for file in run.path.rglob("*") if not file.is_dir())
    steps = tuple(saved_steps(run.checkpoints))
    try:
        record = run.read()
        records = read_jsonl(run.metrics_jsonl) if run.metrics_jsonl.exists() else []
    except UserError:  # unreadable: it is listed, so that it can be removed
        return Listed(name, UNKNOWN, _STOPPED, 0, None, None, steps, size)
    total = record["starts"][-1].get("total_steps") if record["starts"] else None
    step = max((line["step"] for line in records), default=max(steps, default=0))
    losses = [line["loss"] for line in whole_split(records, "validation")]
    state = _IMPORTED if run.imported() else _FINISHED if step == total else _STOPPED
    try:
        with run.lock():
            pass
    except UserError:
        state = _BUSY
    return Listed(name, record["experiment"], state, step, total, losses[-1] if losses else None, steps, size)


def _best(run: RunDirectory) -> int | None:
    """The step of the best evaluation of a run that keeps it; None of one that does not."""
    selection = run.read()["starts"][-1].get("selection")
    if selection is None:
        return None
    records = read_jsonl(run.metrics_jsonl)
    return Best.of_records(records, BestMetric(**selection), max(line["step"] for line in records)).step


def _agreed(question: str, yes: bool) -> bool:
    try:
        agreed = yes or input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        agreed = False
    if not agreed:
        print("nothing was deleted")
    return agreed


def _delete(run: RunDirectory, folders: Sequence[Path]) -> None:
    """Delete folders of a run unless a process works in it."""
    try:
        with run.lock():
            for folder in folders:
                rmtree(folder)
    except UserError as error:
        print(f"kept: {error}")
