"""`ImportedCheckpoint`, the contents of another program's checkpoint; and its place: in a folder, or on the hub."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError, first_line, nearest
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange.formats import weights
from t5xpg.models.model import Model, Params

CONFIG = "config.json"
GGUF = ".gguf"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "spiece.model",
)  # fmt: skip
_ON_THE_HUB = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")
_SAFETENSORS = ["*.safetensors", f"{weights.SAFETENSORS}{weights.INDEX}"]
_TORCH = ["pytorch_model*.bin", f"{weights.TORCH}{weights.INDEX}"]


def tokenizer_files(folder: Path) -> tuple[Path, ...]:
    """The files of TOKENIZER_FILES that a folder has."""
    return tuple(folder / name for name in TOKENIZER_FILES if (folder / name).is_file())


def run_name(name: str) -> str:
    """The name of the run of a checkpoint, made from the checkpoint's name; used where the user gives no other."""
    identifier = re.sub(r"\W+", "_", name).strip("_") or "imported"
    return f"t5_{identifier}" if identifier[0].isdigit() else identifier


@dataclass(frozen=True)
class ImportedCheckpoint:
    """A model, its parameters and its vocabulary.

    source: where it came from, for people. name: of its run. format: of the files ("huggingface", "t5x",
    "mesh_tensorflow", "gguf"). family: as its own program calls it. files: those that identify it. step, opt_state: the
    optimiser's, if it was read (opt_state: optax's state of `optimizers.Adafactor`).
    """

    source: str
    name: str
    format: str
    family: str
    model: Model
    params: Params
    vocabulary: Vocabulary
    files: tuple[Path, ...]
    step: int = 0
    opt_state: Any = None


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder of transformers. source: its path, or its name on the hub with the commit. name: as of its run."""

    path: Path
    source: str
    name: str


def require_links_inside(folder: Path, files: Iterable[Path]) -> None:
    """Raise UserError where one of the files is a link that leads out of the folder: it is no file of the checkpoint.

    Links in the hub's cache may lead anywhere in the repository's folder, which holds the files of all revisions.
    """
    root = folder.resolve()
    root = root.parents[1] if root.parent.name == "snapshots" else root
    for file in files:
        if file.is_symlink() and not file.resolve().is_relative_to(root):
            raise UserError(
                f"{file} is a link to {file.resolve()}, outside of {folder}. Put a copy of that file in its place."
            )


def find(checkpoint: str) -> CheckpointFolder:
    """The folder of a checkpoint: a path, or `owner/name` or `owner/name@revision` on the hub.

    A whole copy in the hub's cache on this machine is used without asking the hub. Raises UserError if there is none.
    """
    if not checkpoint:
        raise UserError("Name a checkpoint: CHECKPOINT=google/byt5-small, or the path of a folder.")
    path = Path(os.path.expanduser(checkpoint))
    if path.is_dir():
        return CheckpointFolder(path, str(path.resolve()), run_name(path.resolve().name))
    if path.is_file():
        raise UserError(
            f"CHECKPOINT={checkpoint} is a file: name the folder that holds it, with its config.json, or a {GGUF} file."
        )
    match, is_file = _ON_THE_HUB.fullmatch(checkpoint), path.suffix == GGUF
    if match is None or is_file or checkpoint.startswith((".", "/", "~")):
        beside = [*path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, [each.name for each in beside if (each.suffix == GGUF if is_file else each.is_dir())])
        raise UserError(
            f"CHECKPOINT={checkpoint}: there is no such {'file' if is_file else 'folder'}."
            f"{near if 'Did you mean' in near else ''} Expected a folder, a {GGUF} file, or a name on the Hugging Face "
            "hub, such as google/byt5-small."
        )
    return _hub_folder(match["name"], match["revision"])


def _hub_folder(name: str, revision: str | None) -> CheckpointFolder:
    """A model of the hub, downloaded unless it is here. PyTorch's files are fetched only where there are no others."""
    folder = _snapshot(name, revision, None)
    if folder is None or not ((folder / CONFIG).is_file() and _has_weights(folder) and tokenizer_files(folder)):
        print(f"downloading {name} from the Hugging Face hub", flush=True)
        folder = _snapshot(name, revision, _SAFETENSORS)
        if folder is not None and not _has_weights(folder):
            folder = _snapshot(name, revision, _TORCH)
    assert folder is not None
    weights.files_of(folder)  # raises UserError if there are no parameters
    return CheckpointFolder(folder, f"{name}@{folder.name}", run_name(Path(name).name))


def _has_weights(folder: Path) -> bool:
    try:
        return all(file.is_file() for file in weights.files_of(folder))
    except UserError:
        return False


def _snapshot(name: str, revision: str | None, patterns: list[str] | None) -> Path | None:
    """The folder of a revision, downloaded with files of these patterns; without patterns the local copy, or None."""
    import huggingface_hub  # late: it takes half a second

    local = patterns is None
    file_patterns: Any = None if patterns is None else [CONFIG, *TOKENIZER_FILES, *patterns]
    try:
        snapshot = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=file_patterns, local_files_only=local
        )
    except Exception as error:  # of the network, of the hub and of the cache: they share no base class
        if local:
            return None
        raise UserError(
            f"{name} cannot be had from the Hugging Face hub ({first_line(error)}), and this machine has no copy. "
            "Without a network, copy the folder (config.json, parameters, tokenizer) and name it: CHECKPOINT=path"
        ) from None
    return Path(snapshot)
