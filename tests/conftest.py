"""What several test files share: a small workplace in which the program runs as a user runs it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

EXPERIMENT = """
from __gin__ import dynamic_registration
from t5xpg.models import encoder_decoder
include 'gin/models/byt5_tiny.gin'
include 'gin/optimizers/adamw.gin'
include 'gin/partitioning/one_device.gin'
include 'gin/runs/pretrain.gin'

MIXTURE_OR_TASK_NAME = 'small_span_corruption'
TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 32}
TRAIN_STEPS = 12
BATCH_SIZE = 4
RANDOM_SEED = 7
DROPOUT_RATE = 0.1
WARMUP_STEPS = 4
STATS_PERIOD = 5
EVAL_PERIOD = 6
EVAL_STEPS = 2
CHECKPOINT_PERIOD = 4

encoder_decoder.T5Config:
  emb_dim = 32
  num_heads = 2
  head_dim = 16
  mlp_dim = 64
  num_encoder_layers = 1
  num_decoder_layers = 1
"""


@dataclass(frozen=True)
class Workplace:
    """A folder with data, caches, runs and one experiment, away from those of the checkout."""

    folder: Path

    @property
    def experiment(self) -> Path:
        return self.folder / "small.gin"

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "T5XPG_DATA_DIR": str(self.folder / "data"),
            "T5XPG_CACHE_DIR": str(self.folder / "cache"),
            "T5XPG_RUNS_DIR": str(self.folder / "runs"),
            "PYTHONPATH": str(self.folder),
            "PYTHONUNBUFFERED": "1",
        }
        return {**os.environ, **own}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "t5xpg", *arguments]

    def run(self, *arguments: str, code: int = 0, **variables: str) -> str:
        """Run the program; returns what it printed on both streams."""
        done = subprocess.run(
            self.command(*arguments),
            env={**self.environment, **variables},
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, done.stdout
        return done.stdout


def sentences(count: int, seed: int) -> str:
    """Lines of made-up but regular English, each of more than 100 characters."""
    draw = random.Random(seed)
    nouns = ["dog", "cat", "house", "river", "teacher", "engine", "letter", "window", "garden", "doctor"]
    verbs = ["sees", "finds", "paints", "follows", "remembers", "carries", "repairs", "watches"]
    lines = []
    for _ in range(count):
        parts = [f"the {draw.choice(nouns)} {draw.choice(verbs)} the {draw.choice(nouns)}" for _ in range(5)]
        lines.append(", and ".join(parts) + ".")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """Exported and cached text and an experiment, in a folder with a space. Tests use run folders of their own."""
    place = Workplace(tmp_path_factory.mktemp("work place"))
    (place.folder / "train.txt").write_text(sentences(300, seed=1))
    (place.folder / "validation.txt").write_text(sentences(40, seed=2))
    place.experiment.write_text(EXPERIMENT)
    files = f"train='{place.folder / 'train.txt'}' validation='{place.folder / 'validation.txt'}'"
    place.run("data", "small", f"--files={files}")
    place.run("cache", "small_span_corruption")
    return place
