"""One experiment and its run: the functions of the commands that check, train, measure, ask and exchange it."""

import contextlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from t5xpg import arguments
from t5xpg.base import paths, stores
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.requested_hosts import requested_hosts

if TYPE_CHECKING:
    from t5xpg.experiment.config import LoadedConfig

EXPORT_FORMATS = ("hf", "t5x", "peft")


def _new(options: Namespace) -> None:
    from t5xpg.experiment import new

    new.write(options.experiment, options.task, options.model, options.optimizer)


def _check(options: Namespace) -> int:
    from t5xpg.check import finding
    from t5xpg.experiment import config, gin_names

    overrides, gin_files = arguments.overrides(options)
    mistakes = gin_names.mistakes(config.find_experiment(options.experiment)[1], gin_files, overrides)
    if mistakes:  # before the libraries are loaded, which takes seconds
        return finding.report(finding.mistakes(mistakes, loaded=False), as_json=options.json)
    from t5xpg.check import checks
    from t5xpg.study.matrix.matrix import Matrix

    if Matrix.is_planned(options.experiment):
        arguments.without_overrides(options, arguments.FIXED_IN_STUDY)
        folder = arguments.run_directory(options, config.find_experiment(options.experiment)[0])
        if options.mesh or options.device or options.devices:
            raise UserError("MESH, DEVICE and DEVICES are for one experiment: a matrix is checked for this machine.")
        return Matrix(options.experiment, folder).check(as_json=options.json)
    device = None
    if options.mesh or options.device or options.devices:
        from t5xpg.check import plan

        overrides, gin_files, device = plan.simulate_devices(
            options.experiment, overrides, gin_files, options.mesh, options.device, options.devices
        )
    run = arguments.pull_run(options.run) if options.run else None
    return checks.check(options.experiment, overrides, gin_files, run, device, as_json=options.json)


def _estimate(options: Namespace) -> None:
    from t5xpg.check import estimate

    estimate.estimate(arguments.load_experiment(options), options.price_per_hour, as_json=options.json)


def _plan(options: Namespace) -> int:
    from t5xpg.check import plan

    return plan.plan(
        options.experiment,
        *arguments.overrides(options),
        mesh=options.mesh,
        device=options.device,
        devices=options.devices,
        as_json=options.json,
        output=arguments.path_of(options.output),
    )


def _train(options: Namespace) -> int:
    from t5xpg.check import checks
    from t5xpg.distributed import join
    from t5xpg.run.command_options import options_for
    from t5xpg.run.directory import RunDirectory
    from t5xpg.run.results import ended_early
    from t5xpg.train.train import train

    processes = requested_hosts(options.coordinator, options.processes, options.process, os.environ)
    loaded, path = arguments.load_with_run(options)
    if options.engine == "t5x":
        if processes is not None:
            raise UserError("ENGINE=t5x runs as one process here.")
        return _train_with_t5x(options, loaded)
    if options.initial:
        raise UserError("INITIAL=… is for ENGINE=t5x. Here INITIAL_CHECKPOINT names the run to start from.")
    recorded = arguments.path_of(options.recorded)
    with join(processes) as group:
        checks.require(loaded, RunDirectory(path), data=recorded is None)
        code = train(loaded, path, recorded=recorded, profiled=options.profile, group=group)
    if code == 0 and group.first:
        best = loaded.experiment.checkpoints.best.keep and ended_early(RunDirectory(path))
        step = " STEP=best" if best else ""
        print(f"evaluate it: make eval {options_for(loaded.name_or_file, path)}{step}", flush=True)
    return code


def _train_with_t5x(options: Namespace, loaded: "LoadedConfig") -> int:
    from t5xpg.exchange.t5x import engine

    if options.recorded or options.profile:
        raise UserError("RECORDED=… and PROFILE=1 are of this program's own training: leave them out with ENGINE=t5x.")
    folder = arguments.run_directory(options, f"{loaded.name}_t5x")
    try:
        engine.train(loaded, folder, options.initial)
    finally:
        stores.push(folder)
    return 0


def _record(options: Namespace) -> None:
    from t5xpg.train import recording

    loaded = arguments.load_experiment(options)
    output = arguments.path_of(options.output) or paths.recordings_directory() / loaded.name
    gin = " ".join([options.gin_overrides, *options.overrides]).strip()
    recording.record(loaded, steps=options.steps, output=output, force=options.force, gin=gin)


def _eval(options: Namespace) -> None:
    from t5xpg.evaluate import evaluation
    from t5xpg.evaluate.allowed import with_allowed

    loaded, run = arguments.load_run(options)
    loaded = with_allowed(loaded, options.allowed, options.pattern, options.task)
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        record = evaluation.evaluate(loaded, run, split=options.split, step=options.step, task=options.task)
    if options.json:
        print(json.dumps(record, ensure_ascii=False, indent=1), flush=True)


