"""`make reproduce`: train an experiment again in a clean run directory, and compare with what it has published."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from t5xpg.base import environment, paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_if_any, remove, sha256_of_file, write_json
from t5xpg.base.markdown import aligned
from t5xpg.base.paths import shown
from t5xpg.evaluate import evaluation
from t5xpg.experiment import assembly, config
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.identity import run_identity
from t5xpg.experiment.recipe import Recipe
from t5xpg.models.decoding.config import METHODS, DecodingConfig
from t5xpg.run.command_options import overrides_of
from t5xpg.run.directory import RunDirectory
from t5xpg.run.report import RESULTS_FILE
from t5xpg.run.results import collect, read_results
from t5xpg.study import kinds
from t5xpg.study.reproduce.comparison import (
    TOLERANCE,
    ComparedValue,
    ResultsComparison,
    compare,
    identity,
    other_run,
    other_stack,
)
from t5xpg.train import initial_state
from t5xpg.train.train import train

# Files in the run directory: what it reproduces, written at the beginning, and the outcome, written at the end.
MARK_FILE = ".reproduction.json"
OUTCOME_FILE = "reproduction.json"
# Keys that published results must have; others may be missing, as later versions added them.
_REQUIRED = (
    "command", "steps", "identity", "versions", "hardware", "curves", "first", "final", "best_validation", "num_params",
)  # fmt: skip

Results = Mapping[str, Any]


def reproduce(loaded: LoadedConfig, path: Path, *, steps: int | None = None) -> int:
    """Train the experiment as it was published, in the clean run directory `path`, and compare with results.json.

    steps: how many updates to train; only what was published up to there is compared. None: all updates, and the
    evaluation, if one was published. An unfinished reproduction of the same results in `path` continues, a finished one
    starts anew. Prints a table and keeps it as reproduction.json. Returns the exit code: 0 where the numbers are the
    same (bit for bit on the published kind of hardware, within `TOLERANCE` on another), 1 where they are not or where
    settings, seed, data, vocabulary or initial checkpoint changed (nothing is trained then), 128 + n where signal n
    stopped it. Raises UserError where nothing is published, where `loaded` has overrides (those of the published run
    are added here), for `steps` that were not published, and where `path` holds other things.
    """
    file = loaded.gin_file.parent / RESULTS_FILE
    published = _read_published(loaded, file)
    loaded = _with_overrides(loaded, published)
    most = int(min(published["steps"], loaded.experiment.total_steps))
    steps = most if steps is None else steps
    if not 1 <= steps <= most:
        raise UserError(f"STEPS={steps}: {loaded.name} has published {most:,} steps; give a number from 1 to {most}.")
    directory = RunDirectory(path)
    mark = {"experiment": loaded.name, "of": sha256_of_file(file), "steps": steps}
    _check_folder(directory, mark)
    rows = list(identity(published["identity"], _identity(loaded, directory)))
    if other_run(rows):
        _print_table(rows)
        changed = " and ".join(dict.fromkeys(row.what.split(":")[0] for row in other_run(rows)))
        print(f"different: the {changed} changed since {shown(file)} was published; nothing was trained")
        return 1
    if stack := other_stack(published["versions"], environment.versions()):
        print(
            f"{loaded.name} was published with {' and '.join(stack)}: the numbers are those of another stack, and are "
            f"compared within {TOLERANCE:g}. To repeat them with the packages of the published commit: "
            f"make verify-claim EXP={loaded.name_or_file}",
            flush=True,
        )
    with directory.lock():
        _check_folder(directory, mark)
        _begin(directory, mark)
    gin = " ".join(overrides_of(published["command"]))  # which are not arguments of this process
    options = [f"--gin-overrides={gin}"] if gin else []
    command = ["t5xpg", "train", loaded.name_or_file, *options, f"--run={shown(path)}"]
    code = train(loaded, path, until=steps, command=shlex.join(command))
    if code:
        return code
    evaluated = published.get("evaluation") or {}
    eval_step, count = evaluated.get("step"), evaluated.get("mean_of_checkpoints")
    complete = steps == published["steps"]
    if complete and eval_step is not None and not evaluation.is_up_to_date(directory, eval_step, count):
        step = f"mean:{count}" if count else None if eval_step == steps else "best"
        evaluation.evaluate(_with_decoding(evaluated, loaded), path, step=step)
    results = collect(directory, train_points=published["curves"]["train"]["step"])
    comparison = compare(published, results, steps=steps, changed_files=_changed_files(published.get("git"), loaded))
    _print(comparison, published, steps, file)
    write_json(directory.path / OUTCOME_FILE, {**mark, "same": comparison.same, **_as_json(comparison)})
    print(f"kept in {shown(directory.path / OUTCOME_FILE)}", flush=True)
    return 0 if comparison.same else 1


def _read_published(loaded: LoadedConfig, file: Path) -> Results:
    kinds.require_one_run(file.parent)
    if not file.exists():
        raise UserError(
            f"{loaded.name} has published no results to compare with: there is no {shown(file)}. Publish a run first: "
            + ", ".join(f"make {command} EXP={loaded.name_or_file}" for command in ("train", "eval", "report"))
        )
    published = read_results(file)
    missing = [name for name in _REQUIRED if name not in published]
    if missing:
        raise UserError(
            f"{shown(file)} lacks {', '.join(missing)}. Write it again with: make report EXP={loaded.name_or_file}"
        )
    if published.get("experiment") != loaded.name:
        raise UserError(f"{shown(file)} holds results of {published.get('experiment')}, not of {loaded.name}.")
    return published


def _with_overrides(loaded: LoadedConfig, published: Results) -> LoadedConfig:
    """The experiment with the overrides that the published run had. Raises UserError where `loaded` has some."""
    plain = config.load(str(loaded.gin_file))
    if loaded.full != plain.full:
        raise UserError(
            f"What is reproduced is {loaded.name} as it was published: leave out GIN= and --gin. To train a part of "
            f"it, give STEPS=n; for other settings, make train EXP={loaded.name_or_file} GIN=…"
        )
    overrides, gin_files = config.split_overrides(" ".join(overrides_of(published["command"])))
    return config.load(str(loaded.gin_file), overrides, gin_files) if overrides or gin_files else plain


def _with_decoding(evaluated: Results, loaded: LoadedConfig) -> LoadedConfig:
    """The experiment with the decoding of a published evaluation, which may be another than that of the training."""
    for facts in evaluated.get("predicted", {}).values():
        if facts.get("decoding", {}).get("method") in METHODS:  # a masked language model has a method of its own
            names = {field.name for field in dataclasses.fields(DecodingConfig)}
            decoding = DecodingConfig(**{name: value for name, value in facts["decoding"].items() if name in names})
            return dataclasses.replace(loaded, experiment=dataclasses.replace(loaded.experiment, decoding=decoding))
    return loaded


def _identity(loaded: LoadedConfig, directory: RunDirectory) -> dict[str, Any]:
    """The run's identity, as far as it is known before the run starts; exports and caches what is missing."""
    experiment = loaded.experiment
    own_identity = run_identity(experiment, Recipe.of(experiment.train_dataset, experiment.needs).make())
    # a run that continues needs no initial checkpoint
    has_origin = experiment.initial is not None or experiment.teacher is not None
    if has_origin and not any(directory.checkpoints.glob("[0-9]*")):
        origins = initial_state.begin(assembly.assemble(experiment)).origins
        own_identity |= {name: initial_state.identity(origin) for name, origin in origins.items()}
    return own_identity


