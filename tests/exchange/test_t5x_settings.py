"""Settings of T5X's models that no array shows: read from the files beside a checkpoint, or refused."""

import json
from pathlib import Path

from t5xpg.exchange.from_t5x import read
from t5xpg.models.config import BEYOND_T5
from tests.refusals import refused
from tests.t5x_goldens import unpack


def test_numbers_of_the_gin_files(tmp_path: Path) -> None:
    folder = unpack("t5_1_1", tmp_path)

    def config(text: str) -> object:
        (folder / "config.gin").write_text(text)
        return read(str(folder), tokenizer=None, sentinels=None, optimizer=False).model.config

    usual = config("")
    for text in (
        "a.RelativePositionBiases:\n  max_distance = 128\n",
        "b.sublayer_rms_norm.epsilon = 1e-06",
        "# epsilon = 1",
    ):
        assert config(f"network.T5Config.mlp_activations = ('gelu', 'linear')\n{text}") == usual
    assert config("EPSILON = 1e-6\nlayers.LayerNorm.epsilon = %EPSILON\n") == usual
    for text in (
        "layers.relative_attention_max_distance = 256",
        "layers.LayerNorm.epsilon = 1e-5",
        "max_distance = %X",
    ):
        with refused("config.gin, line 2", text, "Expected 1"):
            config(f"# of T5X\n{text}")


def test_settings_of_a_record(tmp_path: Path) -> None:
    """Those beyond T5's, of which T5X has none."""
    folder = unpack("t5_1_1", tmp_path)
    for name in ("relative_attention_max_distance", *BEYOND_T5):
        (folder / "t5xpg.json").write_text(json.dumps({"model": {name: 17, "mlp_activations": ["gelu", "linear"]}}))
        with refused(f"{name} is 17", "t5xpg.json"):
            read(str(folder), tokenizer=None, sentinels=None, optimizer=False)
