"""The command line: reads what was typed, calls the part that does it, says what went wrong in one message.

Nothing heavy is imported before the command is known: `t5xpg --help` takes a fraction of a second.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.requested_hosts import requested_hosts, require_alone

if TYPE_CHECKING:
    from t5xpg.data.vocab.vocabulary import Vocabulary
    from t5xpg.experiment.config import LoadedConfig

FORMATS = ("hf", "t5x")


def add_exchange_options(
    exporting: argparse.ArgumentParser, importing: argparse.ArgumentParser, converting: argparse.ArgumentParser
) -> None:
    """The options of the commands."""
    exporting.add_argument("--format", default="hf", help="hf (default): a folder that transformers loads; t5x")
    exporting.add_argument(
        "--output", metavar="FOLDER", help="where it goes (default: huggingface or t5x in the run directory)"
    )
    importing.add_argument(
        "checkpoint", help="a folder (transformers, T5X, Mesh-TensorFlow), or a name on the hub: google/byt5-small"
    )
    importing.add_argument("--name", help="of the run (default: that of the checkpoint)")
    importing.add_argument("--tokenizer", metavar="FILE", help="instead of the checkpoint's own; bytes for none")
    importing.add_argument(
        "--sentinels", help="the convention of a byte vocabulary: byt5_google, transformers or seqio"
    )
    importing.add_argument("--optimizer", action="store_true", help="take the Adafactor of a T5X checkpoint, too")
    importing.add_argument("--force", action="store_true", help="replace what was imported before")
    converting.add_argument("file", help="a gin file for T5X: a family and size, a run, macros and bindings")
    converting.add_argument("--output", metavar="FILE", help="where the experiment goes (default: the terminal)")
    converting.add_argument(
        "--search", metavar="FOLDER", action="append", default=[], help="where other files that it includes are"
    )
    converting.add_argument("--force", action="store_true", help="replace a file that is there")


def export(options: argparse.Namespace, loaded: LoadedConfig, directory: Path) -> int:
    """Write a run's checkpoint for another program."""
    from t5xpg.exchange import exporting, to_t5x

    if options.format not in FORMATS:
        raise UserError(f"FORMAT={options.format} is not known.{nearest(options.format, FORMATS)}")
    output = Path(options.output) if options.output else None
    if options.format == "t5x":
        to_t5x.export(loaded, directory, output)
    else:
        exporting.export(loaded, directory, output)
    return 0


def take(options: argparse.Namespace) -> int:
    """Make a run of another program's checkpoint."""
    from t5xpg.exchange import importing

    importing.import_checkpoint(
        options.checkpoint,
        paths.runs_directory(),
        name=options.name,
        tokenizer=options.tokenizer,
        sentinels=options.sentinels,
        optimizer=options.optimizer,
        force=options.force,
    )
    return 0


def convert(options: argparse.Namespace) -> int:
    """Write T5X's gin file as an experiment of ours; say what of it is left out, and what is wrong with the rest."""
    from t5xpg.base.files import write_text
    from t5xpg.exchange.t5x import convert_gin
    from t5xpg.experiment import config

    output = Path(options.output) if options.output else None
    if output is not None and output.exists() and not options.force:
        raise UserError(f"{output} is there. Name another file, or replace it with --force.")
    converted = convert_gin.convert(Path(options.file), [Path(folder) for folder in options.search])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "converted.gin"
        write_text(file, converted.text)
        problems = config.examine(str(file))[1]
    if output is None:
        print(converted.text, end="")
    else:
        write_text(output, converted.text)
    name = str(output or "the experiment")
    said = {
        "needed here no more": converted.unneeded,
        "not carried over": converted.unsupported,
        "to be mended before it can be trained": [one.replace(str(file), name) for one in problems],
    }
    for what, lines in said.items():
        if lines:
            print("\n".join([f"{what}:", *(f"  {line}" for line in lines)]), file=sys.stderr)
    if output is not None:
        print(f"written to {output}")
    return 0


_COUNT_DIGITS = 12


