"""Texts of any size for the rows on exporting and caching: documents of pydocs, drawn again."""

import json
import random
from collections.abc import Iterator

from benchmarks.harness import say
from t5xpg.base import paths
from t5xpg.experiment import making

SPLITS = ("train", "validation")


def drawn(split: str, size: int) -> Iterator[str]:
    """At least `size` bytes of documents of the export of pydocs, each with a number in front: no two are equal."""
    file = paths.data_directory() / "pydocs" / f"{split}.jsonl"
    if not file.is_file():
        making.export_dataset("pydocs", log=say)
    documents = [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()]
    draw, number = random.Random(0), 0
    while size > 0:
        text = f"{number} {draw.choice(documents)}"
        number, size = number + 1, size - len(text.encode("utf-8"))
        yield text
