"""Made-up files in the format of those that the experiments on published tables read."""

import gzip
import hashlib
from pathlib import Path

from tests.workplace import program_of

SPLITS = "experiments/scan_length/scan_splits.py"
TABLES = ("java_csharp", "multi30k_bpe", "nb_nn", "scan_length", "title_retrieval")
_ROWS = {"train": 40, "validation": 6, "test": 6}
# an experiment's names of its splits and of its files: {} is the split, or the number of a row
_FILES = {
    "java_csharp/{}.java-cs.txt.java": ("train", "valid", "test"),
    "java_csharp/{}.java-cs.txt.cs": ("train", "valid", "test"),
    "multi30k_bpe/{}.en": ("train", "valid", "test.2016"),
    "multi30k_bpe/{}.de": ("train", "valid", "test.2016"),
    "nb_nn/nb_nn_{}.tsv.gz": ("train", "dev", "test"),
    "titles/{}.tsv": ("train", "validation", "test"),
}
_LINES = {
    ".java": "public int get{0}()  {{return size({0});}}",
    ".cs": "public override int Get{0}(){{return Size({0});}}",
    ".en": "a dog in the gr@@ een row {} .",
    ".de": "ein hund in der gr@@ ünen reihe {} .",
    ".gz": "Jeg så {} hunder ikke.\tEg såg ikkje {} hundar.",
    ".tsv": "Returns the sum of the first {} numbers.\tSums of {} numbers.",
}


def write_table_files(folder: Path) -> None:
    """Write the files below `folder`; of SCAN `tasks.txt`, and its splits as the experiment's program makes them."""
    for name, splits in _FILES.items():
        line = _LINES[Path(name).suffix]
        for split, count in zip(splits, _ROWS.values(), strict=True):
            file = folder / name.format(split)
            file.parent.mkdir(exist_ok=True)
            text = "".join(line.replace("{}", str(n)).format(n) + "\n" for n in range(count)).encode()
            file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    (folder / "titles" / "titles.txt").write_text("".join(f"Sums of {n} numbers.\n" for n in range(40)))
    (folder / "tasks.txt").write_text(scan())
    splits = program_of(SPLITS)
    splits.SHA256 = hashlib.sha256(scan().encode()).hexdigest()
    splits.main(folder / "tasks.txt", folder / "scan")


def scan() -> str:
    """SCAN's format: commands of 1 to 60 actions."""
    return "".join(f"IN: jump {'twice ' * n}OUT:{' I_JUMP' * n}\n" for n in range(1, 61))
