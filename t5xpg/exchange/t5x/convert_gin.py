"""Converts T5X's gin files of the usual kind (a family and size, a run, macros and some bindings) to experiments.

The values that T5X's own files of runs and models set are in `experiment.gin_t5x`, so that T5X need not be installed.
Every binding of the file is carried over, listed as not needed here, or listed as not carried over; none is dropped
silently.
"""

import math
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import write_text
from t5xpg.exchange.import_folders import run_name
from t5xpg.experiment import config
from t5xpg.experiment import gin_t5x as tables
from t5xpg.experiment.gin_statements import BoundValue, GinReference, Import, Include, statements

_MODEL_FILE = re.compile(r"(?:^|/)t5x/(?:\w+/)*(t5_1_1|byt5)/(\w+)\.gin$")
_RUN_FILE = re.compile(r"(?:^|/)t5x/configs/runs/(\w+)\.gin$")
_NO_TRAINING = {"eval": "`make eval`", "infer": "`make infer`", "export": "`make export`"}
_STEP = re.compile(r"(?:checkpoint_|model\.ckpt-)(\d+)/?$")
_LIBRARIES = ("t5x", "seqio", "__main__", "__gin__", "jax", "flax", "optax", "functools")
_UNKNOWN = "nothing here is known to be the same"
_NOT_KNOWN = "its value is not known"
_COUNTS = "T5X counts the updates of the pretraining, too"
_STARTS = ("RestoreCheckpointConfig.path", "train.total_steps", "train.relative_steps")
_OTHERS = {
    **dict.fromkeys(
        ("OPTIMIZER", "EncoderDecoderModel.optimizer_def"),
        "gin/optimizers/ has others than Adafactor: include one of them",
    ),
    "CheckpointConfig.save": "every run keeps checkpoints here (CHECKPOINT_PERIOD)",
    "Evaluator.num_examples": tables.UNNEEDED["Evaluator.num_examples"],
}


@dataclass
class Converted:
    """An experiment's gin file, and the statements of T5X's file that it lacks: not needed, or not supported, here."""

    text: str
    unneeded: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)


def convert(file: Path, search: Sequence[Path] = ()) -> Converted:
    """The experiment that a gin file of T5X describes.

    search: folders in which included files are looked for first, before that of the including file and the current one.
    Raises UserError where a file cannot be read, its model is not known here, or it does not train.
    """

    def find_file(name: str, including: Path) -> Path | None:
        """The path of an included file; None for T5X's own, which are in the tables."""
        run = _RUN_FILE.search(name)
        if _MODEL_FILE.search(name) or (run and run[1] in (*tables.RUNS, *_NO_TRAINING)):
            return None
        candidates = [folder / name for folder in (*search, including.parent, Path())]
        return next((file for file in candidates if file.is_file()), None)

    conversion = _Conversion(file)
    for statement in statements(file, find_file):
        conversion.read(statement)
    return conversion.converted()


