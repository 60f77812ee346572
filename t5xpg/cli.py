"""The command line: reads what was typed, calls the part that does it, says what went wrong in one message.

Nothing heavy is imported before the command is known: `t5xpg --help` takes a fraction of a second.
"""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t5xpg import exchange_commands, vocabulary_commands
from t5xpg.command_line import parser
from t5xpg.errors import UserError
from t5xpg.hosts.asked import asked, require_alone

if TYPE_CHECKING:
    from t5xpg.config import LoadedConfig

TRACEBACK_VARIABLE = "T5XPG_TRACEBACK"
# Commands of one process: where several are started, each would do all of the work, and into the same files.
ALONE = (
    "demo", "estimate", "record", "sweep", "reproduce", "prove-resume", "prove-hosts", "eval", "infer", "export",
    "import",
)  # fmt: skip
VERIFY_VARIABLE = "T5XPG_VERIFY"  # read where digests are compared, here and in child processes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for a mistake that was explained, 128 + n for signal n."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    overrides, rest = _take_overrides(arguments)
    options = parser(globals()).parse_args(rest)
    options.overrides = overrides
    if options.verify:
        os.environ[VERIFY_VARIABLE] = "1"
    # Cleaning up is left to the blocks that the exception passes; training takes the signal over while it runs.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        if options.command in ALONE:
            require_alone(f"make {options.command}", os.environ)
        return options.function(options) or 0
    except (UserError, OSError, RuntimeError) as error:
        if isinstance(error, BrokenPipeError):  # the reader of our output went away
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        message = _message(error)
        if message is None or options.traceback or os.environ.get(TRACEBACK_VARIABLE):
            raise
        print(f"t5xpg: error: {message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("t5xpg: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _message(error: Exception) -> str | None:
    """What the user is told of an error; None for one that only we can mend."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        where = f" ({error.filename})" if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        return f"{error.strerror}{where}." + (" Make room there, and run the same command again." if full else "")
    text = str(error)
    if "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
        return (
            "The device has not enough memory for the model and a batch. Lower BATCH_SIZE or TASK_FEATURE_LENGTHS, "
            f"or raise NUM_MICROBATCHES. ({text.splitlines()[0]})"
        )
    if "Unable to initialize backend" in text or "Unknown backend" in text:
        return f"{text.splitlines()[0]} Set JAX_PLATFORMS to what is installed here, or leave it out."
    return None


def _take_overrides(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Separate `--gin.X=…` and `--gin_file=…`, which argparse does not know, from the rest."""
    taken = [argument for argument in arguments if argument.startswith(("--gin.", "--gin_file="))]
    return taken, [argument for argument in arguments if argument not in taken]


def _words(text: str, name: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{name}={text}: {error}.") from None


def _load(options: argparse.Namespace) -> LoadedConfig:
    from t5xpg import config

    return config.load(options.experiment, *_overrides(options))


def _overrides(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """("NAME=value", …) and the gin files that were laid over the experiment."""
    from t5xpg import config

    overrides, files = config.split_overrides(" ".join([options.gin_overrides, *options.overrides]))
    chosen, first = config.chosen_loggers(getattr(options, "logger", None) or "")
    return [*chosen, *overrides], [*first, *files]


def _run_directory(options: argparse.Namespace, name: str, model_dir: str | None = None) -> Path:
    from t5xpg import paths

    chosen = options.run or model_dir
    if not chosen:
        return paths.runs_directory() / name
    return Path(chosen) if os.sep in chosen else paths.runs_directory() / chosen


def _demo(options: argparse.Namespace) -> int:
    from t5xpg import demo

    options.experiment = demo.EXPERIMENT
    loaded = _load(options)
    return demo.run(loaded, _run_directory(options, loaded.name, loaded.experiment.model_dir))


def _data(options: argparse.Namespace) -> int:
    from t5xpg import preparation
    from t5xpg.data import local_files, supervised
    from t5xpg.data.selection import Selection
    from t5xpg.data.text_sources import HuggingFace

    if options.hub is None and (options.config or options.revision):
        raise UserError("CONFIG=… and REVISION=… are of the dataset that HUB=… names.")
    hub = None if options.hub is None else HuggingFace(options.hub, options.config, options.revision, streamed=True)
    preparation.export_dataset(
        options.dataset,
        given=local_files.parse_files(options.files) if options.files else None,
        fields=supervised.parse_fields(options.fields) if options.fields else None,
        hub=hub,
        select=None if options.select is None else Selection.parse(options.select),
        limit=options.limit,
        max_bytes=options.max_mb,
        force=options.force,
        on_bad_line=options.on_bad_line,
    )
    return 0


def _vocab(options: argparse.Namespace) -> int:
    return vocabulary_commands.make(options)


def _tokens(options: argparse.Namespace) -> int:
    return vocabulary_commands.show(options)


def _cache(options: argparse.Namespace) -> int:
    from t5xpg import preparation

    preparation.cache(
        options.task,
        runner=options.runner,
        beam_options=_words(options.beam_options, "BEAM_OPTIONS"),
        staging=options.staging,
        module_import=tuple(options.module_import.replace(",", " ").split()),
        force=options.force,
    )
    return 0


def _check(options: argparse.Namespace) -> int:
    from t5xpg import checking, config, matrix

    if matrix.is_matrix(options.experiment):
        _without_overrides(options)
        return matrix.check(options.experiment, _run_directory(options, config.find_experiment(options.experiment)[0]))
    run = _run_directory(options, "") if options.run else None
    overrides, gin_files = _overrides(options)
    device = None
    if options.mesh or options.device or options.devices:
        from t5xpg import planning

        overrides, gin_files, device = planning.elsewhere(
            options.experiment, overrides, gin_files, options.mesh, options.device, options.devices
        )
    return checking.check(options.experiment, overrides, gin_files, run, device)


def _estimate(options: argparse.Namespace) -> int:
    from t5xpg import estimate

    return estimate.estimate(_load(options), options.price_per_hour)


def _plan(options: argparse.Namespace) -> int:
    from t5xpg import planning

    return planning.plan(
        options.experiment,
        *_overrides(options),
        mesh=options.mesh,
        device=options.device,
        devices=options.devices,
        as_json=options.json,
        output=Path(options.output) if options.output else None,
    )


def _record(options: argparse.Namespace) -> int:
    from t5xpg import paths, recording

    loaded = _load(options)
    output = Path(options.output) if options.output else paths.recordings_directory() / loaded.name
    return recording.record(loaded, steps=options.steps, output=output, force=options.force)


def _train(options: argparse.Namespace) -> int:
    from t5xpg import checking, hosts, training
    from t5xpg.rundir import RunDirectory

    processes = asked(options.coordinator, options.processes, options.process, os.environ)
    loaded = _load(options)
    if options.engine == "t5x":
        return _train_with_t5x(options, loaded)
    recorded = Path(options.recorded) if options.recorded else None
    path = _run_directory(options, loaded.name, loaded.experiment.model_dir)
    with hosts.join(processes) as group:
        checking.require(loaded, RunDirectory(path), data=recorded is None)
        return training.train(loaded, path, recorded=recorded, profiled=options.profile, group=group)


def _train_with_t5x(options: argparse.Namespace, loaded: LoadedConfig) -> int:
    from t5xpg import engines

    if options.recorded or options.profile:
        raise UserError("RECORDED=… and PROFILE=1 are of this program's own training: leave them out with ENGINE=t5x.")
    return engines.train(loaded, _run_directory(options, f"{loaded.name}_t5x"), options.initial)


def _sweep(options: argparse.Namespace) -> int:
    from t5xpg import config, matrix, sweeps

    _without_overrides(options)
    name, _ = config.find_experiment(options.experiment)
    folder = _run_directory(options, name)
    if matrix.is_matrix(options.experiment):
        if options.times:
            raise UserError("TIMES=1 is for the recipes of a sweep.toml: the cells of a matrix do different work.")
        return matrix.train(options.experiment, folder, jobs=options.jobs, only=options.cells or "*")
    if options.cells:
        raise UserError("CELLS=… chooses cells of a matrix.toml: the runs of a sweep depend on each other.")
    if options.times:
        return sweeps.time_steps(options.experiment, folder)
    return sweeps.sweep(options.experiment, folder, jobs=options.jobs)


def _without_overrides(options: argparse.Namespace) -> None:
    if any(_overrides(options)):
        raise UserError("What is trained stands in sweep.toml or matrix.toml: change it there, without GIN.")


def _reproduce(options: argparse.Namespace) -> int:
    from t5xpg import reproduction

    if any(_overrides(options)):
        raise UserError("The published run had no overrides: reproduce it without GIN.")
    loaded = _load(options)
    path = _run_directory(options, f"{loaded.name}_reproduced")
    return reproduction.reproduce(loaded, path, steps=options.steps)


def _prove_resume(options: argparse.Namespace) -> int:
    from t5xpg import proving

    loaded = _load(options)  # a mistake is said here, once
    overrides, files = _overrides(options)
    given = [*(f"--gin_file={file}" for file in files), *(f"--gin.{override}" for override in overrides)]
    path = _run_directory(options, f"{loaded.name}_proof")
    return proving.prove_resume(options.experiment, given, kills=options.kills, seed=options.kill_seed, path=path)


def _prove_hosts(options: argparse.Namespace) -> int:
    from t5xpg.proving import hosts

    loaded = _load(options)
    overrides, files = _overrides(options)
    given = [*(f"--gin_file={file}" for file in files), *(f"--gin.{override}" for override in overrides)]
    path = _run_directory(options, f"{loaded.name}_hosts")
    return hosts.prove_hosts(options.experiment, given, processes=options.processes, path=path)


def _eval(options: argparse.Namespace) -> int:
    from t5xpg import evaluation

    loaded = _load(options)
    run = _run_directory(options, loaded.name, loaded.experiment.model_dir)
    evaluation.evaluate(loaded, run, split=options.split, step=options.step, task=options.task)
    return 0


def _infer(options: argparse.Namespace) -> int:
    from t5xpg import inference

    loaded = _load(options)
    directory = _run_directory(options, loaded.name, loaded.experiment.model_dir)
    if sum(given is not None for given in (options.prompt, options.input, options.split)) != 1:
        raise UserError('Give one of PROMPT="The <extra_id_0> ruined my sleep", INPUT=file.jsonl and SPLIT=validation.')
    output = Path(options.output) if options.output else None
    if options.prompt is not None:
        inference.fill_in(loaded, directory, options.prompt, options.step)
    elif options.input is not None:
        inference.predict_file(loaded, directory, Path(options.input), output, options.step)
    else:
        inference.predict_split(loaded, directory, options.split, output, options.step)
    return 0


def _export(options: argparse.Namespace) -> int:
    loaded = _load(options)
    return exchange_commands.export(options, loaded, _run_directory(options, loaded.name, loaded.experiment.model_dir))


def _import(options: argparse.Namespace) -> int:
    return exchange_commands.take(options)


def _convert_gin(options: argparse.Namespace) -> int:
    return exchange_commands.convert(options)


def _report(options: argparse.Namespace) -> int:
    from t5xpg import matrix, report, sweeps
    from t5xpg.rundir import RunDirectory

    loaded = _load(options)
    if matrix.is_matrix(options.experiment):
        matrix.publish(options.experiment, _run_directory(options, loaded.name))
        return 0
    if sweeps.is_sweep(options.experiment):
        sweeps.publish(options.experiment, _run_directory(options, loaded.name))
        return 0
    directory = _run_directory(options, loaded.name, loaded.experiment.model_dir)
    report.publish(RunDirectory(directory), loaded.gin_file.parent)
    return 0


def _clean_runs(options: argparse.Namespace) -> int:
    from t5xpg import paths
    from t5xpg.rundir import clean_runs

    return clean_runs(paths.runs_directory(), yes=options.yes)
