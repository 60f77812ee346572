"""A function for each command, which hands the options to the subpackage that does the work.

A subpackage is imported only by the commands that need it, so that `t5xpg --help` takes a fraction of a second.
"""

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
# Commands whose compiled programs are kept for the next time; training keeps its own.
_EVALUATES = ("eval", "infer", "tune-decoding")


def handle(options: Namespace) -> int:
    """Run the function of `options.command`; returns the exit code."""
    arguments.opened_runs.clear()
    with contextlib.ExitStack() as stack:
        if options.command in _EVALUATES:
            from t5xpg.train import compile_cache  # loads JAX

            stack.enter_context(compile_cache.kept_programs())
        code = _HANDLERS[options.command](options) or 0
    for run in arguments.opened_runs if options.command != "train" else ():  # training pushes by itself
        stores.push(run)
    return code


def _demo(options: Namespace) -> int:
    from t5xpg.study import demo

    options.experiment = demo.EXPERIMENT
    return demo.run(*arguments.load_with_run(options))


def _data(options: Namespace) -> None:
    from t5xpg.data.text import labelled, local_files
    from t5xpg.data.text.sources import HuggingFace
    from t5xpg.experiment import prepare

    if options.hub is None and (options.config or options.revision):
        raise UserError("CONFIG=… and REVISION=… are of the dataset that HUB=… names.")
    prepare.export_dataset(
        options.dataset,
        files=local_files.parse_files(options.files) if options.files else None,
        fields=labelled.parse_fields(options.fields) if options.fields else None,
        hub=None if options.hub is None else HuggingFace(options.hub, options.config, options.revision, streamed=True),
        max_bytes=options.max_mb,
        **arguments.values(options, "limit", "force", "on_bad_line", "min_characters"),
    )


def _vocab(options: Namespace) -> None:
    from t5xpg.data.tasks import task_names
    from t5xpg.data.text import labelled
    from t5xpg.data.text.manifest import read_manifest
    from t5xpg.data.vocab.training import SampleSize, VocabularySettings
    from t5xpg.experiment import prepare

    names = "size", "model", "character_coverage", "byte_fallback", "normalization", "seed", "sample"
    trained_with = arguments.given_values(options, *names)
    if options.tokenizer:
        if trained_with:
            raise UserError(f"{next(iter(trained_with)).upper()}=… is for training: TOKENIZER=… is copied.")
        if not options.name:
            raise UserError("TOKENIZER=… needs a VOCAB=…: what the vocabulary is called in the names of tasks.")
        copied = arguments.values(options, "name", "extra_ids", "eos_token", "pad_token", "force")
        record = prepare.copy_vocabulary(options.dataset, Path(options.tokenizer), **copied)
    else:
        if options.eos_token or options.pad_token:
            raise UserError("EOS_TOKEN and PAD_TOKEN are of a tokenizer that is copied: name its file with TOKENIZER=…")
        if options.sample:
            trained_with["sample"] = SampleSize.parse(options.sample)
        settings = VocabularySettings(**trained_with, **arguments.given_values(options, "extra_ids"))
        record = prepare.train_vocabulary(options.dataset, settings, **arguments.values(options, "name", "force"))
    fields = read_manifest(paths.data_directory() / record.dataset).fields
    kinds = [*labelled.supervised_tasks(fields), task_names.SPAN_CORRUPTION]
    task = task_names.task_name(record.dataset, kinds[0], f"{record.dataset}_{record.name}")
    print(f"in an experiment:\n  MIXTURE_OR_TASK_NAME = '{task}'\n  VOCAB_SIZE = {record.vocabulary['size']}")


def _tokens(options: Namespace) -> None:
    from t5xpg.data.vocab.token_listing import listing
    from t5xpg.experiment.data_state import vocabulary_of

    if options.text is not None and options.ids is not None:
        raise UserError("Give one of TEXT='The <extra_id_0> sat' and IDS=383,105,1.")
    vocabulary = vocabulary_of(options.tokenizer or options.vocabulary)
    print("\n".join(listing(vocabulary, options.text, options.ids)))


