"""A function for each command (`_train` for `train`), which hands the options to the subpackage that does the work.

A subpackage is imported only by the commands that need it, so that `t5xpg --help` takes a fraction of a second.
"""

from argparse import Namespace

from t5xpg import arguments
from t5xpg.base import stores
from t5xpg.handlers import data_commands, run_commands, study_commands

_FUNCTIONS = {**vars(data_commands), **vars(run_commands), **vars(study_commands)}


def handle(options: Namespace) -> int:
    """Run the function of `options.command`; returns the exit code."""
    arguments.opened_runs.clear()
    code = _FUNCTIONS[f"_{options.command.replace('-', '_')}"](options) or 0
    for run in arguments.opened_runs if options.command != "train" else ():  # training pushes by itself
        stores.push(run)
    return code
