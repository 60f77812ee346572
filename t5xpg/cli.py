"""The command line: reads the arguments, runs the command, and reports a mistake in one message."""

import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from t5xpg import commands, handlers
from t5xpg.base.digests import VERIFY_VARIABLE
from t5xpg.base.errors import UserError, first_line
from t5xpg.base.files import is_disk_full
from t5xpg.base.requested_hosts import require_alone

TRACEBACK_VARIABLE = "T5XPG_TRACEBACK"
_COMPLETION = "--print-completion"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for a mistake that was explained, 128 + n for signal n."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # argparse does not know these
    overrides = [argument for argument in arguments if argument.startswith(("--gin.", "--gin_file="))]
    parser = commands.parser()
    if any(argument.startswith(_COMPLETION) for argument in arguments):
        _add_completion(parser)
    options = parser.parse_args([argument for argument in arguments if argument not in overrides])
    if overrides and not hasattr(options, "gin_overrides"):
        parser.error(f"{options.command} takes no {overrides[0].partition('=')[0]}")
    options.overrides = overrides
    if options.verify:
        os.environ[VERIFY_VARIABLE] = "1"
    # The exception makes `with` and `finally` blocks clean up. While training runs, it handles the signal itself.
    signal.signal(signal.SIGTERM, _end)
    try:
        if commands.COMMANDS[options.command].one_process:
            require_alone(f"make {options.command}", os.environ)
        return handlers.handle(options)
    except Exception as error:
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


def _add_completion(parser: ArgumentParser) -> None:
    """Let `--print-completion=bash` (zsh, tcsh) print a script by which the shell completes commands and options."""
    import shtab

    names = {"bash": "_t5xpg_experiments", "zsh": "_t5xpg_experiments"}
    (commands_of,) = (action for action in parser._actions if isinstance(action.choices, dict))
    for command in commands_of.choices.values():  # type: ignore[union-attr]
        for action in command._actions:
            if action.dest == "experiment":
                action.complete = names
    list_them = "ls experiments 2>/dev/null"
    preamble = {
        "bash": f'_t5xpg_experiments() {{ compgen -W "$({list_them})" -- "$1"; }}',
        "zsh": f"_t5xpg_experiments() {{ compadd -- $({list_them}) }}",
    }
    shtab.add_argument_to(parser, _COMPLETION, preamble=preamble)


def _end(number: int, frame: object) -> None:
    """Raise SystemExit, once: a second signal must not interrupt the cleaning up."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _message(error: Exception) -> str | None:
    """The message for the user; None for an error of the program itself."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        place = f" ({error.filename})" if error.filename else ""
        remedy = " Make room there, and run the same command again." if is_disk_full(error) else ""
        return f"{error.strerror}{place}.{remedy}"
    text = str(error)
    if is_disk_full(error):
        return f"{first_line(error)} Make room there, and run the same command again."
    if not isinstance(error, RuntimeError):
        return None
    if "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
        return (
            "The device has not enough memory for the model and a batch. Lower BATCH_SIZE or TASK_FEATURE_LENGTHS, "
            f"or raise NUM_MICROBATCHES. ({text.splitlines()[0]})"
        )
    if "Unable to initialize backend" in text or "Unknown backend" in text:
        return f"{text.splitlines()[0]} Set JAX_PLATFORMS to what is installed here, or leave it out."
    return None