def _cache(options: Namespace) -> None:
    from t5xpg.experiment import prepare

    prepare.cache(
        options.task,
        runner=options.runner,
        beam_options=arguments.words(options.beam_options, "BEAM_OPTIONS"),
        staging=options.staging,
        module_import=tuple(options.module_import.replace(",", " ").split()),
        force=options.force,
    )


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
        arguments.without_overrides(options, _FIXED_IN_STUDY)
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


def _examples(options: Namespace) -> None:
    from t5xpg.check import examples
    from t5xpg.experiment.identity import data_config

    if options.experiment:
        loaded = arguments.load_experiment(options)
        config = data_config(loaded.experiment.train_dataset, loaded.experiment.random_seed)
        needs = loaded.experiment.needs
    elif options.task:
        arguments.without_overrides(options, "GIN changes an experiment: name one with EXP.")
        config, needs = examples.dataset_of_task(options.task), ()
    else:
        raise UserError("Name what to show: TASK=wikitext_span_corruption, or EXP=byt5_tiny for its task.")
    examples.show(config, options.count, task=options.task, module_import=options.module_import, needs=needs)


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
    from t5xpg import distributed
    from t5xpg.check import checks
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
    with distributed.join(processes) as group:
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

    loaded, run = arguments.load_run(options)
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        record = evaluation.evaluate(loaded, run, split=options.split, step=options.step, task=options.task)
    if options.json:
        print(json.dumps(record, ensure_ascii=False, indent=1), flush=True)


def _infer(options: Namespace) -> None:
    from t5xpg.evaluate import infer

    loaded, run = arguments.load_with_run(options)
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


def _report(options: Namespace) -> None:
    from t5xpg.run import report
    from t5xpg.run.directory import RunDirectory
    from t5xpg.study import kinds, references

    loaded, run = arguments.load_with_run(options)
    names, added_names = arguments.words(options.runs or "", "RUNS"), arguments.words(options.add or "", "ADD")
    if sum(map(bool, (options.run, names, added_names))) > 1:
        raise UserError("RUN=…, RUNS=… and ADD=… each name all runs: give one of them.")
    study = kinds.study_of(options.experiment, arguments.run_directory(options, loaded.name))
    if study is not None:
        arguments.without_overrides(options, _FIXED_IN_STUDY)
        if names or added_names:
            raise UserError(f"RUNS=…, ADD=…: {loaded.name} says itself which runs it has ({study.plan_file}).")
        study.publish(allow_changed=options.allow_changed)
        return
    runs = [RunDirectory(arguments.pull_run(name)) for name in names or added_names] or [RunDirectory(run)]
    home, allow_changed = loaded.gin_file.parent, options.allow_changed
    first, seeds = (None, runs) if added_names else (runs[0], runs[1:])
    report.publish(first, home, seeds=seeds, references=references.of_experiment(home), allow_changed=allow_changed)


def _site(options: Namespace) -> int:
    from t5xpg.site import build, serve

    page = build.build(arguments.path_of(options.output) or paths.WORKSPACE / "site")
    print(f"site: {paths.shown(page)}", flush=True)
    return serve.serve(page.parent) if options.serve else 0


def _watch(options: Namespace) -> int:
    from t5xpg.site import serve

    loaded, run = arguments.load_with_run(options)
    return serve.watch(loaded.name, run, paths.WORKSPACE / "site")


def _reproduce(options: Namespace) -> int:
    from t5xpg.study.reproduce import reproduce

    arguments.without_overrides(options, "The published run had no overrides: reproduce it without GIN.")
    loaded = arguments.load_experiment(options)
    folder = arguments.run_directory(options, f"{loaded.name}_reproduced")
    return reproduce.reproduce(loaded, folder, steps=options.steps)


