"""The folder of a proof: held by one process, and holding nothing but what proofs leave there."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from t5xpg.base import locks
from t5xpg.base.errors import UserError
from t5xpg.base.files import remove
from t5xpg.base.paths import shown

_LOCK = ".lock"


@contextlib.contextmanager
def proof_folder(path: Path, is_own: Callable[[Path], bool]) -> Iterator[Path]:
    """Hold the folder `path`, emptied of an earlier proof, for the block; yields its absolute path.

    is_own: whether an entry of the folder is from an earlier proof. Raises UserError where it holds anything else.
    """
    folder = path.absolute()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder. Name another one with RUN=…")
    instead = "Wait for it, or name another folder with RUN=…"
    with locks.hold(folder / _LOCK, doing=f"proving in {shown(folder)}", instead=instead):
        entries = sorted(entry for entry in folder.iterdir() if entry.name != _LOCK)
        strangers = [entry.name for entry in entries if not is_own(entry)]
        if strangers:
            more = " and more" if len(strangers) > 5 else ""
            raise UserError(
                f"{folder} holds something else than a proof: {', '.join(strangers[:5])}{more}. Name another folder "
                "with RUN=…, or delete it."
            )
        for entry in entries:
            remove(entry)
        yield folder
