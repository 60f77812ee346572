"""`make new`: writes the folder of a new experiment, with a gin file and a page to start from."""

from pathlib import Path

from t5xpg.base import paths
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import directory_atomically, write_text
from t5xpg.base.paths import shown
from t5xpg.data.tasks.task_names import possible_dataset
from t5xpg.data.text.labelled import ENDING, TFDS_TASKS
from t5xpg.experiment import config, data_state

_GIN = """\
# {task} with the model {model}.
from __gin__ import dynamic_registration

include 'gin/models/{model}.gin'
include 'gin/optimizers/{optimizer}.gin'
include 'gin/partitioning/one_device.gin'
include 'gin/runs/pretrain.gin'
{objective}
MIXTURE_OR_TASK_NAME = {task!r}
TASK_FEATURE_LENGTHS = {{'inputs': 256, 'targets': 64}}
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

**Answer.** It has not been run yet.

```
make check EXP={name}
make train EXP={name}
make eval EXP={name}
make report EXP={name}
```

## Results
"""


def write(name: str, task: str, model: str, optimizer: str) -> Path:
    """Write experiments/<name>/ with a gin file that can be loaded, and a page; returns the gin file.

    model, optimizer: files of gin/models and gin/optimizers. The folder appears whole or not at all. Raises UserError
    for a name that is taken or invalid, and for missing files.
    """
    if not name.isidentifier():
        raise UserError(f"EXP={name}: expected letters, digits and underscores, as in my_experiment.")
    folder = paths.EXPERIMENTS / name
    if folder.exists():
        raise UserError(f"{shown(folder)} is there already. Give the new experiment another name: EXP=…")
    for kind, chosen in (("models", model), ("optimizers", optimizer)):
        known = [file.stem for file in (paths.GIN / kind).glob("*.gin")]
        if chosen not in known:
            raise UserError(f"There is no gin/{kind}/{chosen}.gin.{nearest(chosen, known)}")
    with directory_atomically(folder) as new:
        fragment = _objective_fragment(task)
        objective = f"include 'gin/objectives/{fragment}.gin'\n" if fragment else ""
        values = {"name": name, "task": task, "model": model, "optimizer": optimizer, "objective": objective}
        write_text(new / f"{name}.gin", _GIN.format(**values))
        write_text(new / "README.md", _PAGE.format(**values))
        config.load(str(new / f"{name}.gin"))
    if data_state.row_of(task) is None:
        print(f"warning: {data_state.unknown_task(task)}")
    file = folder / f"{name}.gin"
    print(f"{shown(file)}: change what differs, then make check EXP={name}", flush=True)
    return file


def _objective_fragment(task: str) -> str:
    """The file of gin/objectives that a task needs after gin/runs/pretrain.gin; "" for span corruption, and where the
    task is not known. Its name tells where its text or its vocabulary is missing."""
    if (row := data_state.row_of(task)) is None:
        dataset = possible_dataset(task, data_state.vocabularies())
        is_supervised = dataset in TFDS_TASKS or bool(dataset and ENDING.match(task.removeprefix(f"{dataset}_")))
        return "none" if is_supervised else ""
    return data_state.objective_fragment(row.parts[0]) if row.parts else "none"
