"""What can be typed: the commands, their options, and what their values may be."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from t5xpg import exchange_commands, vocabulary_commands

_DIGITS = 40  # of a number


def parser(functions: Mapping[str, Any]) -> argparse.ArgumentParser:
    """The commands with their options. functions: what each calls, by the names that stand here."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--traceback", action="store_true", help="show where an error was raised")
    common.add_argument("--verify", action="store_true", help="read files again instead of believing their digests")
    experiment = argparse.ArgumentParser(add_help=False, parents=[common])
    experiment.add_argument("experiment", help="name of a folder in experiments/, or a gin file")
    experiment.add_argument("--gin-overrides", default="", metavar="TEXT", help="'--gin.X=1 --gin.Y=2' as one text")
    experiment.add_argument("--run", metavar="FOLDER", help="the run directory, or a name in runs/")

    whole = argparse.ArgumentParser(
        prog="t5xpg",
        description="Reproducible experiments with T5-family models.",
        epilog="--gin.NAME=VALUE and --gin_file=FILE override an experiment's gin file.",
    )
    commands = whole.add_subparsers(dest="command", metavar="command", required=True)

    def add(
        name: str, function: str, help: str, parent: argparse.ArgumentParser = experiment
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, description=help, parents=[parent])
        command.set_defaults(function=functions[function])
        return command

    demo = add("demo", "_demo", "the whole chain on text that is already on the machine", common)
    demo.add_argument("--gin-overrides", default="", metavar="TEXT", help="as for train")
    demo.add_argument("--run", metavar="FOLDER", help="the run directory, or a name in runs/")
    data = add("data", "_data", "export a dataset to JSONL", common)
    data.add_argument("dataset")
    data.add_argument("--files", metavar="TEXT", help="'train=a.txt validation=b.jsonl.gz', or paths for all splits")
    data.add_argument("--fields", metavar="NAMES", help="of records: en,de or text,label or inputs,targets")
    data.add_argument("--hub", metavar="PATH", help="a dataset of the Hugging Face hub, or a folder like one; streamed")
    data.add_argument("--config", metavar="NAME", help="its configuration, of those that have several")
    data.add_argument("--revision", metavar="NAME", help="its revision: a commit, a tag, a branch")
    data.add_argument("--select", metavar="TEXT", help="only the files with such names, 'absl/* rich/*'")
    data.add_argument("--limit", type=_positive, metavar="N", help="at most N rows of each split")
    data.add_argument("--max-mb", type=_megabytes, metavar="N", help="at most N megabytes of text of each split")
    data.add_argument("--on-bad-line", choices=("error", "skip"), default="error", help="what a malformed line does")
    data.add_argument("--force", action="store_true", help="export again even if it is up to date")
    vocabulary_commands.add_options(
        add("vocab", "_vocab", "train a SentencePiece vocabulary on an export, or take a model that there is", common),
        add("tokens", "_tokens", "show a text as the tokens of a vocabulary, with their ids", common),
    )
    cache = add("cache", "_cache", "cache a task with SeqIO", common)
    cache.add_argument("task")
    cache.add_argument("--runner", help="local (default: without Beam), or an Apache Beam runner")
    cache.add_argument("--beam-options", default="", metavar="TEXT", help="options for a Beam runner")
    cache.add_argument("--staging", metavar="FOLDER", help="that Beam's workers and this machine can write")
    cache.add_argument("--module-import", default="", metavar="MODULES", help="modules that register tasks")
    cache.add_argument("--force", action="store_true", help="cache again even if it is up to date")
    check = add("check", "_check", "say everything that can be known before training")
    estimate = add("estimate", "_estimate", "time some steps: parameters, memory, time and cost of the whole run")
    estimate.add_argument("--price-per-hour", type=_price, metavar="PRICE", help="of the machine, in any currency")
    plan = add("plan", "_plan", "memory, collectives, time and MFU of a step on devices that are not here")
    for command in (check, plan):
        command.add_argument("--mesh", metavar="NAME", help="a file of gin/partitioning, or sizes: data=8,model=4")
        command.add_argument("--device", metavar="NAME", help="that is not here, of the table: h100, tpu-v5e, …")
        command.add_argument(
            "--devices", type=_positive, metavar="N", help="how many, where a mesh takes all there are"
        )
    plan.add_argument("--json", action="store_true", help="print it for a program to read")
    plan.add_argument("--output", metavar="FILE", help="write it as JSON, too")
    record = add("record", "_record", "write the batches of a run, to train from them without TensorFlow")
    record.add_argument("--steps", type=_positive, required=True, metavar="N", help="how many updates to record for")
    record.add_argument("--output", metavar="FOLDER", help="the recording (default: recordings/<experiment>)")
    record.add_argument("--force", action="store_true", help="replace another recording")
    train = add("train", "_train", "train an experiment, or continue it where it stopped")
    train.add_argument("--recorded", metavar="FOLDER", help="take the batches from a recording")
    train.add_argument("--coordinator", metavar="HOST:PORT", help="several processes: where the first one is")
    train.add_argument("--processes", metavar="N", help="how many they are")
    train.add_argument("--process", metavar="N", help="the number of this one, from 0 on")
    for command in (check, train):
        command.add_argument("--logger", metavar="NAMES", help="of gin/loggers: records go there, besides TensorBoard")
    train.add_argument("--profile", action="store_true", help="write a trace of some updates")
    train.add_argument("--engine", default="t5xpg", choices=("t5xpg", "t5x"), help="t5x: T5X itself, where it is")
    train.add_argument("--initial", metavar="FOLDER", help="the checkpoint of T5X that it starts from (t5x)")
    sweep = add("sweep", "_sweep", "train the runs of a sweep or a matrix, or those that are left of it")
    sweep.add_argument("--jobs", type=_positive, default=1, metavar="N", help="runs at a time, sharing the cores")
    sweep.add_argument("--cells", metavar="PATTERN", help="only these cells of a matrix: 'encoder_decoder,*,bytes'")
    sweep.add_argument("--times", action="store_true", help="only measure what a step of each recipe takes")
    reproduce = add("reproduce", "_reproduce", "train again and compare with the published results")
    reproduce.add_argument("--steps", type=_positive, metavar="N", help="only so many updates of it")
    prove = add("prove-resume", "_prove_resume", "kill a run again and again, and compare it with one that was not")
    prove.add_argument("--kills", type=_positive, default=20, metavar="N")
    prove.add_argument("--kill-seed", type=int, default=0, metavar="N", help="chooses the moments")
    hosts = add("prove-hosts", "_prove_hosts", "train on 1, 2, 4, … processes, kill one, move, and compare")
    hosts.add_argument("--processes", type=_positive, default=4, metavar="N", help="the most (default: 4)")
    evaluate = add("eval", "_eval", "measure a checkpoint of a run on the validation split")
    evaluate.add_argument("--split", metavar="NAME", help="another split of the experiment's task")
    evaluate.add_argument("--task", metavar="NAME", help="another task or mixture, of the same ids")
    infer = add("infer", "_infer", "predict with a checkpoint of a run: fill in blanks")
    for command in (evaluate, infer):
        command.add_argument("--step", type=_step, metavar="N", help="of the checkpoint, or 'best' (default: the last)")
    infer.add_argument("--prompt", help='a text such as "The <extra_id_0> ruined my sleep"')
    infer.add_argument("--input", metavar="FILE", help='JSON lines with "inputs" (or "text")')
    infer.add_argument("--split", metavar="NAME", help="of the experiment's task: all its rows")
    infer.add_argument("--output", metavar="FILE", help="where the predictions go (default: the terminal)")
    exchange_commands.add_options(
        add("export", "_export", "write a run's checkpoint for another program"),
        add("import", "_import", "make a run of another program's checkpoint", common),
        add("convert-gin", "_convert_gin", "write a gin file of T5X as an experiment", common),
    )
    add("report", "_report", "publish a run into its experiment's folder")
    clean = add("clean-runs", "_clean_runs", "list the run directories and delete them after a yes", common)
    clean.add_argument("--yes", action="store_true", help="delete without asking")
    return whole


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{ascii(text)[1:-1]} is not a positive number")
    return int(text)


def _megabytes(text: str) -> int:
    """Bytes."""
    if not text.isascii() or not text.replace(".", "", 1).isdecimal() or len(text) > _DIGITS or not float(text):
        raise argparse.ArgumentTypeError(f"{ascii(text)[1:-1]} is not a number of megabytes")
    return max(1, round(float(text) * 1e6))


def _step(text: str) -> int | str:
    """Of a checkpoint: "best", or a number, which is 0 for an imported one."""
    if text == "best":
        return text
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS:
        raise argparse.ArgumentTypeError(f"{ascii(text)[1:-1]} is neither a step nor best")
    return int(text)


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a price")
    return value
