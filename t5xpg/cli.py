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

from t5xpg.errors import UserError

if TYPE_CHECKING:
    from t5xpg.config import LoadedConfig

TRACEBACK_VARIABLE = "T5XPG_TRACEBACK"
_DIGITS = 40  # of a number on the command line
VERIFY_VARIABLE = "T5XPG_VERIFY"  # read where digests are compared, here and in child processes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for a mistake that was explained, 128 + n for signal n."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    overrides, rest = _take_overrides(arguments)
    options = _parser().parse_args(rest)
    options.overrides = overrides
    if options.verify:
        os.environ[VERIFY_VARIABLE] = "1"
    # Cleaning up is left to the blocks that the exception passes; training takes the signal over while it runs.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
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


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--traceback", action="store_true", help="show where an error was raised")
    common.add_argument("--verify", action="store_true", help="read files again instead of believing their digests")
    experiment = argparse.ArgumentParser(add_help=False, parents=[common])
    experiment.add_argument("experiment", help="name of a folder in experiments/, or a gin file")
    experiment.add_argument("--gin-overrides", default="", metavar="TEXT", help="'--gin.X=1 --gin.Y=2' as one text")
    experiment.add_argument("--run", metavar="FOLDER", help="the run directory, or a name in runs/")

    parser = argparse.ArgumentParser(
        prog="t5xpg",
        description="Reproducible experiments with T5-family models.",
        epilog="--gin.NAME=VALUE and --gin_file=FILE override an experiment's gin file.",
    )
    commands = parser.add_subparsers(metavar="command", required=True)

    def add(
        name: str, function: str, help: str, parent: argparse.ArgumentParser = experiment
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, description=help, parents=[parent])
        command.set_defaults(function=globals()[function])
        return command

    demo = add("demo", "_demo", "the whole chain on text that is already on the machine", common)
    demo.add_argument("--gin-overrides", default="", metavar="TEXT", help="as for train")
    demo.add_argument("--run", metavar="FOLDER", help="the run directory, or a name in runs/")
    data = add("data", "_data", "export a dataset to JSONL", common)
    data.add_argument("dataset")
    data.add_argument("--files", metavar="TEXT", help="'train=a.txt validation=b.jsonl.gz', or paths for all splits")
    data.add_argument("--limit", type=_positive, metavar="N", help="at most N rows of each split")
    data.add_argument("--on-bad-line", choices=("error", "skip"), default="error", help="what a malformed line does")
    data.add_argument("--force", action="store_true", help="export again even if it is up to date")
    cache = add("cache", "_cache", "cache a task with SeqIO", common)
    cache.add_argument("task")
    cache.add_argument("--runner", help="local (default: without Beam), or an Apache Beam runner")
    cache.add_argument("--beam-options", default="", metavar="TEXT", help="options for a Beam runner")
    cache.add_argument("--module-import", default="", metavar="MODULES", help="modules that register tasks")
    cache.add_argument("--force", action="store_true", help="cache again even if it is up to date")
    add("check", "_check", "say everything that can be known before training")
    estimate = add("estimate", "_estimate", "time some steps: parameters, memory, time and cost of the whole run")
    estimate.add_argument("--price-per-hour", type=_price, metavar="PRICE", help="of the machine, in any currency")
    record = add("record", "_record", "write the batches of a run, to train from them without TensorFlow")
    record.add_argument("--steps", type=_positive, required=True, metavar="N", help="how many updates to record for")
    record.add_argument("--output", metavar="FOLDER", help="the recording (default: recordings/<experiment>)")
    record.add_argument("--force", action="store_true", help="replace another recording")
    train = add("train", "_train", "train an experiment, or continue it where it stopped")
    train.add_argument("--recorded", metavar="FOLDER", help="take the batches from a recording")
    train.add_argument("--profile", action="store_true", help="write a trace of some updates")
    sweep = add("sweep", "_sweep", "train the runs of a sweep, or those that are left of it")
    sweep.add_argument("--jobs", type=_positive, default=1, metavar="N", help="runs at a time, sharing the cores")
    sweep.add_argument("--times", action="store_true", help="only measure what a step of each recipe takes")
    reproduce = add("reproduce", "_reproduce", "train again and compare with the published results")
    reproduce.add_argument("--steps", type=_positive, metavar="N", help="only so many updates of it")
    prove = add("prove-resume", "_prove_resume", "kill a run again and again, and compare it with one that was not")
    prove.add_argument("--kills", type=_positive, default=20, metavar="N")
    prove.add_argument("--kill-seed", type=int, default=0, metavar="N", help="chooses the moments")
    add("eval", "_eval", "measure a run's last checkpoint on the validation split")
    infer = add("infer", "_infer", "fill in blanks with a run's last checkpoint")
    infer.add_argument("--prompt", help='a text such as "The <extra_id_0> ruined my sleep"')
    infer.add_argument("--input", metavar="FILE", help='JSON lines with "inputs" (or "text")')
    infer.add_argument("--output", metavar="FILE", help="where the predictions go (default: the terminal)")
    add("report", "_report", "publish a run into its experiment's folder")
    clean = add("clean-runs", "_clean_runs", "list the run directories and delete them after a yes", common)
    clean.add_argument("--yes", action="store_true", help="delete without asking")
    return parser


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{ascii(text)[1:-1]} is not a positive number")
    return int(text)


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a price")
    return value


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

    return config.split_overrides(" ".join([options.gin_overrides, *options.overrides]))


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
    from t5xpg.data import local_files

    preparation.export_dataset(
        options.dataset,
        given=local_files.parse_files(options.files) if options.files else None,
        limit=options.limit,
        force=options.force,
        on_bad_line=options.on_bad_line,
    )
    return 0