def add_vocabulary_options(vocab: argparse.ArgumentParser, tokens: argparse.ArgumentParser) -> None:
    """The options of the two commands."""
    vocab.add_argument("dataset")
    vocab.add_argument("--size", type=_number, default=32_000, metavar="N", help="pieces, without the sentinels")
    vocab.add_argument("--extra-ids", type=_number, metavar="N", help="sentinels behind the pieces (default: 100)")
    vocab.add_argument("--model", default="unigram", help="unigram (default) or bpe")
    vocab.add_argument("--sample", default="1000000", metavar="N", help="train on so many lines, or bytes: 200MB")
    vocab.add_argument("--seed", type=_number, default=0, metavar="N", help="chooses the sample")
    vocab.add_argument("--character-coverage", type=float, default=0.9995, metavar="SHARE")
    vocab.add_argument("--byte-fallback", action="store_true", help="characters without a piece become bytes")
    vocab.add_argument("--normalization", default="nmt_nfkc", help="SentencePiece's rule; identity keeps all (code)")
    vocab.add_argument("--name", help="what it is called (default: <model>_<size>)")
    vocab.add_argument("--tokenizer", metavar="FILE", help="take a SentencePiece model or tokenizer.json instead")
    vocab.add_argument("--eos-token", metavar="TOKEN", help="the end token of a tokenizer that names none")
    vocab.add_argument("--pad-token", metavar="TOKEN", help="the padding of a tokenizer that names none")
    vocab.add_argument("--force", action="store_true", help="replace another one of the same name")
    tokens.add_argument(
        "vocabulary", help="a task of the table, or the path of a SentencePiece model or tokenizer.json"
    )
    tokens.add_argument("--text", help="may hold sentinels: <extra_id_0>")
    tokens.add_argument("--ids", help="ids instead of a text: 383,105,1")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > _COUNT_DIGITS:
        raise argparse.ArgumentTypeError(f"{ascii(text)[1:-1]} is not a number")
    return int(text)


def make(options: argparse.Namespace) -> int:
    """Train a vocabulary, or copy one."""
    from t5xpg.data.tasks import task_names
    from t5xpg.data.text import labelled
    from t5xpg.data.vocab.training import SampleSize, VocabularySettings
    from t5xpg.experiment import prepare

    if options.tokenizer:
        if not options.name:
            raise UserError("TOKENIZER=… needs a VOCAB=…: what the vocabulary is called in the names of tasks.")
        record = prepare.copy_vocabulary(
            options.dataset,
            Path(options.tokenizer),
            name=options.name,
            extra_ids=options.extra_ids,
            eos_token=options.eos_token,
            pad_token=options.pad_token,
            force=options.force,
        )
    else:
        settings = VocabularySettings(
            size=options.size,
            extra_ids=100 if options.extra_ids is None else options.extra_ids,
            model=options.model,
            character_coverage=options.character_coverage,
            byte_fallback=options.byte_fallback,
            normalization=options.normalization,
            sample=SampleSize.parse(options.sample),
            seed=options.seed,
        )
        record = prepare.train_vocabulary(options.dataset, settings, name=options.name, force=options.force)
    kinds = labelled.endings(prepare.dataset_fields()[record.dataset]) or [task_names.SPAN_CORRUPTION]
    task = task_names.task_name(record.dataset, kinds[0], f"{record.dataset}_{record.name}")
    size = record.vocabulary["size"]
    print(f"in an experiment:\n  MIXTURE_OR_TASK_NAME = '{task}'\n  VOCAB_SIZE = {size}", flush=True)
    return 0


def show(options: argparse.Namespace) -> int:
    """Print the special ids of a vocabulary and, where they are given, a text or ids token by token."""
    from t5xpg.data.vocab.vocabulary import OWN

    if options.text is not None and options.ids is not None:
        raise UserError("Give one of TEXT='The <extra_id_0> sat' and IDS=383,105,1.")
    vocabulary = _vocabulary(options.vocabulary)
    last = vocabulary.num_sentinels - 1
    named = "tokens of its own" if vocabulary.sentinels == OWN else f"as {vocabulary.sentinels} numbers them"
    print(f"{vocabulary.kind}, {vocabulary.size:,} ids: padding {vocabulary.pad_id}, end {vocabulary.eos_id}", end="")
    print("" if vocabulary.unk_id is None else f", unknown {vocabulary.unk_id}")
    if last >= 0:
        ends = f"<extra_id_0> {vocabulary.sentinel_id(0)} to <extra_id_{last}> {vocabulary.sentinel_id(last)}"
        print(f"sentinels, {named}: {ends}")
    if options.text is not None or options.ids is not None:
        ids = vocabulary.encode(options.text) if options.ids is None else _ids(options.ids, vocabulary)
        _print_tokens(vocabulary, ids)
    return 0


