"""The commands `export`, `import` and `convert-gin`: in and out of other programs' formats."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from t5xpg.errors import UserError, nearest

if TYPE_CHECKING:
    from t5xpg.config import LoadedConfig

FORMATS = ("hf", "t5x")


def add_options(
    exporting: argparse.ArgumentParser, importing: argparse.ArgumentParser, converting: argparse.ArgumentParser
) -> None:
    """The options of the commands."""
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
    converting.add_argument("file", help="a gin file for T5X: a family and size, a run, macros and bindings")
    converting.add_argument("--output", metavar="FILE", help="where the experiment goes (default: the terminal)")
    converting.add_argument(
        "--search", metavar="FOLDER", action="append", default=[], help="where other files that it includes are"
    )
    converting.add_argument("--force", action="store_true", help="replace a file that is there")


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


def convert(options: argparse.Namespace) -> int:
    """Write T5X's gin file as an experiment of ours; say what of it is left out, and what is wrong with the rest."""
    from t5xpg import config
    from t5xpg.files import write_text
    from t5xpg.importing import t5x_gin

    output = Path(options.output) if options.output else None
    if output is not None and output.exists() and not options.force:
        raise UserError(f"{output} is there. Name another file, or replace it with --force.")
    converted = t5x_gin.convert(Path(options.file), [Path(folder) for folder in options.search])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "converted.gin"
        write_text(file, converted.text)
        problems = config.examine(str(file))[1]
    if output is None:
        print(converted.text, end="")
    else:
        write_text(output, converted.text)
    name = str(output or "the experiment")
    said = {
        "needed here no more": converted.unneeded,
        "not carried over": converted.unsupported,
        "to be mended before it can be trained": [one.replace(str(file), name) for one in problems],
    }
    for what, lines in said.items():
        if lines:
            print("\n".join([f"{what}:", *(f"  {line}" for line in lines)]), file=sys.stderr)
    if output is not None:
        print(f"written to {output}")
    return 0