def _cache(options: argparse.Namespace) -> int:
    from t5xpg import preparation

    preparation.cache(
        options.task,
        runner=options.runner,
        beam_options=_words(options.beam_options, "BEAM_OPTIONS"),
        module_import=tuple(options.module_import.replace(",", " ").split()),
        force=options.force,
    )
    return 0


def _check(options: argparse.Namespace) -> int:
    from t5xpg import checking

    run = _run_directory(options, "") if options.run else None
    return checking.check(options.experiment, *_overrides(options), run)


def _estimate(options: argparse.Namespace) -> int:
    from t5xpg import estimate

    return estimate.estimate(_load(options), options.price_per_hour)


def _record(options: argparse.Namespace) -> int:
    from t5xpg import paths, recording

    loaded = _load(options)
    output = Path(options.output) if options.output else paths.recordings_directory() / loaded.name
    return recording.record(loaded, steps=options.steps, output=output, force=options.force)


def _train(options: argparse.Namespace) -> int:
    from t5xpg import checking, training
    from t5xpg.rundir import RunDirectory

    loaded = _load(options)
    recorded = Path(options.recorded) if options.recorded else None
    path = _run_directory(options, loaded.name, loaded.experiment.model_dir)
    checking.require(loaded, RunDirectory(path), data=recorded is None)
    return training.train(loaded, path, recorded=recorded, profiled=options.profile)


def _sweep(options: argparse.Namespace) -> int:
    from t5xpg import config, sweeps

    if any(_overrides(options)):
        raise UserError("What a sweep trains stands in its sweep.toml: change it there, without GIN.")
    name, _ = config.find_experiment(options.experiment)
    folder = _run_directory(options, name)
    if options.times:
        return sweeps.time_steps(options.experiment, folder)
    return sweeps.sweep(options.experiment, folder, jobs=options.jobs)


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


def _eval(options: argparse.Namespace) -> int:
    from t5xpg import evaluation

    loaded = _load(options)
    evaluation.evaluate(loaded, _run_directory(options, loaded.name, loaded.experiment.model_dir))
    return 0


def _infer(options: argparse.Namespace) -> int:
    from t5xpg import inference

    loaded = _load(options)
    directory = _run_directory(options, loaded.name, loaded.experiment.model_dir)
    if (options.prompt is None) == (options.input is None):
        raise UserError('Give one of PROMPT="The <extra_id_0> ruined my sleep" and INPUT=file.jsonl.')
    if options.prompt is not None:
        inference.fill_in(loaded, directory, options.prompt)
    else:
        inference.predict_file(loaded, directory, Path(options.input), Path(options.output) if options.output else None)
    return 0


def _report(options: argparse.Namespace) -> int:
    from t5xpg import report, sweeps
    from t5xpg.rundir import RunDirectory

    loaded = _load(options)
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