def _vocabulary(name: str) -> Vocabulary:
    """Of a task, or of a file."""
    from t5xpg.data.tasks import task_names
    from t5xpg.data.vocab.files import vocabulary_of_file
    from t5xpg.experiment import prepare

    if Path(name).exists():
        return vocabulary_of_file(Path(name))
    dataset, entries = prepare.dataset_of(name), task_names.vocabularies(paths.data_directory())
    if dataset is None:
        get = task_names.how_to_get(name, entries)
        raise UserError(f"There is no task of the table named {name}, and no such file.{get}")
    return task_names.row_of(name, dataset, entries).vocabulary


def _ids(text: str, vocabulary: Vocabulary) -> list[int]:
    words = text.replace(",", " ").split()
    if not all(word.isascii() and word.isdecimal() and len(word) <= _COUNT_DIGITS for word in words):
        raise UserError(f"IDS={text}: expected whole numbers, 383,105,1.")
    ids = [int(word) for word in words]
    if ids and max(ids) >= vocabulary.size:
        raise UserError(f"IDS={text}: the vocabulary has ids below {vocabulary.size:,}.")
    return ids


def _print_tokens(vocabulary: Vocabulary, ids: Sequence[int]) -> None:
    """A line a token: its id, here and where others number it otherwise, its bytes, the token."""
    others = _elsewhere(vocabulary)
    counts = vocabulary.token_bytes()
    print("  ".join(["      id", *(f"{name:>{max(8, len(name))}}" for name in others), "bytes", "token"]))
    for token in ids:
        index = vocabulary.sentinel_index(token)
        cells = [f"{token:8}"]
        for name, other in others.items():
            said: int | None = token
            if isinstance(other, int):
                said = {0: other, other: 0}.get(token, token)
            elif index is not None:
                said = other.sentinel_id(index) if index < other.num_sentinels else None
            cells.append(f"{'-' if said is None else said:>{max(8, len(name))}}")
        piece = vocabulary.piece(token)
        shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in piece)
        print("  ".join([*cells, f"{counts[token]:5}", shown]))
    print(f"{len(ids):,} tokens for {counts[list(ids)].sum():,} bytes; as text: {vocabulary.decode(ids)!r}")