def _infer(options: Namespace) -> None:
    from t5xpg.evaluate import infer
    from t5xpg.evaluate.allowed import with_allowed

    loaded, run = arguments.load_with_run(options)
    loaded = with_allowed(loaded, options.allowed, options.pattern, options.task)
    if sum(source is not None for source in (options.prompt, options.input, options.split)) != 1:
        raise UserError('Give one of PROMPT="The <extra_id_0> ruined my sleep", INPUT=file.jsonl and SPLIT=validation.')
    if options.task and options.split is not None:
        raise UserError("The rows of a split have the prompt of their task: give TASK with PROMPT or INPUT.")
    if options.prompt is not None and options.output:
        raise UserError("OUTPUT=… is for INPUT=… and SPLIT=…: the answer to a PROMPT is printed, with JSON=1 a record.")
    task_prompt = infer.prompt_of(loaded, options.task) if options.task else ""
    output = arguments.path_of(options.output)
    if options.prompt is not None:
        infer.fill_in(loaded, run, options.prompt, options.step, task_prompt, as_json=options.json)
    elif options.input is not None:
        infer.predict_file(loaded, run, Path(options.input), output, options.step, task_prompt)
    else:
        infer.predict_split(loaded, run, options.split, output, options.step)


def _tune_decoding(options: Namespace) -> None:
    from t5xpg.evaluate import tuning

    given = arguments.values(options, "alphas", "beams", "split", "step")
    tuning.tune(*arguments.load_run(options), **given, typed=arguments.overrides(options))


def _significance(options: Namespace) -> None:
    from t5xpg.evaluate import significance
    from t5xpg.run.directory import RunDirectory

    run, other = (RunDirectory(arguments.run_of(options)), RunDirectory(arguments.pull_run(options.other)))
    significance.compare_predictions(run, other, options.split, options.evaluation, options.other_evaluation)


def _runs(options: Namespace) -> int:
    from t5xpg.run import listing
    from t5xpg.run.directory import RunDirectory

    folder, patterns = paths.runs_directory(), arguments.words(options.remove or "", "REMOVE")
    stores.pull_all(folder, (lambda name: True) if options.gc else RunDirectory.is_record)
    if patterns and options.gc:
        raise UserError("REMOVE=… deletes runs and GC=1 checkpoints of those that stay: give one of them.")
    if not patterns and not options.gc:
        listing.print_runs(folder, as_json=options.json)
        return 0
    runs, yes = [folder / run.name for run in listing.list_runs(folder)], options.yes
    code = listing.remove_runs(folder, patterns, yes=yes) if patterns else listing.remove_checkpoints(folder, yes=yes)
    for run in runs:
        (stores.push if run.exists() else stores.remove)(run)
    return code


def _export(options: Namespace) -> None:
    from t5xpg.exchange import to_peft, to_t5x, to_transformers

    loaded, run = arguments.load_with_run(options)
    if options.format not in EXPORT_FORMATS:
        raise UserError(f"FORMAT={options.format} is not known.{nearest(options.format, EXPORT_FORMATS)}")
    if options.push and options.format != "hf":
        raise UserError(f"PUSH=… uploads what transformers loads: leave FORMAT={options.format} out.")
    output = arguments.path_of(options.output)
    if options.format == "t5x":
        to_t5x.export(loaded, run, output)
    elif options.format == "peft":
        to_peft.export(loaded, run, output)
    else:
        folder, _ = to_transformers.export(loaded, run, output)
        if options.push:
            to_transformers.push(folder, options.push)


def _import(options: Namespace) -> None:
    from t5xpg.exchange import importing

    names = "name", "tokenizer", "sentinels", "optimizer", "force"
    importing.import_checkpoint(options.checkpoint, paths.runs_directory(), **arguments.values(options, *names))


def _convert_gin(options: Namespace) -> None:
    from t5xpg.exchange.t5x import convert_gin

    search, output = [Path(folder) for folder in options.search], arguments.path_of(options.output)
    convert_gin.write(Path(options.file), search, output, **arguments.values(options, "force", "partial"))


HANDLERS: Mapping[str, Callable[[Namespace], int | None]] = {
    "new": _new,
    "check": _check,
    "estimate": _estimate,
    "plan": _plan,
    "train": _train,
    "record": _record,
    "eval": _eval,
    "infer": _infer,
    "tune-decoding": _tune_decoding,
    "significance": _significance,
    "runs": _runs,
    "export": _export,
    "import": _import,
    "convert-gin": _convert_gin,
}
