"""Makes the splits by length of SCAN (Lake and Baroni 2018) from its `tasks.txt`, as Csordás et al. 2021 (section 3.1)
do: commands of at most 26 actions for training, of which a tenth are the validation split, and the longer ones as test.

    python experiments/scan_length/scan_splits.py <tasks.txt, or tasks.txt.gz> <folder for the .tsv files>
"""

import gzip
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SHA256 = "d824c7d9e9149ba497e25f701981dac79954e04bf670d22e5c209f076ac6c89f"  # of tasks.txt, unpacked
CUTOFF = 26  # actions
_TRAIN_SHARE = 0.9
_SEED = 1234
Pair = tuple[str, str]  # command, actions


def pairs_of(text: str) -> list[Pair]:
    """The commands and their actions. Raises ValueError for a line that is not `IN: command OUT: actions`."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        command, separator, actions = line.removeprefix("IN:").partition("OUT:")
        if not line.startswith("IN:") or not separator:
            raise ValueError(f"line {number} is {line!r}, expected IN: … OUT: …")
        found.append((command.strip(), actions.strip()))
    return found


def split_by_length(pairs: Sequence[Pair], cutoff: int = CUTOFF) -> dict[str, list[Pair]]:
    """train, validation and test, each in the order of `pairs`. The validation split is drawn with NumPy's legacy
    generator, whose numbers no version changes, so that it has the very commands of the authors."""
    short = [pair for pair in pairs if len(pair[1].split()) <= cutoff]
    drawn = int(len(short) * (1 - _TRAIN_SHARE))
    held_out = set(np.random.RandomState(_SEED).choice(len(short), drawn, replace=False).tolist())
    return {
        "train": [pair for index, pair in enumerate(short) if index not in held_out],
        "validation": [pair for index, pair in enumerate(short) if index in held_out],
        "test": [pair for pair in pairs if len(pair[1].split()) > cutoff],
    }


def main(source: Path, folder: Path) -> None:
    """Write the splits as tab-separated files. Exits with a message where `source` is not SCAN's file."""
    content = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != SHA256:
        sys.exit(f"{source} is not SCAN's tasks.txt: its SHA-256 is {found}, expected {SHA256}.")
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in split_by_length(pairs_of(content.decode("utf-8"))).items():
        lines = "".join(f"{command}\t{actions}\n" for command, actions in pairs)
        (folder / f"{split}.tsv").write_text(lines, encoding="utf-8")
        print(f"{folder / split}.tsv: {len(pairs):,} commands")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