class _Conversion:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._model: str | None = None
        self._run: str | None = None
        self._modules: list[str] = []
        self._user_modules: set[str] = set()  # the file's names of modules that are no libraries'
        self._scalable = False
        self._values: dict[str, Any] = {}  # by T5X's names: the last that T5X's own files or this one bind
        self._bound: dict[str, BoundValue] = {}  # those that this file binds
        self._ours: dict[str, Any] = {}
        self._converted = Converted("")
        self._comment = ""

    def read(self, statement: BoundValue | Include | Import) -> None:
        """Read one statement of the file."""
        if isinstance(statement, Include):
            self._include(statement)
        elif isinstance(statement, Import):
            self._import(statement)
        else:
            key = tables.key_of(statement.scope, statement.selector, statement.parameter)
            self._bound.pop(key, None)
            self._bound[key] = statement
            self._values[key] = statement.value

    def converted(self) -> Converted:
        """The experiment, of all statements."""
        for key, bound in self._bound.items():
            if key.rpartition("/")[2].startswith("evaluate."):
                raise UserError(f"{bound.text} ({bound.place}) is no training: here `make eval` does that.")
        if self._model is None and "T5Config.emb_dim" not in self._bound:
            raise UserError(
                f"{self._file} says of no model that is known here: expected an include of a file of t5_1_1 or byt5, "
                "or the widths of a network.T5Config."
            )
        for key in self._values:
            self._carry_over(key, self._value(key))
        self._schedule()
        self._initial_checkpoint()
        self._converted.text = self._text()
        return self._converted

    def _include(self, statement: Include) -> None:
        file, place = statement.file, statement.place
        if match := _MODEL_FILE.search(file):
            scalable = "scalable_t5/" in file
            if found := tables.model(match[1], match[2], scalable=scalable):
                self._model, values = found
                self._scalable |= scalable
                self._bind_all(values)
                return
        if match := _RUN_FILE.search(file):
            if match[1] in tables.RUNS:
                self._run = match[1]
                self._bind_all(tables.RUNS[match[1]])
                return
            if match[1] in _NO_TRAINING:
                raise UserError(f"{file} ({place}) is no training: here {_NO_TRAINING[match[1]]} does that.")
        self._unsupported(f"include {file!r}", place, "the file was not found: name its folder with SEARCH=…")

    def _bind_all(self, values: Mapping[str, Any]) -> None:
        """Take in the values of one of T5X's own files; as in gin, they replace earlier bindings."""
        self._values |= values
        for key in values:
            self._bound.pop(key, None)

    def _import(self, statement: Import) -> None:
        module = statement.module
        self._scalable |= module.startswith("t5x.examples.scalable_t5")
        if module.partition(".")[0] not in _LIBRARIES:
            self._modules += [module] if module not in self._modules else []
            self._user_modules.add(statement.name)
        elif module.startswith("t5x.contrib"):
            self._unsupported(f"import {module}", statement.place, "nothing of t5x.contrib is here")

    def _value(self, key: str) -> Any:
        """The value of a parameter, or of the macro that it names where that is known; None where there is none."""
        return self._values.get(self._source(key))

    def _source(self, key: str) -> str:
        """The key that has the value of a parameter: its own, or that of the macro it names."""
        for _ in range(10):  # a macro may name another macro
            value = self._values.get(key)
            if not isinstance(value, GinReference) or value.text[0] != "%" or value.text[1:] not in self._values:
                break
            key = value.text[1:]
        return key

    def _carry_over(self, key: str, value: Any) -> None:
        """Carry one parameter over, or list why not: by the first of these rules that fits it."""
        scope, _, name = key.rpartition("/")
        kind, _, parameter = name.rpartition(".")
        every = f"{scope}/{kind}.*" if scope else f"{kind}.*"
        if kind in tables.PARTITIONERS and parameter in ("num_partitions", "model_parallel_submesh"):
            self._partition(key, value)
        elif key == "train.infer_eval_dataset_cfg":
            self._ours["INFER_EVAL_PERIOD"] = None if value is None else GinReference("%EVAL_PERIOD")
        elif key in tables.INFER_EVAL:
            self._infer_eval(key, value)
        elif kind == tables.SCHEDULER or key in _STARTS:
            return  # `_schedule`, `_initial_checkpoint`
        elif parameter == "module" and kind == "DatasetConfig":
            self._add_module(key, value)
        elif key in tables.OURS:
            self._set(key, tables.OURS[key], value)
        elif key in tables.STANDARD and (not repr(value).endswith(tables.STANDARD[key]) or self._is_of_user(value)):
            self._refuse(key, _OTHERS.get(key, f"only {' or '.join(tables.STANDARD[key])} is known here"))
        elif why := tables.UNNEEDED.get(key) or tables.UNNEEDED.get(every):
            self._unneeded(key, why)
        elif kind:
            self._refuse(key, _UNKNOWN)
        elif not any(re.search(rf"%{parameter}\b", repr(value)) for value in self._values.values()):
            (self._unneeded if self._run else self._refuse)(key, "nothing reads this macro")

    def _partition(self, key: str, value: Any) -> None:
        """Set MODEL_PARALLEL, to a number of partitions or the product of a submesh."""
        sizes = value if isinstance(value, tuple | list) else [1 if value is None else value]
        if not all(isinstance(size, int) for size in sizes):
            self._refuse(key, _NOT_KNOWN)
            return
        if (devices := math.prod(sizes)) > 1:
            self._ours["MODEL_PARALLEL"] = devices
        if why := tables.UNNEEDED.get(key):
            self._unneeded(key, why)

    def _infer_eval(self, key: str, value: Any) -> None:
        """Set a part of the dataset that metrics are computed on, where it is not that of validation."""
        if self._value("train.infer_eval_dataset_cfg") is None:
            self._unneeded(key, "no metrics are computed while training")
        elif value is None:
            self._unneeded(key, "T5X takes the lengths of the data; here INFER_EVAL_LENGTHS, or those of training")
        elif value == self._value(key.replace("infer_eval/", "train_eval/")):
            self._unneeded(key, "it is that of validation")
        else:
            self._set(key, tables.INFER_EVAL[key], value)

    def _add_module(self, key: str, value: Any) -> None:
        """Add a module that registers tasks."""
        if isinstance(value, GinReference):
            self._refuse(key, _NOT_KNOWN)
        elif isinstance(value, str) and value not in self._modules:
            self._modules.append(value)

    def _is_of_user(self, value: Any) -> bool:
        """True if a value is from a module of the user: it may do anything, whatever its name."""
        return repr(value).rpartition("/")[2].lstrip("@").partition(".")[0] in self._user_modules

    def _set(self, key: str, name: str, value: Any) -> None:
        """Set one of our parameters or macros, or list why not."""
        if isinstance(value, GinReference):
            if value.text != "%gin.REQUIRED":
                self._refuse(key, _NOT_KNOWN)
            return
        if name == "REMAT_POLICY":
            if not isinstance(value, str) or value not in tables.REMAT:
                self._refuse(key, f"REMAT_POLICY is one of {', '.join(tables.REMAT.values())}")
                return
            value = tables.REMAT[value]
        elif name == "NUM_MICROBATCHES" and value in (None, 0):  # T5X: neither divides a batch
            value = 1
        elif name == "RANDOM_SEED" and value is None:
            value = 0
            self._unneeded(self._source(key), "every run has a seed here, 0")
        elif name == "EVAL_STEPS" and isinstance(value, int) and value < 1:
            value = None
        elif name == "VOCAB_SIZE" and self._model is not None and value == tables.ROWS[self._model.rpartition("_")[0]]:
            return
        self._ours[name] = value

    def _schedule(self) -> None:
        values = {
            name: self._value(f"{tables.SCHEDULER}.{name}")
            for name in ("factors", "base_learning_rate", "warmup_steps")
        }
        ours = tables.FACTORS.get(" * ".join(part.strip() for part in str(values["factors"]).split("*")))
        for key, bound in self._bound.items():
            if bound.selector.endswith(tables.SCHEDULER) and (ours is None or bound.parameter not in values):
                known = ", ".join(map(repr, tables.FACTORS))
                self._refuse(key, f"schedules are those of {known}" if ours is None else _UNKNOWN)
        if ours is not None:
            for name in ("base_learning_rate", "warmup_steps"):
                key = f"{tables.SCHEDULER}.{name}"
                self._set(key, tables.OURS[key], values[name])
            self._ours |= ours

    def _initial_checkpoint(self) -> None:
        """Set the checkpoint to start from and the number of updates: T5X counts those of the pretraining, too."""
        path, total = self._value("RestoreCheckpointConfig.path"), self._value("train.total_steps")
        if isinstance(path, list | tuple) and path:
            if len(path) > 1:
                self._refuse("RestoreCheckpointConfig.path", "a run starts from one checkpoint")
            path = path[0]
        restores = self._values.get("CheckpointConfig.restore", "it does") is not None and isinstance(path, str)
        relative = self._value("train.relative_steps")
        if restores and self._run != "finetune":
            self._refuse("RestoreCheckpointConfig.path", "a run that starts from a checkpoint includes finetune.gin")
        if not restores or self._run != "finetune":
            self._run = "pretrain"  # finetune.gin of T5X without a checkpoint starts from scratch
            key = "train.total_steps" if relative is None else "train.relative_steps"
            self._set(key, "TRAIN_STEPS", self._value(key))
            return
        step = _STEP.search(path)
        pretraining_steps = None if step is None else int(step[1])
        name = run_name(Path(path[: step.start()] if step else path).name)
        self._ours["INITIAL_CHECKPOINT"] = name
        self._comment = f"# make import CHECKPOINT={path} NAME={name}"
        offset = "optimizers.Adafactor.step_offset"
        if relative is not None:
            self._set("train.relative_steps", "TRAIN_STEPS", relative)
        elif pretraining_steps is not None and isinstance(total, int) and total > pretraining_steps:
            self._ours["TRAIN_STEPS"] = total - pretraining_steps
        else:
            self._set("train.total_steps", "TRAIN_STEPS", total)
            unknown = "the checkpoint's name does not say how many these are"
            reason = unknown if pretraining_steps is None else f"these are {pretraining_steps:,}"
            self._refuse("train.total_steps", f"{_COUNTS}; {reason}")
        if isinstance(self._ours.get(offset), int):
            self._ours[offset] -= pretraining_steps or 0
        warmup = self._ours.get("WARMUP_STEPS", 0)
        if "InverseSquareRoot" in repr(self._ours.get("SCHEDULE")) or warmup > (pretraining_steps or 0):
            self._refuse(f"{tables.SCHEDULER}.factors", f"{_COUNTS}, and here this rate would begin anew")
        elif pretraining_steps is not None:
            self._ours["WARMUP_STEPS"] = 0

    def _unneeded(self, key: str, why: str) -> None:
        if bound := self._bound.get(key):
            self._converted.unneeded.append(f"{bound.text}: {why}")

    def _refuse(self, key: str, why: str) -> None:
        """List a binding of the file as not carried over; what only T5X's own files say is left out."""
        bound = self._bound.get(key) or self._bound.get(self._source(key))
        if bound and (line := f"{bound.text} ({bound.place}): {why}") not in self._converted.unsupported:
            self._converted.unsupported.append(line)

    def _unsupported(self, what: str, place: str, why: str) -> None:
        self._converted.unsupported.append(f"{what} ({place}): {why}")

    def _text(self) -> str:
        parallel = "tensor_parallel" if "MODEL_PARALLEL" in self._ours else "data_parallel"
        run, model = self._run, self._model or "t5_1_1"
        files = [f"models/{model}", "optimizers/adafactor", f"partitioning/{parallel}", f"runs/{run}"]
        if run == "pretrain":
            files.append("objectives/none")  # as in T5X, a task has its own objective
        if any(name in self._ours for name in tables.INFER_EVAL.values()):
            files.append("runs/infer_eval")
        if "decoding.DecodingConfig.num_decodes" in self._ours:
            files.append("decoding/beam")
        if self._modules:
            self._ours["MODULE_IMPORT"] = tuple(self._modules)
        if self._scalable:
            self._ours["positions.Buckets.in_every_layer"] = True
            self._ours.setdefault("SCAN_LAYERS", True)
        ours = self._values_not_in(files)
        bindings = {name: value for name, value in ours.items() if "." in name}
        modules = {tables.IMPORTS[name.rpartition("/")[2].partition(".")[0]] for name in bindings}
        if isinstance(ours.get("SCHEDULE"), GinReference):
            modules.add(tables.IMPORTS["schedules"])
        head = [f"# {self._file.name} of T5X, by `t5xpg convert-gin`."]
        head += [f"# Not carried over: {one}" for one in self._converted.unsupported]
        macros = [self._comment] if "INITIAL_CHECKPOINT" in ours else []
        macros += [f"{name} = {value!r}" for name, value in ours.items() if name not in bindings]
        parts = [
            [*head, "from __gin__ import dynamic_registration"],
            sorted(modules),
            [f"include 'gin/{file}.gin'" for file in files],
            macros,
            [f"{name} = {value!r}" for name, value in bindings.items()],
        ]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def _values_not_in(self, files: Sequence[str]) -> dict[str, Any]:
        """The values that the included files do not set already, in the order of those files."""
        included: dict[str, Any] = {}
        for file in files:
            for statement in statements(paths.GIN / f"{file}.gin", lambda name, _: paths.REPOSITORY / name):
                if isinstance(statement, BoundValue):
                    scope = f"{statement.scope}/" if statement.scope else ""
                    included[f"{scope}{statement.selector}.{statement.parameter}".removeprefix(".")] = statement.value
        order = {name: place for place, name in enumerate(included)}
        changed: dict[str, Any] = {}
        for name, value in sorted(self._ours.items(), key=lambda item: (order.get(item[0], len(order)), item[0])):
            # validation is like training unless the file binds it
            training = name.replace("train_eval/spec.", "train/")
            macro = None if training == name else tables.OURS.get(training)
            if macro and "." not in macro and macro != "PACK" and value == self._ours.get(macro, included.get(macro)):
                continue
            if name not in included or repr(included[name]) != repr(value):
                changed[name] = value
        return changed


