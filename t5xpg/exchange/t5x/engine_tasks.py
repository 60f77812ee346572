"""Registers our tasks, as the experiment has them, in T5X's process. gin/engines/t5x.gin imports this module."""

import importlib
import json
import os

import seqio

from t5xpg.base.paths import data_directory
from t5xpg.data import objectives
from t5xpg.data.tasks import registered  # noqa: F401  (registers them, and says where caches lie)
from t5xpg.data.tasks.table import register_tasks
from t5xpg.exchange.t5x.engine import MODULES, OBJECTIVE

if os.environ.get(OBJECTIVE):
    register_tasks(data_directory(), objectives.from_json(json.loads(os.environ[OBJECTIVE])))
for _name in os.environ.get(MODULES, "").split():
    importlib.import_module(_name)


def vocabulary(task: str) -> seqio.Vocabulary:
    """The vocabulary of a task's targets. T5X refuses a model whose vocabulary is not its task's."""
    return seqio.get_mixture_or_task(task).output_features["targets"].vocabulary
