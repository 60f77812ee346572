"""The table of commands, from which the command line, `make help` and the variables of Make are made.

It needs Python's own library alone, of any version from 3.8 on, as `help_page` does.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.option_values import alphas, count, counts, megabytes, number, price, seeds, step

OFF = ("", "0", "n", "no", "none", "false", "off")  # values of a switch in Make


@dataclass(frozen=True)
class Option:
    """An option of a command.

    variable: its name in Make; "" where Make has none. flag: its name for the program, "--run"; "experiment" is the
    command's argument, "--gin.NAME" a macro of the experiment, and "" an option that only the Makefile reads.
    value: the placeholder of the value in help. read: makes the value of the text; bool for a switch, list for a flag
    that may be repeated. default: the program's value without the option; make_default: the text that Make gives then.
    """

    variable: str
    flag: str
    value: str
    help: str
    read: Callable[[str], Any] = str
    default: Any = None
    make_default: str = ""
    choices: tuple[str, ...] | None = None
    required: bool = False

    @property
    def is_argument(self) -> bool:
        """True if it is the command's argument, which has no flag."""
        return self.flag != "" and not self.flag.startswith("-")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the option to the parser of its command."""
        text = self.help + (f" (default: {self.default})" if self.default else "")
        if self.is_argument:
            parser.add_argument(self.flag, help=text)
        elif self.read is bool:
            parser.add_argument(self.flag, action="store_true", help=text)
        elif self.read is list:
            parser.add_argument(self.flag, action="append", default=[], metavar=self.value, help=text)
        elif not self.flag.startswith("--gin."):  # those are taken from the arguments before they are parsed
            shown: dict[str, Any] = {"choices": self.choices} if self.choices else {"metavar": self.value}
            parser.add_argument(
                self.flag, type=self.read, default=self.default, required=self.required, help=text, **shown
            )

    def arguments(self, variables: Mapping[str, str]) -> list[str]:
        """The program's argument, if any, for the value of Make's variable."""
        text = variables.get(self.variable) or self.make_default
        if not text and (self.is_argument or self.required):
            raise UserError(f"{self.variable}={self.value} has to be given: {self.help}.")
        if self.is_argument:
            return [text]
        if not self.flag or not text:
            return []
        if self.read is bool:
            return [] if text.strip().lower() in OFF else [self.flag]
        return [f"{self.flag}={text}"]


@dataclass(frozen=True)
class Command:
    """A command of the program, or a target of the Makefile alone.

    one_process: the work of one process; where several are started, each would do all of it, into the same files.
    computes: runs a model, so that the settings for speed count.
    """

    name: str
    help: str
    options: tuple[Option, ...] = ()
    in_program: bool = True
    one_process: bool = False
    computes: bool = False


def _command(name: str, help: str, *options: Option, one_process: bool = False, computes: bool = False) -> Command:
    return Command(name, help, (*options, *_COMMON), one_process=one_process, computes=computes)


def _target(name: str, help: str, *options: Option) -> Command:
    return Command(name, help, options, in_program=False)


def _force(help: str) -> Option:
    return Option("FORCE", "--force", "1", help, bool)


def _output(value: str, help: str) -> Option:
    return Option("OUTPUT", "--output", value, help)


_COMMON = (
    Option("VERIFY", "--verify", "1", "read files again instead of believing their digests", bool),
    Option("", "--traceback", "", "show where an error was raised", bool),
)
_ALLOWED = (
    Option(
        "ALLOWED", "--allowed", "FILE", "the answers that predictions may be, one on each line; targets: the task's"
    ),
    Option("PATTERN", "--pattern", "REGEX", "a regular expression that whole predictions match"),
)
_GIN = Option("GIN", "--gin-overrides", "TEXT", "'--gin.X=1 --gin.Y=2' as one text", default="")
_RUN = Option("RUN", "--run", "FOLDER", "the run directory, or a name in runs/")
_EXP = Option("EXP", "experiment", "NAME", "a folder of experiments/, or a gin file", make_default="demo")
_REFUSED = Option("GIN", "--gin-overrides", "TEXT", "is refused: the plan or the published run is trained", default="")
_FIXED = (_EXP, _REFUSED, _RUN)
_WITHOUT_RUN = (_EXP, _GIN)
_EXPERIMENT = (*_WITHOUT_RUN, _RUN)
_RECORDED = Option("RECORDED", "--recorded", "FOLDER", "take the batches from a recording")
_JSON = Option("JSON", "--json", "1", "print it for a program to read", bool)
_DATASET = Option("DATASET", "dataset", "NAME", "the dataset's name", make_default="wikitext")
_TASK = "wikitext_span_corruption"
_TOKENIZER = Option("TOKENIZER", "--tokenizer", "FILE", "a SentencePiece model or tokenizer.json instead")
_LOGGER = Option("LOGGER", "--logger", "NAMES", "of gin/loggers: records go there, besides TensorBoard")
_STEP = Option(
    "STEP", "--step", "N", "of the checkpoint, 'best', or 'mean:10' of the last 10 (default: the last)", step
)
_MESH = (
    Option("MESH", "--mesh", "NAME", "a file of gin/partitioning, or sizes: data=8,model=4"),
    Option("DEVICE", "--device", "NAME", "a kind of the table that need not be here: h100, tpu-v5e, …"),
    Option("DEVICES", "--devices", "N", "how many, where a mesh takes all there are", count),
)
_MACHINE = Option("MACHINE", "", "KIND", "apple, cpu, cuda or tpu (default: the one installed, or found)")
_IMAGE = (
    Option("MACHINE", "", "KIND", "cuda (default) or cpu"),
    Option("PIP_CONF", "", "FILE", "pip's settings with a registry of yours"),
)
_PYTHON = Option("PYTHON", "", "FILE", "Python 3.12, 3.13 or 3.11 (default: the first that is found)")
_TESTS = Option("TESTS", "", "PATHS", "only these: 'tests/models tests/optim/test_step.py'")

GROUPS: dict[str, tuple[Command, ...]] = {
    "Start": (
        _target("help", "this list; `make help train` shows the variables of train"),
        _target("install", "install the packages of this kind of machine into .venv", _MACHINE, _PYTHON),
        _command(
            "demo", "the whole chain on the documentation of 26 Python packages", _GIN, _RUN,
            one_process=True, computes=True,
        ),
    ),
    "Text, vocabularies, caches": (
        _command(
            "data", "export a dataset to JSONL", _DATASET,
            Option("FILES", "--files", "TEXT", "'train=a.txt validation=b.jsonl.gz', or paths for all splits"),
            Option("FIELDS", "--fields", "NAMES", "of records: en,de or text,label or inputs,targets"),
            Option("HUB", "--hub", "PATH", "a dataset of the Hugging Face hub, or a folder like one; streamed"),
            Option("CONFIG", "--config", "NAME", "its configuration, of those that have several"),
            Option("REVISION", "--revision", "NAME", "its revision: a commit, a tag, a branch"),
            Option("LIMIT", "--limit", "N", "at most N rows of each split", count),
            Option("MAX_MB", "--max-mb", "N", "at most N megabytes of text of each split", megabytes),
            Option("MIN_CHARACTERS", "--min-characters", "N", "leave shorter texts of your own out", count),
            Option("ON_BAD_LINE", "--on-bad-line", "skip", "what to do with a malformed line", default="error",
                   choices=("error", "skip")),
            _force("export again what is up to date, or in place of another text"),
        ),
        _command(
            "vocab", "train a SentencePiece vocabulary on an export, or copy a tokenizer", _DATASET,
            Option("SIZE", "--size", "N", "pieces, without the sentinels (default: 32000)", number),
            Option("EXTRA_IDS", "--extra-ids", "N", "sentinels behind the pieces (default: 100)", number),
            Option("MODEL", "--model", "KIND", "unigram (default), bpe or word"),
            Option("SAMPLE", "--sample", "N", "train on so many lines (default: 1000000), or bytes: 200MB"),
            Option("SEED", "--seed", "N", "chooses the sample (default: 0)", number),
            Option("CHARACTER_COVERAGE", "--character-coverage", "SHARE", "of characters (default: 1 of few)", float),
            Option("BYTE_FALLBACK", "--byte-fallback", "1", "characters without a piece become bytes", bool),
            Option("NORMALIZATION", "--normalization", "RULE", "nmt_nfkc (default); identity keeps all (code)"),
            Option("VOCAB", "--name", "NAME", "the vocabulary's (default: <model>_<size>)"),
            _TOKENIZER,
            Option("EOS_TOKEN", "--eos-token", "TOKEN", "the end token of a tokenizer that names none"),
            Option("PAD_TOKEN", "--pad-token", "TOKEN", "the padding of a tokenizer that names none"),
            _force("replace another one of the same name"),
        ),
        _command(
            "tokens", "show a text as the tokens of a vocabulary, with their ids",
            Option("TASK", "vocabulary", "NAME", "a task, or the file of a tokenizer", make_default=_TASK),
            _TOKENIZER,
            Option("TEXT", "--text", "TEXT", "may hold sentinels: <extra_id_0>"),
            Option("IDS", "--ids", "IDS", "ids instead of a text: 383,105,1"),
        ),
        _command(
            "cache", "cache a task with SeqIO",
            Option("TASK", "task", "NAME", "the task's name", make_default=_TASK),
            Option("RUNNER", "--runner", "NAME", "local (without Beam), or an Apache Beam runner", default="local"),
            Option("BEAM_OPTIONS", "--beam-options", "TEXT", "options for a Beam runner", default=""),
            Option("STAGING", "--staging", "FOLDER", "that Beam's workers and this machine can write"),
            Option("MODULE_IMPORT", "--module-import", "MODULES", "modules that register tasks", default=""),
            _force("cache again even if it is up to date"),
        ),
    ),
    "Before a run": (
        _command(
            "new", "write the folder of a new experiment: a gin file that can be trained, and a page",
            Option("EXP", "experiment", "NAME", "its name", make_default="my_experiment"),
            Option("TASK", "--task", "NAME", "the task or mixture", default="pydocs_span_corruption"),
            Option("MODEL", "--model", "NAME", "a file of gin/models", default="byt5_tiny"),
            Option("OPTIMIZER", "--optimizer", "NAME", "a file of gin/optimizers (default: muon or muon_tiny)"),
        ),
        _command("check", "say everything that can be known before training", *_EXPERIMENT, _LOGGER, *_MESH, _JSON),
        _command(
            "examples", "show examples of a task as text and ids, what the decoder is fed, and the masks",
            Option("TASK", "--task", "NAME", "a task or mixture (default: the experiment's)"),
            Option("COUNT", "--count", "N", "so many examples", count, default=2),
            Option("EXP", "--experiment", "NAME", "whose lengths and converter are taken (default: lengths of 64)"),
            _GIN,
            Option("MODULE_IMPORT", "--module-import", "MODULES", "modules that register tasks", default=""),
            one_process=True,
        ),
        _command(
            "estimate", "time some steps: parameters, memory, time and cost of the whole run", *_WITHOUT_RUN,
            Option("PRICE_PER_HOUR", "--price-per-hour", "PRICE", "of the machine, in any currency", price),
            _JSON,
            one_process=True, computes=True,
        ),
        _command(
            "plan", "memory, collectives, time and MFU of a step on devices that are not here", *_WITHOUT_RUN, *_MESH,
            _JSON, _output("FILE", "write it as JSON, too"),
        ),
    ),
    "Train and use": (
        _command(
            "train", "train an experiment, or continue it where it stopped", *_EXPERIMENT, _LOGGER,
            Option("SKIP_NONFINITE", "--gin.SKIP_NONFINITE", "N", "updates that are not finite and may be left out"),
            _RECORDED,
            Option("COORDINATOR", "--coordinator", "HOST:PORT", "several processes: where the first one is"),
            Option("PROCESSES", "--processes", "N", "how many they are"),
            Option("PROCESS", "--process", "N", "the number of this one, from 0 on"),
            Option("PROFILE", "--profile", "1", "write a trace of some updates", bool),
            Option("ENGINE", "--engine", "t5x", "t5x: T5X itself, where it is installed", default="t5xpg",
                   choices=("t5xpg", "t5x")),
            Option("INITIAL", "--initial", "FOLDER", "the checkpoint of T5X that it starts from (t5x)"),
            computes=True,
        ),
        _command(
            "record", "write the batches of a run, to train from them without TensorFlow", *_WITHOUT_RUN,
            Option("STEPS", "--steps", "N", "how many updates to record for", count, required=True),
            _output("FOLDER", "the recording (default: recordings/<experiment>)"),
            _force("replace another recording"),
            one_process=True,
        ),
        _command(
            "eval", "measure a checkpoint of a run, as the run was made, on a held-out split", *_EXPERIMENT, _STEP,
            Option("SPLIT", "--split", "NAME", "another split of the run's task (default: its validation)"),
            Option("TASK", "--task", "NAME", "another task or mixture, of the same ids"),
            *_ALLOWED,
            _JSON,
            one_process=True, computes=True,
        ),
        _command(
            "infer", "predict with a checkpoint of a run: fill in blanks", *_EXPERIMENT, _STEP,
            Option("PROMPT", "--prompt", "TEXT", 'a text such as "The <extra_id_0> ruined my sleep"'),
            Option("INPUT", "--input", "FILE", 'JSON lines with "inputs" (or "text")'),
            Option("SPLIT", "--split", "NAME", "of the experiment's task: all its rows"),
            Option("TASK", "--task", "NAME", "a task whose own prompt is put before PROMPT, or each row of INPUT"),
            _output("FILE", "where the predictions go (default: the terminal)"),
            *_ALLOWED,
            Option("JSON", "--json", "1", "of PROMPT: print the record that INPUT gives", bool),
            one_process=True, computes=True,
        ),
        _command(
            "tune-decoding", "beam search with several length penalties, on the validation split", *_EXPERIMENT, _STEP,
            Option("ALPHAS", "--alphas", "NUMBERS", "of the penalty", alphas, default="0.2,0.6,1.0,1.4"),
            Option("BEAMS", "--beams", "NUMBERS", "4,5: how many beams (default: the experiment's, or 4)", counts),
            Option("SPLIT", "--split", "NAME", "another split of the experiment's task, and never a test"),
            one_process=True, computes=True,
        ),
        _command(
            "significance", "a paired bootstrap of what two runs predicted, after `make eval` of both", *_EXPERIMENT,
            Option("OTHER", "--other", "FOLDER", "the other run's directory, or a name in runs/", required=True),
            Option("SPLIT", "--split", "NAME", "the split that is compared (default: the run's validation)"),
            Option("EVALUATION", "--evaluation", "NAME", "an evaluation of the run: a folder of its evaluations/"),
            Option("OTHER_EVALUATION", "--other-evaluation", "NAME", "an evaluation of the other run"),
        ),
        _command(
            "runs", "list the run directories: how far each is, its loss and its size",
            Option("REMOVE", "--remove", "NAMES", "delete these after a yes: 'mine_* other'"),
            Option("GC", "--gc", "1", "delete finished runs' checkpoints but the last and best, after a yes", bool),
            _JSON,
            Option("", "--yes", "", "delete without asking", bool),
        ),
    ),
    "Files of other programs": (
        _command(
            "export", "write a run's checkpoint for transformers, peft or T5X, and compare", *_EXPERIMENT,
            Option("FORMAT", "--format", "NAME", "hf (for transformers), t5x, peft", default="hf"),
            _output("FOLDER", "where it goes (default: huggingface, or the format's name, in the run directory)"),
            Option("PUSH", "--push", "OWNER/NAME", "upload it to the Hugging Face hub"),
            one_process=True,
        ),
        _command(
            "import", "make a run of a checkpoint of transformers, T5X or Mesh-TensorFlow",
            Option("CHECKPOINT", "checkpoint", "NAME", "a folder, or a name on the hub: google/byt5-small"),
            Option("NAME", "--name", "NAME", "of the run (default: that of the checkpoint)"),
            Option("TOKENIZER", "--tokenizer", "FILE", "instead of the checkpoint's own; bytes for none"),
            Option("SENTINELS", "--sentinels", "NAME", "of a byte vocabulary: byt5_google, transformers or seqio"),
            Option("OPTIMIZER", "--optimizer", "1", "import the Adafactor of a T5X checkpoint, too", bool),
            _force("replace what was imported before"),
            one_process=True,
        ),
        _command(
            "convert-gin", "write a gin file of T5X as an experiment",
            Option("FILE", "file", "FILE", "a gin file for T5X: a family and size, a run, macros and bindings"),
            _output("FILE", "where the experiment goes (default: the terminal)"),
            Option("SEARCH", "--search", "FOLDER", "where other files that it includes are", list),
            Option("PARTIAL", "--partial", "1", "leave out what cannot be carried over", bool),
            _force("replace a file that is there"),
        ),
    ),
    "Results and proofs": (
        _command(
            "report", "publish a run: results.json, page and curve of its experiment", *_EXPERIMENT,
            Option("RUNS", "--runs", "NAMES", "runs of several seeds, 'a a_1 a_2': the first in full, and the range"),
            Option("ADD", "--add", "NAMES", "runs of further seeds, put beside what is published"),
            Option("ALLOW_CHANGED", "--allow-changed", "1", "publish what is of no commit; the page says so", bool),
        ),
        _command(
            "site", "write experiments, runs and documentation as a site, which opens from its files",
            _output("FOLDER", "where it goes (default: site)"),
            Option("SERVE", "--serve", "1", "show it at an address of this machine, with runs as they are", bool),
        ),
        _command("watch", "show the page of an experiment at an address of this machine while it trains", *_EXPERIMENT),
        _command(
            "reproduce", "train again in a clean run directory and compare with the published results", *_FIXED,
            Option("STEPS", "--steps", "N", "only so many updates of it", count),
            one_process=True, computes=True,
        ),
        _command(
            "verify-claim", "repeat a published run from a clone of its commit, or check a receipt of that",
            Option("EXP", "--experiment", "NAME", "whose published results are verified"),
            Option("STEPS", "--steps", "N", "only so many updates of it", count),
            _output("FOLDER", "where clone and receipt go (default: runs/<experiment>_claim)"),
            Option("RECEIPT", "--receipt", "FILE", "one that came back, to check"),
            one_process=True,
        ),
        _command(
            "sweep", "train the runs of a sweep or a matrix, or those that are left of it", *_FIXED,
            Option("JOBS", "--jobs", "N", "runs at a time, sharing the cores", count, default=1),
            Option("LAUNCHER", "--launcher", "NAME", "slurm: each run is a job, by submitit", default="here"),
            Option("LAUNCHER_OPTIONS", "--launcher-options", "TEXT", "submitit's: 'timeout_min=600 slurm_partition=a'",
                   default=""),
            Option("CELLS", "--cells", "PATTERN", "only these cells of a matrix: 'encoder_decoder,*,bytes'"),
            Option("TIMES", "--times", "1", "only measure what a step of each recipe takes", bool),
            one_process=True, computes=True,
        ),
        _command(
            "speedrun-check", "train an entry of the speedrun anew, and accept or refuse it",
            Option("ENTRY", "entry", "NAME", "a folder of experiments/speedrun/records"), _RUN,
            Option("SEEDS", "--seeds", "NUMBERS", "of the runs: 0,1,2,3 (default: 0,1,2)", seeds),
            Option("RECORD", "--record", "1", "write its record.json, of the code of a commit", bool),
            one_process=True, computes=True,
        ),
        _command(
            "prove-resume", "kill a run again and again, and compare it with one that was not", *_EXPERIMENT,
            Option("KILLS", "--kills", "N", "how often", count, default=20),
            Option("KILL_SEED", "--kill-seed", "N", "chooses the moments (default: 0)", int, default=0),
            _RECORDED,
            one_process=True,
        ),
        _command(
            "prove-hosts", "train on 1, 2, 4, … processes, kill one, go on with another number, and compare",
            *_EXPERIMENT,
            Option("PROCESSES", "--processes", "N", "at most", count, default=4),
            one_process=True,
        ),
    ),
    "Docker": (
        _target("docker-build", "build the image of docker/Dockerfile", *_IMAGE),
        _target("docker-train", "train an experiment in the image, into runs/", *_EXPERIMENT, *_IMAGE),
    ),
    "Work on the repository": (
        _target("test", "run the unit tests, which stay in their process", _TESTS),
        _target("test-all", "run the unit tests and those that start programs", _TESTS),
        _target("prove", "run the long proofs: kills at random, reproductions, pages of experiments, fuzz", _TESTS),
        _target("lint", "check format, lint and types"),
        _target("format", "format the code"),
        _target("bench", "measure speeds beside those of other programs, about 20 minutes",
                Option("ROWS", "", "NAMES", "only some: 'step caching'"),
                Option("REPEATS", "", "N", "how often each is measured")),
        _target("gpu", "measure a GPU: correctness and speed, about a quarter of an hour",
                Option("PARTS", "", "NAMES", "only some: 'units parity step plan decoding'"),
                Option("PART_SECONDS", "", "N", "what each part may take (default: each part's own)")),
        _target("bench-peers", "install what `make bench` compares with into .venv-bench: torch and transformers",
                _PYTHON),
        _target("fuzz", "look for inputs that break what reads files and options (Linux)",
                Option("SECONDS", "", "N", "for all readers together", default=60)),
        _target("goldens", "make the reference tensors of the tests again, with torch and transformers", _PYTHON),
        _target("lock", "resolve pyproject.toml into the hashed locks of requirements/",
                Option("UPGRADE", "", "1", "the newest versions, where there are newer ones")),
        _target("clean", "remove caches and compiled files"),
        _target("clean-data", "remove the exported text that DATASET names, after a question; vocabularies stay"),
    ),
}  # fmt: skip
COMMANDS: dict[str, Command] = {one.name: one for group in GROUPS.values() for one in group}


def parser() -> argparse.ArgumentParser:
    """The program's commands with their options."""
    program = argparse.ArgumentParser(
        prog="t5xpg",
        description="Reproducible experiments with T5-family models.",
        allow_abbrev=False,  # a run's record holds what was typed
        epilog="--gin.NAME=VALUE and --gin_file=FILE override an experiment's gin file.",
    )
    commands = program.add_subparsers(dest="command", metavar="command", required=True)
    for command in COMMANDS.values():
        if command.in_program:
            text = command.help
            command_parser = commands.add_parser(command.name, help=text, description=text, allow_abbrev=False)
            for option in command.options:
                option.add_to(command_parser)
    return program


