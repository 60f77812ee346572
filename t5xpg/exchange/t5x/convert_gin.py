"""T5X's gin files of the usual kind (a family and size, a run, macros and some bindings) as experiments of ours.

What T5X's own files of runs and models say is known here, so that T5X need not be there. Every binding of the file is
carried over, or told to be of no use here, or named as not carried over: nothing is dropped without a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.experiment.gin_statements import Bound, Import, Include, Reference, statements

# A parameter of T5X by its scope, the class without its module, and its name; a macro is ("", "", NAME).
Key = tuple[str, str, str]


def _data(scope: str, **values: Any) -> dict[Key, Any]:
    return {(scope, "DatasetConfig", name): value for name, value in values.items()}


def _macros(**values: Any) -> dict[Key, Any]:
    return {("", "", name): value for name, value in values.items()}


SCHEDULER = "create_learning_rate_scheduler"
_OF_BOTH = {
    "mixture_or_task_name": Reference("%MIXTURE_OR_TASK_NAME"),
    "task_feature_lengths": Reference("%TASK_FEATURE_LENGTHS"),
    "use_cached": Reference("%USE_CACHED_TASKS"),
    "pack": True,
}
_PRETRAIN: Mapping[Key, Any] = {
    ("", "train", "eval_steps"): 20,
    ("", "train", "eval_period"): 1000,
    **_macros(RANDOM_SEED=None, USE_CACHED_TASKS=True, SHUFFLE_TRAIN_EXAMPLES=True),
    **_data("train", batch_size=128, split="train", **_OF_BOTH),
    **_data("train_eval", batch_size=128, split="validation", **_OF_BOTH),
    ("", "SaveCheckpointConfig", "period"): 1000,
    ("", "SaveCheckpointConfig", "keep"): None,
    ("", SCHEDULER, "factors"): "constant * rsqrt_decay",
    ("", SCHEDULER, "base_learning_rate"): 1.0,
    ("", SCHEDULER, "warmup_steps"): 10000,
}
_FINETUNE: Mapping[Key, Any] = {
    **_PRETRAIN,
    **_macros(DROPOUT_RATE=0.1, BATCH_SIZE=128, EVAL_STEPS=20, EVAL_PERIOD=1000),
    ("", "train", "eval_steps"): Reference("%EVAL_STEPS"),
    ("", "train", "eval_period"): Reference("%EVAL_PERIOD"),
    ("", "train", "infer_eval_dataset_cfg"): Reference("@infer_eval/utils.DatasetConfig()"),
    ("train", "DatasetConfig", "batch_size"): Reference("%BATCH_SIZE"),
    ("train_eval", "DatasetConfig", "batch_size"): Reference("%BATCH_SIZE"),
    ("", "SaveCheckpointConfig", "period"): 5000,
    ("", SCHEDULER, "factors"): "constant",
    ("", SCHEDULER, "base_learning_rate"): 0.001,
    ("", SCHEDULER, "warmup_steps"): 1000,
}
RUNS = {"pretrain": _PRETRAIN, "finetune": _FINETUNE}
MODEL: Mapping[Key, Any] = {
    **_macros(Z_LOSS=0.0001, LABEL_SMOOTHING=0.0, LOSS_NORMALIZING_FACTOR=None),
    ("", "T5Config", "dtype"): "bfloat16",
}

# Ours of T5X's: a macro, or a parameter where there is a dot.
_SAME = (
    "MIXTURE_OR_TASK_NAME", "TASK_FEATURE_LENGTHS", "TRAIN_STEPS", "USE_CACHED_TASKS", "SHUFFLE_TRAIN_EXAMPLES",
    "RANDOM_SEED", "DROPOUT_RATE", "BATCH_SIZE", "EVAL_STEPS", "EVAL_PERIOD", "Z_LOSS", "LABEL_SMOOTHING",
    "LOSS_NORMALIZING_FACTOR",
)  # fmt: skip
_WIDTHS = (
    "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers", "mlp_activations",
    "logits_via_embedding", "float32_attention_logits",
)  # fmt: skip
_ADAFACTOR = {
    "decay_rate": "decay_rate", "step_offset": "step_offset", "clipping_threshold": "clipping_threshold",
    "multiply_by_parameter_scale": "multiply_by_parameter_scale", "factored": "factored", "epsilon1": "epsilon1",
    "epsilon2": "epsilon2", "min_dim_size_to_factor": "min_dim_size_to_factor", "beta1": "momentum",
    "weight_decay_rate": "weight_decay", "weight_decay_rate_lr_exponent": "weight_decay_lr_exponent",
    "global_norm_clip_threshold": "max_gradient_norm",
}  # fmt: skip
OURS: Mapping[Key, str] = {
    **{("", "", name): name for name in _SAME},
    ("", "train", "total_steps"): "TRAIN_STEPS",
    ("", "train", "eval_steps"): "EVAL_STEPS",
    ("", "train", "eval_period"): "EVAL_PERIOD",
    ("", "train", "stats_period"): "STATS_PERIOD",
    ("", "train", "random_seed"): "RANDOM_SEED",
    ("train", "DatasetConfig", "mixture_or_task_name"): "MIXTURE_OR_TASK_NAME",
    ("train", "DatasetConfig", "task_feature_lengths"): "TASK_FEATURE_LENGTHS",
    ("train", "DatasetConfig", "batch_size"): "BATCH_SIZE",
    ("train", "DatasetConfig", "use_cached"): "USE_CACHED_TASKS",
    ("train", "DatasetConfig", "shuffle"): "SHUFFLE_TRAIN_EXAMPLES",
    ("train", "DatasetConfig", "pack"): "PACK",
    ("train", "DatasetConfig", "split"): "train/spec.DatasetConfig.split",
    **{
        ("train_eval", "DatasetConfig", name): f"train_eval/spec.DatasetConfig.{name}"
        for name in ("mixture_or_task_name", "task_feature_lengths", "batch_size", "use_cached", "pack", "split")
    },
    ("", "SaveCheckpointConfig", "period"): "CHECKPOINT_PERIOD",
    ("", "SaveCheckpointConfig", "keep"): "KEEP_CHECKPOINTS",
    ("", "Trainer", "num_microbatches"): "NUM_MICROBATCHES",
    ("", "EncoderDecoderModel", "z_loss"): "Z_LOSS",
    ("", "EncoderDecoderModel", "label_smoothing"): "LABEL_SMOOTHING",
    ("", "EncoderDecoderModel", "loss_normalizing_factor"): "LOSS_NORMALIZING_FACTOR",
    ("", "EncoderDecoderModel.predict_batch_with_aux", "num_decodes"): "decoding.DecodingConfig.num_decodes",
    ("", "T5Config", "dropout_rate"): "DROPOUT_RATE",
    ("", "T5Config", "dtype"): "DTYPE",
    ("", "T5Config", "vocab_size"): "VOCAB_SIZE",
    ("", "T5Config", "scan_layers"): "SCAN_LAYERS",
    ("", "T5Config", "remat_policy"): "REMAT_POLICY",
    **{("", "T5Config", name): f"encoder_decoder.T5Config.{name}" for name in _WIDTHS},
    **{("", "Adafactor", name): f"optimizers.Adafactor.{ours}" for name, ours in _ADAFACTOR.items()},
    ("", "standard_logical_axis_rules", "activation_partitioning_dims"): (
        "partitioning.standard_logical_axis_rules.activation_partitioning_dims"
    ),
    ("", "standard_logical_axis_rules", "parameter_partitioning_dims"): (
        "partitioning.standard_logical_axis_rules.parameter_partitioning_dims"
    ),
}

# What nobody needs to set here, and why.
_DATASET, _PARTS = "the experiment says it once, for training and validation", "the included files say it"
ANY = "*"
UNNEEDED: Mapping[Key, str] = {
    ("", "", "MODEL"): _PARTS,
    ("", "", "MODEL_DIR"): "RUN= of `make train`",
    ("", "", "VOCABULARY"): "the vocabulary is the task's",
    ("", "", "USE_HARDWARE_RNG"): "random numbers are those of the seed on every device",
    ("", "", "EVALUATOR_USE_MEMORY_CACHE"): "the evaluator's examples are kept in memory",
    ("", "", "JSON_WRITE_N_RESULTS"): "`make eval` writes all predictions",
    ("", "train", "use_hardware_rng"): "random numbers are those of the seed on every device",
    ("", "train", "run_eval_before_training"): "every run is measured at its step 0",
    ("", "train", "actions"): "a loss that is not finite ends every run (SKIP_NONFINITE)",
    ("", "TerminateOnNanAction", ANY): "a loss that is not finite ends every run (SKIP_NONFINITE)",
    ("train", "DatasetConfig", "use_custom_packing_ops"): "there is one way to pack",
    ("train_eval", "DatasetConfig", "use_custom_packing_ops"): "there is one way to pack",
    ("", "train", "model_dir"): "RUN= of `make train`",
    **{
        ("", "train", name): _PARTS
        for name in (
            "model", "train_dataset_cfg", "train_eval_dataset_cfg", "checkpoint_cfg", "partitioner", "trainer_cls",
            "summarize_config_fn", "inference_evaluator_cls",
        )
    },
    ("train", "DatasetConfig", "seed"): "RANDOM_SEED decides the order of the data, too",
    ("train_eval", "DatasetConfig", "seed"): "RANDOM_SEED decides the order of the data, too",
    ("train_eval", "DatasetConfig", "shuffle"): "validation is not shuffled",
    ("infer_eval", "DatasetConfig", ANY): "metrics of tasks are computed on the validation dataset",
    ("", "Evaluator", ANY): "metrics go to metrics.jsonl and TensorBoard",
    ("", "JSONLogger", ANY): "`make eval` writes all predictions",
    ("", "SentencePieceVocabulary", ANY): "the vocabulary is the task's",
    ("", "ByteVocabulary", ANY): "the vocabulary is the task's",
    ("", "CheckpointConfig", ANY): _PARTS,
    ("", "SaveCheckpointConfig", "save_dataset"): "the position in the data is always kept",
    ("", "SaveCheckpointConfig", "dtype"): "parameters are kept in float32",
    ("", "RestoreCheckpointConfig", "mode"): "INITIAL_CHECKPOINT names the step",
    ("", "RestoreCheckpointConfig", "dtype"): "parameters are kept in float32",
    ("", "Trainer", "learning_rate_fn"): "SCHEDULE",
    ("", "Trainer", "weight_metrics_computer"): "norms of weights and gradients are recorded with the steps",
    **{("", "EncoderDecoderModel", name): _PARTS for name in ("module", "input_vocabulary", "output_vocabulary",
                                                              "optimizer_def")},
    ("", "Transformer", "config"): _PARTS,
    ("", "Adafactor", "logical_factor_rules"): "for arrays of two axes T5X's rules are those of the sizes",
}  # fmt: skip
PARTITIONERS = ("PjitPartitioner", "ModelBasedPjitPartitioner")
FACTORS = {
    "constant * rsqrt_decay": ("@schedules.InverseSquareRoot()", False),
    "constant * linear_warmup * rsqrt_decay": ("@schedules.InverseSquareRoot()", True),
    "constant": ("@schedules.Constant()", False),
    "constant * linear_warmup": ("@schedules.Constant()", True),
}
ROWS = {"t5_1_1": 32128, "byt5": 384}  # of the embedding, as gin/models/ has them
REMAT = {"none": "none", "minimal": "dots", "full": "full"}


_MODEL_FILE = re.compile(r"(?:^|/)(t5_1_1|byt5)/(\w+)\.gin$")
_OTHER_FAMILY = re.compile(r"(?:^|/)(t5_1_0|mt5|umt5|t5_1_1_lm100k|flan\w*)/\w+\.gin$")
_RUN_FILE = re.compile(r"(?:^|/)configs/runs/(\w+)\.gin$")
_NO_TRAINING = {"eval": "`make eval`", "infer": "`make infer`", "export": "`make export`"}
_STEP = re.compile(r"(?:checkpoint_|model\.ckpt-)(\d+)/?$")
_LIBRARIES = ("t5x", "seqio", "__main__", "__gin__", "jax", "flax", "optax", "functools")

_MODULES = {
    "encoder_decoder": "from t5xpg.models import encoder_decoder",
    "spec": "from t5xpg.data import spec",
    "decoding": "from t5xpg.models import decoding",
    "distributed": "from t5xpg import distributed",
    "optimizers": "from t5xpg.optim import optimizers",
    "schedules": "from t5xpg.optim import schedules",
}


@dataclass
class Converted:
    """An experiment's gin file, and what of T5X's is not in it: without need, and without being known here."""

    text: str
    unneeded: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)


def convert(file: Path, search: Sequence[Path] = ()) -> Converted:
    """An experiment with what a gin file of T5X says.

    search: folders in which other included files are looked for, beside that of the file. Raises UserError where a file
    cannot be read, or where the model is none that is known here.
    """
    conversion = _Conversion(file)
    conversion.read(_finder(search))
    return conversion.written()


def _finder(search: Sequence[Path]) -> Callable[[str, Path], Path | None]:
    def found(name: str, including: Path) -> Path | None:
        run = _RUN_FILE.search(name)
        if _MODEL_FILE.search(name) or (run and run[1] in (*RUNS, *_NO_TRAINING)):
            return None
        places = [folder / name for folder in (*search, including.parent, Path())]
        return next((place for place in places if place.is_file()), None)

    return found


class _Conversion:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._model: str | None = None
        self._run: str | None = None
        self._modules: list[str] = []
        self._scalable = False
        self._known: dict[Key, Any] = {}  # what T5X's own files say
        self._bound: dict[Key, Bound] = {}  # what this file says: the last of each
        self._referenced: set[str] = set()
        self._ours: dict[str, Any] = {}
        self._converted = Converted("")
        self._comment = ""

    def read(self, found: Callable[[str, Path], Path | None]) -> None:
        """Take in the file's statements."""
        for one in statements(self._file, found):
            if isinstance(one, Include):
                self._include(one)
            elif isinstance(one, Import):
                self._import(one)
            else:
                key = (one.scope, _class_of(one.selector), one.parameter)
                self._bound.pop(key, None)
                self._bound[key] = one
                self._referenced.update(re.findall(r"%(\w+)", repr(one.value)))

    def written(self) -> Converted:
        """The experiment."""
        if evaluation := next((bound for key, bound in self._bound.items() if key[1] == "evaluate"), None):
            raise UserError(f"{evaluation.text} ({evaluation.place}) is no training: here `make eval` does that.")
        if self._model is None and ("", "T5Config", "emb_dim") not in self._bound:
            raise UserError(
                f"{self._file} says of no model that is known here: expected an include of a file of t5_1_1 or byt5, "
                "or the widths of a network.T5Config."
            )
        own = {key: bound.value for key, bound in self._bound.items()}
        for key, value in {**self._known, **own}.items():
            self._carry(key, self._resolved(value, {**self._known, **own}))
        self._schedule({**self._known, **own})
        self._initial({**self._known, **own})
        self._converted.text = self._text()
        return self._converted

    def _include(self, one: Include) -> None:
        if match := _MODEL_FILE.search(one.file):
            name = f"{match[1]}_{match[2]}"
            if (paths.GIN / "models" / f"{name}.gin").is_file():
                self._model = name
                self._scalable |= "scalable_t5/" in one.file
                self._known.update(MODEL)
                return
        if match := _RUN_FILE.search(one.file):
            if match[1] in RUNS:
                self._run = match[1]
                self._known.update(RUNS[match[1]])
                return
            if match[1] in _NO_TRAINING:
                raise UserError(f"{one.file} ({one.place}) is no training: here {_NO_TRAINING[match[1]]} does that.")
        if match := _OTHER_FAMILY.search(one.file):
            self._unsupported(f"include {one.file!r}", one.place, f"import a checkpoint of {match[1]} (`make import`), "
                              "and include the model.gin that this writes")  # fmt: skip
            return
        self._unsupported(f"include {one.file!r}", one.place, "the file was not found: name its folder with --search")

    def _import(self, one: Import) -> None:
        self._scalable |= one.module.startswith("t5x.examples.scalable_t5")
        if one.module.partition(".")[0] not in _LIBRARIES and one.module not in self._modules:
            self._modules.append(one.module)
        elif one.module.startswith("t5x.contrib"):
            self._unsupported(f"import {one.module}", one.place, "nothing of t5x.contrib is here")

    def _resolved(self, value: Any, all_values: Mapping[Key, Any], depth: int = 0) -> Any:
        """A value without macros, as far as they are known."""
        if isinstance(value, Reference) and value.text.startswith("%") and depth < 10:
            key = ("", "", value.text[1:])
            return self._resolved(all_values[key], all_values, depth + 1) if key in all_values else value
        return value

    def _carry(self, key: Key, value: Any) -> None:
        """Carry one parameter over, or say why not."""
        scope, kind, parameter = key
        if kind in PARTITIONERS:
            self._partitioner(key, value)
        elif key == ("", "", "OPTIMIZER") and repr(value).endswith("Adafactor()"):
            return  # it is included
        elif key == ("", "", "OPTIMIZER"):
            known = ", ".join(sorted(file.stem for file in (paths.GIN / "optimizers").glob("*.gin")))
            self._unsupported(self._bound[key].text, self._bound[key].place, f"gin/optimizers/ has {known}")
        elif key == ("", "train", "infer_eval_dataset_cfg"):
            self._ours["INFER_EVAL_PERIOD"] = None if value is None else Reference("%EVAL_PERIOD")
        elif kind == SCHEDULER or key in (
            ("", "", "INITIAL_CHECKPOINT_PATH"),
            ("", "RestoreCheckpointConfig", "path"),
        ):
            return  # together with others, below
        elif parameter in ("MIXTURE_OR_TASK_MODULE", "module") and kind in ("", "DatasetConfig"):
            if isinstance(value, str) and value not in self._modules:
                self._modules.append(value)
        elif key in OURS:
            self._set(key, OURS[key], value)
        elif (scope, kind, parameter) in UNNEEDED or (scope, kind, ANY) in UNNEEDED:
            if key in self._bound:
                why = UNNEEDED.get(key) or UNNEEDED[scope, kind, ANY]
                self._converted.unneeded.append(f"{self._bound[key].text}: {why}")
        elif not kind and parameter in self._referenced:
            return  # a macro of the file's own, whose value stands where it is used
        elif key in self._bound:
            self._unsupported(self._bound[key].text, self._bound[key].place, "nothing here is known to be the same")

    def _set(self, key: Key, name: str, value: Any) -> None:
        """Set one of ours."""
        if isinstance(value, Reference):
            bound = self._bound.get(key)
            if bound is not None and value.text != "%gin.REQUIRED":
                self._unsupported(bound.text, bound.place, "its value is not known")
            return
        if name == "REMAT_POLICY":
            if value not in REMAT:
                known = ", ".join(REMAT.values())
                self._unsupported(self._bound[key].text, self._bound[key].place, f"REMAT_POLICY is one of {known}")
                return
            value = REMAT[value]
        elif name == "NUM_MICROBATCHES" and value is None:
            value = 1
        elif name == "KEEP_CHECKPOINTS" and value is None:
            if key in self._bound:
                self._unsupported(self._bound[key].text, self._bound[key].place, "here a number of them is kept")
            return
        elif name == "RANDOM_SEED" and value is None:
            if "RANDOM_SEED" in self._ours:
                return
            value = 0
            if key in self._bound:
                self._converted.unneeded.append(f"{self._bound[key].text}: every run has a seed here, 0")
        elif name == "EVAL_STEPS" and isinstance(value, int) and value < 1:
            value = None
        elif name == "VOCAB_SIZE" and self._model is not None and value == ROWS[self._model.rpartition("_")[0]]:
            return
        self._ours[name] = value

    def _partitioner(self, key: Key, value: Any) -> None:
        if key[2] == "num_partitions":
            if isinstance(value, int) and value > 1:
                self._ours["MODEL_PARALLEL"] = value
        elif key[2] == "model_parallel_submesh" and value not in (None, ()):
            bound = self._bound[key]
            self._unsupported(bound.text, bound.place, "gin/partitioning/ says what lies where (docs/partitioning.md)")

    def _schedule(self, values: Mapping[Key, Any]) -> None:
        given = {name: self._resolved(values.get(("", SCHEDULER, name)), values)
                 for name in ("factors", "base_learning_rate", "warmup_steps")}  # fmt: skip
        own = [bound for key, bound in self._bound.items() if key[1] == SCHEDULER]
        if given["factors"] is None:
            return
        factors = " * ".join(part.strip() for part in str(given["factors"]).split("*"))
        if factors not in FACTORS:
            for bound in own:
                self._unsupported(bound.text, bound.place, f"schedules are those of {', '.join(map(repr, FACTORS))}")
            return
        for bound in own:
            if bound.parameter not in given:
                self._unsupported(bound.text, bound.place, "nothing here is known to be the same")
        schedule, warms_up = FACTORS[factors]
        self._ours["SCHEDULE"] = Reference(schedule)
        self._ours["LEARNING_RATE"] = given["base_learning_rate"]
        constant = schedule == "@schedules.Constant()"
        if constant:
            self._ours["schedules.Constant.value"] = Reference("%LEARNING_RATE")
            self._ours["schedules.Constant.warmup_steps"] = Reference("%WARMUP_STEPS")
        self._ours["WARMUP_STEPS"] = given["warmup_steps"] if warms_up or not constant else 0
        if warms_up and not constant:
            self._ours["schedules.InverseSquareRoot.linear_warmup"] = True

    def _initial(self, values: Mapping[Key, Any]) -> None:
        key = ("", "", "INITIAL_CHECKPOINT_PATH")
        if key not in values:
            key = ("", "RestoreCheckpointConfig", "path")
        path = self._resolved(values.get(key), values)
        if not isinstance(path, str):
            return
        bound = self._bound[key]
        if self._run != "finetune":
            self._unsupported(bound.text, bound.place, "a run that starts from a checkpoint includes finetune.gin")
            return
        step = _STEP.search(path)
        name = re.sub(r"\W+", "_", (path[: step.start()] if step else path).rstrip("/").rpartition("/")[2]).strip("_")
        self._ours["INITIAL_CHECKPOINT"] = name or "imported"
        self._comment = f"# make import CHECKPOINT={path} NAME={name or 'imported'}"
        total = self._ours.get("TRAIN_STEPS")
        if isinstance(total, int) and step is not None and total > int(step[1]):
            self._ours["TRAIN_STEPS"] = total - int(step[1])
        elif total is not None:
            self._unsupported(
                f"TRAIN_STEPS = {total!r}", bound.place,
                "T5X counts the updates of the pretraining, too, and the checkpoint's name does not say how many these "
                "are; here those of this run",
            )  # fmt: skip

    def _unsupported(self, what: str, place: str, why: str) -> None:
        self._converted.unsupported.append(f"{what} ({place}): {why}")

    def _text(self) -> str:
        parallel = "tensor_parallel" if "MODEL_PARALLEL" in self._ours else "data_parallel"
        run = self._run or "pretrain"
        files = [f"models/{self._model or 't5_1_1'}", "optimizers/adafactor", f"partitioning/{parallel}", f"runs/{run}"]
        if "decoding.DecodingConfig.num_decodes" in self._ours:
            files.append("decoding/beam")
        if self._modules:
            self._ours["MODULE_IMPORT"] = tuple(self._modules)
        if self._scalable:
            self._ours["encoder_decoder.T5Config.relpos_bias_in_every_layer"] = True
            self._ours.setdefault("SCAN_LAYERS", True)
        ours = self._changed(files)
        bindings = {name: value for name, value in ours.items() if "." in name}
        modules = sorted({_MODULES[name.rpartition("/")[2].partition(".")[0]] for name in bindings})
        if isinstance(ours.get("SCHEDULE"), Reference):
            modules = sorted({*modules, _MODULES["schedules"]})
        return "\n".join(
            [
                f"# {self._file.name} of T5X, by `t5xpg convert-gin`.",
                *(f"# Not carried over: {one}" for one in self._converted.unsupported),
                "from __gin__ import dynamic_registration",
                *(["", *modules] if modules else []),
                "",
                *(f"include 'gin/{file}.gin'" for file in files),
                "",
                *([self._comment] if "INITIAL_CHECKPOINT" in ours else []),
                *(f"{name} = {value!r}" for name, value in ours.items() if "." not in name),
                *(["", *(f"{name} = {value!r}" for name, value in bindings.items())] if bindings else []),
                "",
            ]
        )

    def _changed(self, files: Sequence[str]) -> dict[str, Any]:
        """Of ours those that the included files do not say already. Macros in the order of the files."""
        said: dict[str, Any] = {}
        for file in files:
            for one in statements(paths.GIN / f"{file}.gin", lambda name, _: paths.REPOSITORY / name):
                if isinstance(one, Bound):
                    scope = f"{one.scope}/" if one.scope else ""
                    said[f"{scope}{one.selector}.{one.parameter}".removeprefix(".")] = one.value
        # validation is like training where nothing else is said
        like = {"batch_size": "BATCH_SIZE", "use_cached": "USE_CACHED_TASKS", "task_feature_lengths": None,
                "mixture_or_task_name": None}  # fmt: skip
        changed: dict[str, Any] = {}
        for name in sorted(self._ours, key=lambda name: (list(said).index(name) if name in said else len(said), name)):
            value = self._ours[name]
            field_name = name.removeprefix("train_eval/spec.DatasetConfig.")
            if field_name != name and field_name in like:
                macro = like[field_name] or field_name.upper()
                if value == self._ours.get(macro, said.get(macro)):
                    continue
            if name not in said or repr(said[name]) != repr(value):
                changed[name] = value
        return changed


def _class_of(selector: str) -> str:
    """Without the module, which a file may call as it likes; a method keeps its class."""
    parts = selector.split(".")
    last = next((place for place, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    return ".".join(parts[last:])