def _check_folder(directory: RunDirectory, mark: Results) -> None:
    """Raise UserError where the folder holds no reproduction but other files, or an unfinished one of other results."""
    path = directory.path
    entries = [entry.name for entry in path.iterdir() if not entry.name.startswith(".")] if path.is_dir() else []
    foreign = sorted(set(entries) - _own_names(directory))
    if foreign or (entries and not (path / MARK_FILE).exists()):
        content = ", ".join(foreign[:5]) if foreign else "another run"
        raise UserError(
            f"A reproduction is trained in a clean folder, and {shown(path)} holds {content}. "
            "Name another one with RUN=…"
        )
    if (path / MARK_FILE).exists() and not (path / OUTCOME_FILE).exists():
        old = json_object_if_any(path / MARK_FILE)
        if old != mark:
            raise UserError(
                f"{shown(path)} holds an unfinished reproduction of {old.get('experiment')} with {old.get('steps')} "
                f"steps{'' if old.get('of') == mark['of'] else ' of results that were published before'}. Finish it "
                f"with STEPS={old.get('steps')}, name another folder with RUN=…, or delete it."
            )


def _begin(directory: RunDirectory, mark: Results) -> None:
    """Mark the folder as this reproduction's; a finished reproduction in it is deleted first."""
    path, record = directory.path, directory.run_json.name
    write_json(path / MARK_FILE, mark)
    if (path / OUTCOME_FILE).exists():
        print(f"the finished reproduction in {shown(path)} makes room for this one")
        # The files that say that it is finished, and a run, are deleted last: after a kill in between, the next call
        # goes on here.
        for name in (*sorted(_own_names(directory) - {OUTCOME_FILE, MARK_FILE, ".lock", record}), OUTCOME_FILE, record):
            remove(path / name)


def _own_names(directory: RunDirectory) -> set[str]:
    names = {entry.name for entry in vars(directory).values() if entry != directory.path}
    return names | {MARK_FILE, OUTCOME_FILE, ".lock"}


def _changed_files(git: Results | None, loaded: LoadedConfig) -> list[str] | None:
    """The files of the program and of the experiment that differ from the published commit; None if git cannot say."""
    if git is None or not environment.is_commit(git.get("commit")):
        return None
    folders = [str(paths.PACKAGE), str(paths.GIN), str(loaded.gin_file.resolve())]
    output = environment.git("diff", "--name-only", git["commit"], "--", *folders)
    return None if output is None else output.splitlines()


def _print(comparison: ResultsComparison, published: Results, steps: int, file: Path) -> None:
    total = "" if steps == published["steps"] else f" of {published['steps']:,}"
    print(f"\n{published['experiment']}, {steps:,}{total} steps, and {shown(file)}:\n")
    _print_table(comparison.numbers)
    print()
    _print_table(comparison.conditions)
    limit = "bit for bit" if comparison.exact else f"within {TOLERANCE:g}, on other hardware or versions"
    print(
        f"\n{'same:' if comparison.same else 'different: not'} {limit} what was published; largest difference "
        f"{comparison.largest:.2g}; changed: {', '.join(comparison.changed) or 'nothing'}"
    )


def _print_table(rows: Sequence[ComparedValue]) -> None:
    for line in aligned(("", "published", "here", ""), [astuple(row) for row in rows]):
        print(line, flush=True)


def _as_json(comparison: ResultsComparison) -> dict[str, Any]:
    largest = comparison.largest if comparison.largest < float("inf") else None
    return {
        "exact": comparison.exact,
        "tolerance": None if comparison.exact else TOLERANCE,
        "largest_difference": largest,
        "changed": comparison.changed,
        "numbers": [asdict(row) for row in comparison.numbers],
        "conditions": [asdict(row) for row in comparison.conditions],
    }