def from_make(name: str, variables: Mapping[str, str]) -> list[str]:
    """The program's arguments for `make name` with these variables: ["train", "byt5_tiny", "--run=mine"].

    variables: with TYPED_VARIABLES, the names that were typed behind make, and TYPED_TARGETS. Raises UserError for a
    typed name that none of the targets has.
    """
    goals = {name, "install", *variables.get("TYPED_TARGETS", "").split()} & COMMANDS.keys()
    variable_names = {option.variable for goal in goals for option in COMMANDS[goal].options}
    for typed in variables.get("TYPED_VARIABLES", "").split():
        if typed not in variable_names:
            value, binding = (shlex.quote(f"{start}{variables[typed]}") for start in ("", f"--gin.{typed}="))
            ways = [f"a setting of an experiment: GIN={binding}"] if "GIN" in variable_names else []
            ways.append(f"of the environment: {typed}={value} make {name}")
            raise UserError("\n  ".join([f"make {name} has no {typed}.{nearest(typed, variable_names - {''})}", *ways]))
    arguments = [name, *(text for option in COMMANDS[name].options for text in option.arguments(variables))]
    # a name that begins as an option does is a name
    names = [text for text in arguments[1:2] if COMMANDS[name].options[0].is_argument and text.startswith("-")]
    return [name, *arguments[2:], "--", *names] if names else arguments