def _elsewhere(vocabulary: Vocabulary) -> dict[str, Vocabulary | int]:
    """Who numbers the same tokens otherwise: a convention of sentinels, or the tokenizer itself (its padding)."""
    from t5xpg.data.vocab.vocabulary import BYT5_GOOGLE, BYTES, TRANSFORMERS

    if vocabulary.tokenizer_pad_id:
        return {"tokenizer": vocabulary.tokenizer_pad_id}
    if vocabulary.kind != BYTES:
        return {}
    return {
        TRANSFORMERS: dataclasses.replace(vocabulary, sentinels=TRANSFORMERS),
        BYT5_GOOGLE: dataclasses.replace(vocabulary, extra_ids=0, sentinels=BYT5_GOOGLE),
    }


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
    add_vocabulary_options(
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
    add_exchange_options(
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
    from t5xpg.experiment import config

    return config.load(options.experiment, *_overrides(options))


def _overrides(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """("NAME=value", …) and the gin files that were laid over the experiment."""
    from t5xpg.experiment import config

    overrides, files = config.split_overrides(" ".join([options.gin_overrides, *options.overrides]))
    chosen, first = config.chosen_loggers(getattr(options, "logger", None) or "")
    return [*chosen, *overrides], [*first, *files]


def _run_directory(options: argparse.Namespace, name: str, model_dir: str | None = None) -> Path:

    chosen = options.run or model_dir
    if not chosen:
        return paths.runs_directory() / name
    return Path(chosen) if os.sep in chosen else paths.runs_directory() / chosen


def _demo(options: argparse.Namespace) -> int:
    from t5xpg.study import demo

    options.experiment = demo.EXPERIMENT
    loaded = _load(options)
    return demo.run(loaded, _run_directory(options, loaded.name, loaded.experiment.model_dir))


def _data(options: argparse.Namespace) -> int:
    from t5xpg.data.text import labelled, local_files
    from t5xpg.data.text.sources import HuggingFace, Selection
    from t5xpg.experiment import prepare

    if options.hub is None and (options.config or options.revision):
        raise UserError("CONFIG=… and REVISION=… are of the dataset that HUB=… names.")
    hub = None if options.hub is None else HuggingFace(options.hub, options.config, options.revision, streamed=True)
    prepare.export_dataset(
        options.dataset,
        given=local_files.parse_files(options.files) if options.files else None,
        fields=labelled.parse_fields(options.fields) if options.fields else None,
        hub=hub,
        select=None if options.select is None else Selection.parse(options.select),
        limit=options.limit,
        max_bytes=options.max_mb,
        force=options.force,
        on_bad_line=options.on_bad_line,
    )
    return 0


def _vocab(options: argparse.Namespace) -> int:
    return make(options)


def _tokens(options: argparse.Namespace) -> int:
    return show(options)


def _cache(options: argparse.Namespace) -> int:
    from t5xpg.experiment import prepare

    prepare.cache(
        options.task,
        runner=options.runner,
        beam_options=_words(options.beam_options, "BEAM_OPTIONS"),
        staging=options.staging,
        module_import=tuple(options.module_import.replace(",", " ").split()),
        force=options.force,
    )
    return 0


def _check(options: argparse.Namespace) -> int:
    from t5xpg.check import checks
    from t5xpg.experiment import config
    from t5xpg.study.matrix import Matrix

    if Matrix.is_planned(options.experiment):
        _without_overrides(options)
        folder = _run_directory(options, config.find_experiment(options.experiment)[0])
        return Matrix(options.experiment, folder).check()
    run = _run_directory(options, "") if options.run else None
    overrides, gin_files = _overrides(options)
    device = None
    if options.mesh or options.device or options.devices:
        from t5xpg.check import plan

        overrides, gin_files, device = plan.elsewhere(
            options.experiment, overrides, gin_files, options.mesh, options.device, options.devices
        )
    return checks.check(options.experiment, overrides, gin_files, run, device)


def _estimate(options: argparse.Namespace) -> int:
    from t5xpg.check import estimate

    return estimate.estimate(_load(options), options.price_per_hour)


def _plan(options: argparse.Namespace) -> int:
    from t5xpg.check import plan

    return plan.plan(
        options.experiment,
        *_overrides(options),
        mesh=options.mesh,
        device=options.device,
        devices=options.devices,
        as_json=options.json,
        output=Path(options.output) if options.output else None,
    )


def _record(options: argparse.Namespace) -> int:
    from t5xpg.train import record as recording

    loaded = _load(options)
    output = Path(options.output) if options.output else paths.recordings_directory() / loaded.name
    return recording.record(loaded, steps=options.steps, output=output, force=options.force)


def _train(options: argparse.Namespace) -> int:
    from t5xpg import distributed
    from t5xpg.check import checks
    from t5xpg.run.directory import RunDirectory
    from t5xpg.train import training

    processes = requested_hosts(options.coordinator, options.processes, options.process, os.environ)
    loaded = _load(options)
    if options.engine == "t5x":
        return _train_with_t5x(options, loaded)
    recorded = Path(options.recorded) if options.recorded else None
    path = _run_directory(options, loaded.name, loaded.experiment.model_dir)
    with distributed.join(processes) as group:
        checks.require(loaded, RunDirectory(path), data=recorded is None)
        return training.train(loaded, path, recorded=recorded, profiled=options.profile, group=group)


def _train_with_t5x(options: argparse.Namespace, loaded: LoadedConfig) -> int:
    from t5xpg.exchange.t5x import engine

    if options.recorded or options.profile:
        raise UserError("RECORDED=… and PROFILE=1 are of this program's own training: leave them out with ENGINE=t5x.")
    return engine.train(loaded, _run_directory(options, f"{loaded.name}_t5x"), options.initial)


def _sweep(options: argparse.Namespace) -> int:
    from t5xpg.experiment import config
    from t5xpg.study import kinds

    _without_overrides(options)
    name, _ = config.find_experiment(options.experiment)
    study = kinds.study_of(options.experiment, _run_directory(options, name))
    if study is None:
        raise UserError(f"{name} is no sweep and no matrix ({kinds.PLAN_FILES}): train it with make train EXP={name}")
    return study.time_steps() if options.times else study.train(jobs=options.jobs, cells=options.cells)


def _without_overrides(options: argparse.Namespace) -> None:
    if any(_overrides(options)):
        raise UserError("What is trained stands in sweep.toml or matrix.toml: change it there, without GIN.")


def _reproduce(options: argparse.Namespace) -> int:
    from t5xpg.study import reproduce

    if any(_overrides(options)):
        raise UserError("The published run had no overrides: reproduce it without GIN.")
    loaded = _load(options)
    path = _run_directory(options, f"{loaded.name}_reproduced")
    return reproduce.reproduce(loaded, path, steps=options.steps)


def _prove_resume(options: argparse.Namespace) -> int:
    from t5xpg.study.proofs import resume

    loaded = _load(options)  # a mistake is said here, once
    overrides, files = _overrides(options)
    given = [*(f"--gin_file={file}" for file in files), *(f"--gin.{override}" for override in overrides)]
    path = _run_directory(options, f"{loaded.name}_proof")
    return resume.prove_resume(options.experiment, given, kills=options.kills, seed=options.kill_seed, path=path)


def _prove_hosts(options: argparse.Namespace) -> int:
    from t5xpg.study.proofs import hosts

    loaded = _load(options)
    overrides, files = _overrides(options)
    given = [*(f"--gin_file={file}" for file in files), *(f"--gin.{override}" for override in overrides)]
    path = _run_directory(options, f"{loaded.name}_hosts")
    return hosts.prove_hosts(options.experiment, given, processes=options.processes, path=path)


def _eval(options: argparse.Namespace) -> int:
    from t5xpg.evaluate import evaluation

    loaded = _load(options)
    run = _run_directory(options, loaded.name, loaded.experiment.model_dir)
    evaluation.evaluate(loaded, run, split=options.split, step=options.step, task=options.task)
    return 0


def _infer(options: argparse.Namespace) -> int:
    from t5xpg.evaluate import infer

    loaded = _load(options)
    directory = _run_directory(options, loaded.name, loaded.experiment.model_dir)
    if sum(given is not None for given in (options.prompt, options.input, options.split)) != 1:
        raise UserError('Give one of PROMPT="The <extra_id_0> ruined my sleep", INPUT=file.jsonl and SPLIT=validation.')
    output = Path(options.output) if options.output else None
    if options.prompt is not None:
        infer.fill_in(loaded, directory, options.prompt, options.step)
    elif options.input is not None:
        infer.predict_file(loaded, directory, Path(options.input), output, options.step)
    else:
        infer.predict_split(loaded, directory, options.split, output, options.step)
    return 0


def _export(options: argparse.Namespace) -> int:
    loaded = _load(options)
    return export(options, loaded, _run_directory(options, loaded.name, loaded.experiment.model_dir))


def _import(options: argparse.Namespace) -> int:
    return take(options)


def _convert_gin(options: argparse.Namespace) -> int:
    return convert(options)


def _report(options: argparse.Namespace) -> int:
    from t5xpg.run import report
    from t5xpg.run.directory import RunDirectory
    from t5xpg.study import kinds

    loaded = _load(options)
    study = kinds.study_of(options.experiment, _run_directory(options, loaded.name))
    if study is not None:
        study.publish()
        return 0
    directory = _run_directory(options, loaded.name, loaded.experiment.model_dir)
    report.publish(RunDirectory(directory), loaded.gin_file.parent)
    return 0


def _clean_runs(options: argparse.Namespace) -> int:
    from t5xpg.run.directory import clean_runs

    return clean_runs(paths.runs_directory(), yes=options.yes)
