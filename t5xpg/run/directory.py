"""The folder of a run: its files, its identity, and the history of its starts.

run.json holds the identity of the run ("identity": settings, seed, data, vocabulary, cache), which never changes, and a
history of its starts ("starts": time, step, command, versions, machine, state of the source).
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from t5xpg.base import environment, locks, paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import checked, copy_file, read_json, remove_abandoned, write_json
from t5xpg.base.paths import require_path_for_orbax, shown
from t5xpg.models.config import setting_name
from t5xpg.run.records import to_json

_FORMAT = 1
_LOCK, _EVALUATION_LOCK = ".lock", ".evaluation.lock"
NOT_SET = "not set"
_SHOWN_DIFFERENCES = 20


def training_hint(run: str) -> str:
    """A sentence that says how to train the experiment file with the name of a run; "" if there is no such file."""
    for folder in paths.experiments().values():
        if (file := folder / f"{run}.gin").is_file():
            experiment = run if folder.name == run else shown(file)
            return f" To train it, type `make train EXP={experiment} RUN={run}`."
    return ""


class RunDirectory:
    """Paths and records of one run."""

    writes_records: ClassVar[bool] = True  # whether this process writes them

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_gin = path / "config.gin"  # every binding of the experiment
        self.operative_gin = path / "operative.gin"  # the bindings that were used, defaults included
        self.run_json = path / "run.json"
        self.metrics_jsonl = path / "metrics.jsonl"  # determined by the run
        self.batches = path / "batches.sha256"  # as are the hashes of its batches
        self.timing_jsonl = path / "timing.jsonl"  # not determined by it
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.loggers = path / "loggers"  # files of loggers
        self.data_log = path / "data.log"  # the log of the data process
        self.evaluations = path / "evaluations"  # a folder for each (`run.evaluations`)
        self.evaluation_log = path / "evaluation.log"  # the log of the data process in the last evaluation
        self.inference_log = path / "inference.log"  # and its log in the last predictions for a split
        self.nonfinite = path / "nonfinite"  # batches of updates whose loss or gradient was not finite
        self.profile = path / "profile"  # traces of some updates
        self.vocabulary_model = path / "vocabulary.model"  # a copy, where the vocabulary has one
        self.report = path / "report"
        self.hosts = path / "hosts"  # the files of further processes, by their numbers

    @staticmethod
    def is_record(name: str) -> bool:
        """True if a file of a run is a record ("run.json"), not an array of a checkpoint ("checkpoints/8/params/…")."""
        parts = name.split("/")
        return parts[0] != "checkpoints" or parts[2:3] in (["meta"], ["metrics"])

    def exists(self) -> bool:
        """True if a run was started here."""
        return self.run_json.exists()

    def read(self) -> dict[str, Any]:
        """run.json: {"format", "experiment", "identity", "starts"}. Raises UserError where there is no run."""
        if not self.exists():
            raise UserError(
                f"{shown(self.path)} holds no run (it has no run.json).{training_hint(self.path.name)} `make runs` "
                "lists those that there are."
            )
        try:
            record = read_json(self.run_json)
            if isinstance(record, dict) and record.get("format") == _FORMAT:
                checked(record, {"experiment": str, "identity": dict, "starts": list})
                return record
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.run_json} is not readable ({error}). Delete {self.path} to start over.") from error
        raise UserError(
            f"{self.run_json} has another format than this version writes ({_FORMAT}). Read it with the version that "
            f"wrote it, or delete {self.path} to start over."
        )

    def imported(self) -> Mapping[str, Any] | None:
        """The origin of an imported run, {"source", "format", "sha256"}; None for one that was trained here."""
        origin = self.read()["identity"].get("imported")
        return origin if isinstance(origin, dict) else None

    def require_trainable(self) -> None:
        """Raise UserError if the folder holds an imported checkpoint: only another run can train it further."""
        if self.imported() is not None and "seed" not in self.read()["identity"]:
            raise UserError(
                f"{self.path} holds an imported checkpoint, which is evaluated and asked, and not trained on where it "
                "is. Start another run from it (INITIAL_CHECKPOINT), or name another run directory with RUN=…"
            )

    def check(self, experiment: str, identity: Mapping[str, Any], *, complete: bool = False) -> None:
        """Raise UserError if the folder holds another run than this one (the message names the differences) or only
        other files.

        complete: whether all of the identity is known; a part that is not known yet is not compared.
        """
        if not self.exists():
            self._require_own_files()
            return
        if "seed" in identity:  # it is to be trained
            self.require_trainable()
        changes = run_differences(self.read(), experiment, identity, complete=complete)
        if changes:
            raise UserError(self.mismatch(changes, identity.get("settings", {})))

    def _require_own_files(self) -> None:
        """Raise UserError if the path cannot be a run directory, or is a folder that holds other files and no run."""
        require_path_for_orbax(self.path)
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, and a run directory a folder. Name another one with RUN=…")
        if not self.path.is_dir() or self.exists():
            return
        # A run's own files may be there without run.json: its first start was interrupted. Hidden files are the lock
        # and leftovers of interrupted writes.
        own_names = {entry.name for entry in vars(self).values()}
        names = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
        others = [name for name in names if name not in own_names]
        if others:
            raise UserError(
                f"{self.path} is no run directory: it has no run.json and holds {', '.join(others[:5])}"
                f"{' and more' if len(others) > 5 else ''}. Name another one with RUN=…, or delete it."
            )

    def copy_vocabulary_model(self, file: str | None) -> None:
        """Copy the model file of the run's vocabulary, without which the token ids have no meaning."""
        if file is not None and not self.vocabulary_model.exists():
            copy_file(Path(file), self.vocabulary_model)

    def start(
        self,
        experiment: str,
        identity: Mapping[str, Any],
        *,
        step: int,
        command: str,
        devices: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        read: Iterable[Path] | None = None,
    ) -> dict[str, Any]:
        """Record a start from `step` (0: a new run) and return the new content of run.json.

        identity: nested JSON values that never change in this run; they must equal those of the starts before, or
        UserError names those that differ. devices: the accelerators. facts: further JSON values to record. read: see
        `environment.git_state`.
        """
        self.check(experiment, identity, complete=True)
        starts = self.read()["starts"] if self.exists() else []
        starts.append(
            {
                "time": time.time(),
                "step": step,
                "command": command,
                "git": environment.git_state(read=read),
                "versions": environment.versions(),
                "host": environment.host(),
                "devices": to_json(devices),
                "xla_flags": os.environ.get("XLA_FLAGS", ""),  # they decide the last bits
                **to_json(facts or {}),
            }
        )
        record = {"format": _FORMAT, "experiment": experiment, "identity": to_json(identity), "starts": starts}
        write_json(self.run_json, record)
        return record

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process; raises UserError if another process holds it, or if it is no run directory.

        The lock is released when the process ends, however it ends.
        """
        self._require_own_files()
        instead = "Wait for it, stop it, or name another run directory with RUN=…"
        with locks.hold(self.path / _LOCK, doing=f"working in {self.path}", instead=instead):
            for folder in (self.path, self.loggers):
                remove_abandoned(folder)
            yield

    @contextlib.contextmanager
    def evaluation_lock(self, *, wait: bool = True) -> Iterator[None]:
        """Be the only process that evaluates the run, which may be trained meanwhile. Waits for another one, with a
        message, or (`wait=False`) raises UserError at once."""
        doing, lock = f"evaluating {self.path}", self.path / _EVALUATION_LOCK
        with locks.hold(lock, doing=doing, instead="Wait for it, or stop it.", wait=print if wait else None):
            yield

    def is_locked(self) -> bool:
        """True if another process trains or evaluates the run."""
        return any(locks.is_held(self.path / name) for name in (_LOCK, _EVALUATION_LOCK))

    def mismatch(self, differences: Mapping[str, tuple[Any, Any]], settings: Mapping[str, Any]) -> str:
        """The message for a folder that holds another run. settings: the current ones."""
        named = [(_gin_name(key, settings), values) for key, values in differences.items()]
        listed = named[:_SHOWN_DIFFERENCES]
        width = max(len(name) for name, _ in listed)
        lines = [f"  {name:<{width}}  {short(old)} in the run, {short(new)} now" for name, (old, new) in listed]
        if len(differences) > len(listed):
            lines.append(f"  and {len(differences) - len(listed)} more")
        remedy = f"Set them back to continue it, name another run directory (RUN={self.path.name}_2), or delete "
        headline = f"{shown(self.path)} holds a run with other settings:"
        lines.append(f"{remedy}{shown(self.path)} to start over.")
        if any(key.endswith(".total_steps") for key in differences):
            lines.append(
                "The length of the schedule is part of the run. To train its model further in another run "
                f'(docs/finetuning.md): RUN={self.path.name}_2 GIN="--gin_file=gin/runs/initial_checkpoint.gin '
                f'--gin.INITIAL_CHECKPOINT={shown(self.path)} --gin.TRAIN_STEPS=…"'
            )
        return "\n".join([headline, *lines])


class SharedRunDirectory(RunDirectory):
    """The run directory for a process that is not the first one of several: it writes no records.

    Files that each process writes for itself lie in `hosts/<process>`. The directory is on a disk that all hosts share.
    """

    writes_records = False

    def __init__(self, path: Path, process: int) -> None:
        super().__init__(path)
        folder = self.hosts / str(process)
        self.data_log = folder / "data.log"
        self.nonfinite = folder / "nonfinite"  # its rows of the batches
        self.profile = folder / "profile"  # JAX takes the newest trace of a folder for its own


def run_differences(
    recorded: Mapping[str, Any], experiment: str, identity: Mapping[str, Any], *, complete: bool = False
) -> dict[str, tuple[Any, Any]]:
    """The differences between a run and the recorded one: {"settings.loss.z_loss": (recorded, now)}; empty if none.

    This alone decides whether two runs are the same. recorded: {"experiment", "identity"}. identity: as
    `experiment.identity.run_identity` gives it. complete: whether all of it is known; otherwise a part that it lacks is
    not compared.
    """
    old = {"experiment": recorded["experiment"], **recorded["identity"]}
    now = {"experiment": experiment, **to_json(identity)}
    return differing(old, now if complete else {**old, **now})


def differing(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """The leaves of two nested mappings that differ: {"data.splits.train.sha256": (old, new)}, "not set" if absent."""
    differences: dict[str, tuple[Any, Any]] = {}
    for name in [*old, *(name for name in new if name not in old)]:
        before, after = old.get(name, NOT_SET), new.get(name, NOT_SET)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            differences.update(differing(before, after, f"{prefix}{name}."))
        elif before != after:
            differences[f"{prefix}{name}"] = (before, after)
    return differences


def short(value: Any) -> str:
    """A value as a message shows it."""
    text = value if value == NOT_SET else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…{text[-1]}"  # the last character closes a text or a list


def _gin_name(key: str, settings: Mapping[str, Any]) -> str:
    """The name of a setting in gin files: "settings.model.config.emb_dim" is T5Config.emb_dim."""
    if not key.startswith("settings."):
        return key
    owner, _, field = key.removeprefix("settings.").rpartition(".")
    kind = settings.get(owner) if owner else "Experiment"
    is_unambiguous = sum(other == kind for other in settings.values()) <= 1
    if not isinstance(kind, str) or not is_unambiguous:
        return key.removeprefix("settings.")
    return setting_name(field) if kind == "T5Config" else f"{kind}.{field}"