def _verify_claim(options: Namespace) -> int:
    from t5xpg.experiment import config
    from t5xpg.study.reproduce import claim, receipts

    if (options.experiment is None) == (options.receipt is None):
        raise UserError("Give one of EXP=byt5_tiny, to verify, and RECEIPT=receipt.json, to check.")
    if options.receipt is not None:
        if names := arguments.given_values(options, "steps", "output"):
            raise UserError(f"{next(iter(names)).upper()}=… says nothing here: see `make help verify-claim`.")
        return receipts.check(Path(options.receipt))
    name, _ = config.find_experiment(options.experiment)
    output = arguments.path_of(options.output) or paths.runs_directory() / f"{name}_claim"
    return claim.verify(options.experiment, output, steps=options.steps)


_FIXED_IN_STUDY = "What is trained stands in sweep.toml or matrix.toml: change it there, without GIN."


def _sweep(options: Namespace) -> None:
    from t5xpg.experiment import config
    from t5xpg.study import kinds, launchers
    from t5xpg.study.study import Study
    from t5xpg.study.sweep.sweep import Sweep

    arguments.without_overrides(options, _FIXED_IN_STUDY)
    name, _ = config.find_experiment(options.experiment)
    study = kinds.study_of(options.experiment, arguments.run_directory(options, name))
    if not isinstance(study, Study):
        raise UserError(f"{name} is no sweep and no matrix ({kinds.PLAN_FILES}): make train EXP={options.experiment}")
    if options.times:
        if options.jobs != 1 or options.launcher != launchers.HERE or options.launcher_options or options.cells:
            raise UserError("TIMES=1 measures here, one recipe after the other: leave out JOBS, LAUNCHER and CELLS.")
        if not isinstance(study, Sweep):
            raise UserError("TIMES=1 is for the recipes of a sweep.toml: the cells of a matrix do different work.")
        study.time_steps()
        return
    launcher = launchers.launcher(options.launcher, options.launcher_options, options.jobs, study.folder / "jobs")
    study.train(jobs=options.jobs, cells=options.cells, launcher=launcher)


def _speedrun_check(options: Namespace) -> int:
    from t5xpg.study.speedrun.speedrun import EXPERIMENT, Speedrun

    speedrun = Speedrun(EXPERIMENT, arguments.run_directory(options, EXPERIMENT))
    return speedrun.check(options.entry, options.seeds, record=options.record)


def _prove_resume(options: Namespace) -> int:
    from t5xpg.study.proofs import resume

    overrides, path = _proof(options, "proof")
    more = {"seed": options.kill_seed, "recorded": arguments.path_of(options.recorded)}
    return resume.prove_resume(options.experiment, overrides, kills=options.kills, path=path, **more)


def _prove_hosts(options: Namespace) -> int:
    from t5xpg.study.proofs import hosts

    overrides, path = _proof(options, "hosts")
    return hosts.prove_hosts(options.experiment, overrides, processes=options.processes, path=path)


def _proof(options: Namespace, name: str) -> tuple[list[str], Path]:
    """The overrides, as arguments for the runs that a proof starts, and the folder of the proof."""
    from t5xpg.experiment import config

    experiment, _ = config.find_experiment(options.experiment)
    overrides, files = arguments.overrides(options)
    typed = [*(f"--gin_file={file}" for file in files), *(f"--gin.{override}" for override in overrides)]
    return typed, arguments.run_directory(options, f"{experiment}_{name}")


_HANDLERS: Mapping[str, Callable[[Namespace], int | None]] = {
    "demo": _demo,
    "data": _data,
    "vocab": _vocab,
    "tokens": _tokens,
    "cache": _cache,
    "new": _new,
    "check": _check,
    "examples": _examples,
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
    "report": _report,
    "site": _site,
    "watch": _watch,
    "reproduce": _reproduce,
    "verify-claim": _verify_claim,
    "sweep": _sweep,
    "speedrun-check": _speedrun_check,
    "prove-resume": _prove_resume,
    "prove-hosts": _prove_hosts,
}
