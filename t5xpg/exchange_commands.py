"""The commands `export` and `import`: checkpoints in and out of other programs' formats."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from t5xpg.errors import UserError, nearest

if TYPE_CHECKING:
    from t5xpg.config import LoadedConfig

FORMATS = ("hf", "t5x")


def add_options(exporting: argparse.ArgumentParser, importing: argparse.ArgumentParser) -> None:
    """The options of the two commands."""
    exporting.add_argument("--format", default="hf", help="hf (default): a folder that transformers loads; t5x")
    exporting.add_argument(
        "--output", metavar="FOLDER", help="where it goes (default: huggingface or t5x in the run directory)"
    )
    importing.add_argument(
        "checkpoint", help="a folder (transformers, T5X, Mesh-TensorFlow), or a name on the hub: google/byt5-small"
    )
    importing.add_argument("--name", help="of the run (default: that of the checkpoint)")
    importing.add_argument("--tokenizer", metavar="FILE", help="instead of the checkpoint's own; bytes for none")
    importing.add_argument(
        "--sentinels", help="the convention of a byte vocabulary: byt5_google, transformers or seqio"
    )
    importing.add_argument("--optimizer", action="store_true", help="take the Adafactor of a T5X checkpoint, too")
    importing.add_argument("--force", action="store_true", help="replace what was imported before")


def export(options: argparse.Namespace, loaded: LoadedConfig, directory: Path) -> int:
    """Write a run's checkpoint for another program."""
    from t5xpg import exporting
    from t5xpg.exporting import to_t5x

    if options.format not in FORMATS:
        raise UserError(f"FORMAT={options.format} is not known.{nearest(options.format, FORMATS)}")
    output = Path(options.output) if options.output else None
    if options.format == "t5x":
        to_t5x.export(loaded, directory, output)
    else:
        exporting.export(loaded, directory, output)
    return 0


def take(options: argparse.Namespace) -> int:
    """Make a run of another program's checkpoint."""
    from t5xpg import importing, paths

    importing.import_checkpoint(
        options.checkpoint,
        paths.runs_directory(),
        name=options.name,
        tokenizer=options.tokenizer,
        sentinels=options.sentinels,
        optimizer=options.optimizer,
        force=options.force,
    )
    return 0
