"""The folder of a proof: held by one process, and holding nothing but what proofs leave there."""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

import jax

from t5xpg.base import locks
from t5xpg.base.errors import UserError
from t5xpg.base.files import remove
from t5xpg.base.paths import shown

_LOCK = ".lock"


@contextlib.contextmanager
def proof_folder(path: Path, own: Collection[str]) -> Iterator[Path]:
    """Hold the folder `path`, emptied of an earlier proof, for the block; yields its absolute path.

    own: the names that proofs leave; other runs may lie there, as in RUN=./runs. The program itself only
    reads arrays meanwhile, on the CPU: accelerators are the training's. Raises UserError where it holds anything else.
    """
    jax.config.update("jax_platforms", "cpu")
    folder = path.absolute()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder. Name another one with RUN=…")
    instead = "Wait for it, or name another folder with RUN=…"
    with locks.hold(folder / _LOCK, doing=f"proving in {shown(folder)}", instead=instead):
        entries = sorted(entry for entry in folder.iterdir() if entry.name != _LOCK)
        strangers = [entry.name for entry in entries if entry.name not in own]
        if strangers:
            more = " and more" if len(strangers) > 5 else ""
            raise UserError(
                f"{folder} holds something else than a proof: {', '.join(strangers[:5])}{more}. Name another folder "
                "with RUN=…, or delete it."
            )
        for entry in entries:
            remove(entry)
        yield folder


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)
