"""A function for each command, which hands the options to the subpackage that does the work.

A subpackage is imported only by the commands that need it, so that `t5xpg --help` takes a fraction of a second.
"""

from argparse import Namespace

from t5xpg import arguments
from t5xpg.base import stores
from t5xpg.handlers import data_commands, run_commands, study_commands

_HANDLERS = {**data_commands.HANDLERS, **run_commands.HANDLERS, **study_commands.HANDLERS}


def handle(options: Namespace) -> int:
    """Run the function of `options.command`; returns the exit code."""
    arguments.opened_runs.clear()
    code = _HANDLERS[options.command](options) or 0
    for run in arguments.opened_runs if options.command != "train" else ():  # training pushes by itself
        stores.push(run)
    return code
