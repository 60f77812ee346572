"""`make runs`: lists the run directories with their progress and size, and deletes runs or checkpoints safely."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import json_object_if_any, remove
from t5xpg.base.markdown import UNKNOWN, aligned, cell
from t5xpg.base.paths import shown
from t5xpg.run.best import BestMetric, selected_step
from t5xpg.run.checkpoint.folders import CheckpointFolders, best_step, saved_steps
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import read_jsonl, records_of_split

_IMPORTED, _FINISHED, _STOPPED, _DIVERGED, _BUSY = "imported", "finished", "stopped", "diverged", "busy"
_MB = 1e6


@dataclass(frozen=True)
class RunSummary:
    """A run directory. state: "imported", "finished", "stopped", "diverged" (its loss became not finite), or "busy"
    where a process works in it. loss: the last validation's, in nats per target token. checkpoints: the saved steps."""

    name: str
    experiment: str
    state: str
    step: int
    total_steps: int | None
    loss: float | None
    checkpoints: tuple[int, ...]
    bytes: int


def list_runs(folder: Path) -> Iterator[RunSummary]:
    """The runs in a folder, and those of sweeps and matrices in theirs, by name ("mine", "sweep/run")."""
    for path in sorted(file.parent for files in ("*/run.json", "*/*/run.json") for file in folder.glob(files)):
        yield _summary(RunDirectory(path), path.relative_to(folder).as_posix())


def print_runs(folder: Path, *, as_json: bool = False) -> None:
    """List the runs in `folder`, as a table or as JSON."""
    runs = list(list_runs(folder))
    if as_json:
        print(json.dumps([asdict(run) for run in runs], indent=1))
        return
    if not runs:
        print(f"no run directories in {folder}")
        return
    header = ["run", "experiment", "state", "step", "of", "loss", "checkpoints", "MB"]
    rows = [
        [run.name, run.experiment, run.state, *map(cell, (run.step, run.total_steps, run.loss, len(run.checkpoints))),
         f"{run.bytes / _MB:,.1f}"]
        for run in runs
    ]  # fmt: skip
    print("\n".join(aligned(header, rows, numbers_from=3)))


def remove_runs(folder: Path, patterns: Sequence[str], *, yes: bool = False) -> int:
    """Delete the runs that match the patterns ("*", "mine_*"), after a confirmation on the terminal (`yes`: without).

    A run that a process works in stays. Returns the exit code: 1 where one stayed, the answer was no, or nobody could
    answer. Raises UserError for a pattern that matches no run.
    """
    runs = list(list_runs(folder))
    names = [run.name for run in runs]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(f"REMOVE={pattern}: there is no such run in {shown(folder)}.{nearest(pattern, names)}")
    matches = [run for run in runs if any(fnmatchcase(run.name, pattern) for pattern in patterns)]
    for run in matches:
        print(f"  {run.name}  {run.bytes / _MB:,.1f} MB  {run.state}, step {run.step:,}")
    if not _confirmed(f"Delete {'it' if len(matches) == 1 else f'these {len(matches)}'}?", yes):
        return 1
    return max(_delete(RunDirectory(path), [path]) for path in (folder / run.name for run in matches))


def remove_checkpoints(folder: Path, *, yes: bool = False) -> int:
    """Delete all checkpoints except the last and the best of each finished run. Asks and returns as `remove_runs`.

    Checkpoints that another run began from or has as its teacher stay, too. Where the last one is damaged, the last
    whole one stays, which the run goes on from.
    """
    deletions, runs = [], list(list_runs(folder))
    identities = [json_object_if_any(RunDirectory(folder / run.name).run_json).get("identity", {}) for run in runs]
    origins = [identity[name] for identity in identities for name in ("initial", "teacher") if name in identity]
    for run in runs:
        directory = RunDirectory(folder / run.name)
        if run.state != _FINISHED:
            continue
        needed = {origin["step"] for origin in origins if origin["experiment"] == run.experiment}
        superfluous = sorted(set(run.checkpoints[:-1]) - {_best(directory)} - needed)
        if superfluous and (whole := _last_whole(directory)) < run.checkpoints[-1]:
            superfluous = [step for step in superfluous if step < whole]
        if superfluous:
            deletions.append((directory, superfluous))
            print(f"  {run.name}  checkpoints {', '.join(f'{step:,}' for step in superfluous)}")
    if not deletions:
        print("no finished run has checkpoints besides its last and its best one")
        return 0
    if not _confirmed("Delete them?", yes):
        return 1
    return max(
        _delete(directory, [directory.checkpoints / str(step) for step in steps]) for directory, steps in deletions
    )


def _summary(run: RunDirectory, name: str) -> RunSummary:
    size = _size(run.path)
    steps = tuple(saved_steps(run.checkpoints))
    try:
        record = run.read()
        records = read_jsonl(run.metrics_jsonl)
    except UserError:  # unreadable: it is listed, so that it can be removed
        return RunSummary(name, UNKNOWN, _STOPPED, 0, None, None, steps, size)
    last_start: Mapping[str, Any] = record["starts"][-1] if record["starts"] else {}
    total = last_start.get("total_steps")
    step = max((line["step"] for line in records), default=max(steps, default=0))
    losses = [line["loss"] for line in records_of_split(records, "validation")]
    ended_early = (selected_step(records, last_start, step) or {}).get("ended_early")
    finished = (ended_early or step == total) and step in steps  # if not saved, it was killed after its last record
    allowed = record["identity"].get("settings", {}).get("skip_nonfinite", 0)
    diverged = len(list(run.nonfinite.glob("step_*"))) > allowed
    state = _IMPORTED if run.imported() else _FINISHED if finished else _DIVERGED if diverged else _STOPPED
    if run.is_locked():
        state = _BUSY
    step = max((step, *steps))
    return RunSummary(name, record["experiment"], state, step, total, losses[-1] if losses else None, steps, size)


def _size(folder: Path) -> int:
    """The bytes of all files below a folder, some of which a training may delete meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.lstat(os.path.join(place, name)).st_size
    return size


def _best(run: RunDirectory) -> int | None:
    """The step of the best checkpoint; None where no checkpoint has the metric."""
    selection = BestMetric(**(run.read()["starts"][-1].get("selection") or {}))
    assert selection.mode is not None
    return best_step(run.checkpoints, selection.metric, selection.mode)


def _last_whole(run: RunDirectory) -> int:
    """The last step whose checkpoint is whole; -1 where none is."""
    with suppress(UserError):  # it names all checkpoints, and training names them again
        return CheckpointFolders(run.checkpoints, read_only=True).latest() or -1
    return -1


def _confirmed(question: str, yes: bool) -> bool:
    try:
        confirmed = yes or input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        confirmed = False
    if not confirmed:
        print("nothing was deleted")
    return confirmed


def _delete(run: RunDirectory, folders: Sequence[Path]) -> int:
    """Delete folders of a run, and where links to other places lead, unless a process works in it. Returns 1 where one
    does or a folder cannot be deleted, or else 0."""
    if not run.path.exists():  # deleted meanwhile, or what a link leads to
        remove(run.path)
        return 0
    try:
        with run.lock(), run.evaluation_lock(wait=False):
            for folder in folders:
                if not folder.resolve().is_relative_to(folder.parent.resolve()):
                    remove(folder.resolve())
                remove(folder)
    except (UserError, OSError) as error:
        print(f"kept: {error}")
        return 1
    return 0