def write(
    file: Path, search: Sequence[Path], output: Path | None, *, force: bool = False, partial: bool = False
) -> None:
    """Convert a file into `output`, or print the result (None). List on stderr what is no longer needed, what is not
    carried over, and what is left to mend.

    Raises UserError where `output` is there, unless `force` is given, and for what cannot be carried over, unless
    `partial` is given.
    """
    if output is not None and output.exists() and not force:
        raise UserError(f"{output} is there. Name another file, or replace it with FORCE=1.")
    converted = convert(file, search)
    if converted.unsupported and not partial:
        listed = "".join(f"\n  {line}" for line in converted.unsupported)
        raise UserError(f"{file} has what cannot be carried over:{listed}\nTo write the rest of it: PARTIAL=1.")
    with tempfile.TemporaryDirectory() as folder:
        trial_file = Path(folder) / "converted.gin"
        write_text(trial_file, converted.text)
        problems = config.examine(str(trial_file))[1]
    if output is None:
        print(converted.text, end="")
    else:
        write_text(output, converted.text)
        print(f"written to {output}")
    remarks = {
        "needed here no more": converted.unneeded,
        "not carried over": converted.unsupported,
        "to be mended before it can be trained": [
            one.replace(str(trial_file), str(output or "the experiment")) for one in problems
        ],
    }
    for what, lines in remarks.items():
        if lines:
            print("\n".join([f"{what}:", *(f"  {line}" for line in lines)]), file=sys.stderr)
