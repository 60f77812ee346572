"""How fast `make data` exports a user's files: megabytes of text a second."""

import functools
import json
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Goal, Row, alternate, output_of
from benchmarks.texts import SPLITS, drawn

MEGABYTES = 200
REPEATS = 2


def rows(repeats: int | None) -> list[Row]:
    """The whole command, over JSON lines and over lines of text, and over text without splits."""
    with tempfile.TemporaryDirectory() as here:
        folder = Path(here)
        sizes = write(folder)
        named = {form: " ".join(f"{split}={folder}/{split}.{form}" for split in SPLITS) for form in sizes}
        kinds = {
            "JSON lines": (named["jsonl"], sizes["jsonl"]),
            "lines of text": (named["txt"], sizes["txt"]),
            "lines of text, splits to be made": (f"{folder}/train.txt", sizes["txt"]),
        }

        def export(files: str, size: int) -> float:
            began = time.perf_counter()
            command = ["-m", "t5xpg", "data", "mine", f"--files={files}", "--force"]
            output_of(command, environment={"T5XPG_DATA_DIR": str(folder / "data")})
            return size / 1e6 / (time.perf_counter() - began)

        return [
            Row(
                name="export", what=f"exporting {kind}", unit="MB/s of text", better="higher",
                fixed=f"{MEGABYTES} MB of pydocs drawn again; the whole command, digests of source and export included",
                found=alternate({"t5xpg": functools.partial(export, files, size)}, repeats or REPEATS),
                goal=Goal(at_least=50),
            )
            for kind, (files, size) in kinds.items()
        ]  # fmt: skip


def write(folder: Path) -> dict[str, int]:
    """Write files of both forms for each split; returns the bytes of text by form."""
    sizes = {"jsonl": 0, "txt": 0}
    for split, megabytes in zip(SPLITS, (MEGABYTES, 1), strict=True):
        with (folder / f"{split}.jsonl").open("w") as objects, (folder / f"{split}.txt").open("w") as lines:
            for text in drawn(split, megabytes * 10**6):
                line = " ".join(text.splitlines())
                objects.write(json.dumps({"text": text}) + "\n")
                lines.write(line + "\n")
                sizes["jsonl"] += len(text.encode())
                sizes["txt"] += len(line.encode())
    return sizes
