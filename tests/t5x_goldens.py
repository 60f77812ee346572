"""The checkpoints that T5X itself wrote (tests/goldens/make_t5x_goldens.py), unpacked."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

FOLDER = Path(__file__).parent / "goldens" / "t5x"
CONTENTS: dict[str, dict[str, str]] = json.loads((FOLDER / "contents.json").read_text(encoding="utf-8"))
CASES = sorted(CONTENTS)
SIZES: dict[str, Any] = {
    "emb_dim": 16, "num_heads": 3, "head_dim": 6, "mlp_dim": 24, "num_encoder_layers": 3, "num_decoder_layers": 2,
}  # fmt: skip


def unpack(case: str, folder: Path) -> Path:
    """The folder that T5X was told to write to."""
    target = folder / case
    with zipfile.ZipFile(FOLDER / f"{case}.zip") as packed:
        packed.extractall(target)
    return target


def answers(case: str) -> dict[str, np.ndarray]:
    """inputs [B, S], targets [B, T], and the logits that T5X's network computes."""
    return load_file(FOLDER / f"{case}.safetensors")


def described(array: np.ndarray) -> str:
    """As contents.json has it: the shape, and the beginning of the SHA-256 of the numbers as float32."""
    digest = hashlib.sha256(np.ascontiguousarray(array.astype(np.float32)).tobytes()).hexdigest()
    return f"{'x'.join(map(str, array.shape))} {digest[:16]}"
