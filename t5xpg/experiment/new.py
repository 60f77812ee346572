"""`make new`: writes the folder of a new experiment, with a gin file and a page to start from."""

import contextlib
import dataclasses
import re
from pathlib import Path

from t5xpg.base import paths
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import directory_atomically, write_text
from t5xpg.base.paths import shown
from t5xpg.data.objectives import LanguageModel, MaskedLM
from t5xpg.data.stream.client import DataService
from t5xpg.data.tasks.task_names import KnownTask
from t5xpg.data.text.labelled import ENDING
from t5xpg.experiment import config
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.known_tasks import known_task, objective_fragment, unknown_task
from t5xpg.experiment.recipe import Recipe
from t5xpg.run.report import NOT_ANSWERED

_GIN = """\
# {task} with the model {model}.
from __gin__ import dynamic_registration

include 'gin/models/{model}.gin'
{architecture}include 'gin/optimizers/{optimizer}.gin'
include 'gin/partitioning/one_device.gin'
include 'gin/runs/pretrain.gin'
{objective}
MIXTURE_OR_TASK_NAME = {task!r}
{vocab_size}TASK_FEATURE_LENGTHS = {lengths}
TRAIN_STEPS = 1000
BATCH_SIZE = 16
RANDOM_SEED = 0

STATS_PERIOD = 10
EVAL_PERIOD = 100
CHECKPOINT_PERIOD = 100
"""
_PAGE = """\
# {name}

**Question.** What is to be found out?

**Answer.** {NOT_ANSWERED}

```
make check EXP={name}
make train EXP={name}
make eval EXP={name}
make report EXP={name}
```

## Results
"""
# Embeddings are rounded up to so many; fewer than that are too few to save.
_ROWS_MULTIPLE = 128
_LONGEST = 1024  # tokens of a feature, unless it is asked for


def write(name: str, task: str, model: str, optimizer: str | None = None) -> Path:
    """Write experiments/<name>/ with a gin file that can be loaded, and a page; returns the gin file.

    model, optimizer: files of gin/models and gin/optimizers (None: Muon with rates for the model). The model gets the
    task's number of ids, and a supervised task whose text is here the lengths of its examples. The folder appears whole
    or not at all. Raises UserError for a name that is taken or invalid, and for missing files.
    """
    if not name.isidentifier():
        raise UserError(f"EXP={name}: expected letters, digits and underscores, as in my_experiment.")
    folder = paths.EXPERIMENTS / name
    if folder.exists():
        raise UserError(f"{shown(folder)} is there already. Give the new experiment another name: EXP=…")
    optimizer = optimizer or ("muon_tiny" if model.endswith("_tiny") else "muon")
    for kind, chosen in (("models", model), ("optimizers", optimizer)):
        known = [file.stem for file in (paths.GIN / kind).glob("*.gin")]
        if chosen not in known:
            raise UserError(f"There is no gin/{kind}/{chosen}.gin.{nearest(chosen, known)}")
    with directory_atomically(folder) as new:
        row, file = known_task(task), new / f"{name}.gin"
        values = {"name": name, "task": task, "model": model, "optimizer": optimizer, "vocab_size": ""}
        values |= {"objective": _include("objectives", _objective_fragment(task)), **_for_objective(row)}
        write_text(file, _GIN.format(**values))
        write_text(new / "README.md", _PAGE.format(**values, NOT_ANSWERED=NOT_ANSWERED))
        experiment = config.load(str(file)).experiment
        if row is not None:
            rows, size = experiment.model.config.vocab_size, row.vocabulary.size
            if size > rows or size + _ROWS_MULTIPLE <= rows:
                values["vocab_size"] = f"VOCAB_SIZE = {size}\n"
            if lengths := _measured_lengths(row, experiment):
                values["lengths"] = str(lengths)
            write_text(file, _GIN.format(**values))
    if row is None:
        print(f"warning: {unknown_task(task)}")
    file = folder / f"{name}.gin"
    print(f"{shown(file)}: change what differs, then make check EXP={name}", flush=True)
    return file


def _measured_lengths(row: KnownTask, experiment: Experiment) -> dict[str, int]:
    """The longest features of the first examples of a supervised task, as `make check` measures them, up to the next
    multiple of 8, and at most 1,024; none where its text or vocabulary is not here."""
    datasets = [
        dataclasses.replace(one, use_cached=False) for one in (experiment.train_dataset, experiment.eval_dataset)
    ]
    if row.supervised is None or row.dataset is None or not Recipe.of(datasets[0]).ready:
        return {}
    with contextlib.suppress(UserError), DataService() as service:  # a text without one of the splits
        longest = [fit.longest for dataset in datasets for fit in service.fits(dataset)]
        return {name: min(-(-max(one[name] for one in longest) // 8) * 8, _LONGEST) for name in longest[0]}
    return {}


def _include(kind: str, fragment: str) -> str:
    return f"include 'gin/{kind}/{fragment}.gin'\n" if fragment else ""


def _for_objective(row: KnownTask | None) -> dict[str, str]:
    """The architecture for the objective of a task, and lengths that it fits into."""
    lengths, architecture = {"inputs": 256, "targets": 64}, ""
    for part in row.parts if row is not None else ():
        if isinstance(part.objective, LanguageModel):
            return {"architecture": _include("architectures", "decoder_only"), "lengths": "{'targets': 256}"}
        if isinstance(part.objective, MaskedLM):
            architecture = _include("architectures", "encoder_only")
        needed = part.objective.lengths(lengths, reserved=part.reserved)
        lengths["targets"] = max(lengths["targets"], needed.targets)
    return {"architecture": architecture, "lengths": str(lengths)}


def _objective_fragment(task: str) -> str:
    """The file of gin/objectives that a task needs after gin/runs/pretrain.gin; "" for span corruption, and where the
    task is not known. Its name tells where its text or its vocabulary is missing."""
    if (row := known_task(task)) is None:
        return "none" if re.search(rf"_({ENDING.pattern})(_|$)", task) else ""
    return objective_fragment(row.parts[0]) if row.parts else "none"
