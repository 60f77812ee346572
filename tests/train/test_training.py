"""Options of training together: they learn, and a run that is continued is the unbroken one."""

import shutil

import pytest

from t5xpg.run.records import read_jsonl
from tests.workplace import Workplace, assert_same_run

pytestmark = pytest.mark.process

# Everything that changes how a step or a batch is made, at once.
OPTIONS = [
    "--gin.DTYPE=bfloat16", "--gin.PACK=True", "--gin.NUM_MICROBATCHES=2", "--gin.NUM_VIRTUAL_SHARDS=2",
    "--gin.LABEL_SMOOTHING=0.1", "--gin_file=gin/optimizers/adafactor.gin", "--gin.STATS_PERIOD=3",
    "--gin.CHECKPOINT_PERIOD=3", "--gin.EMA_DECAY=0.9",
]  # fmt: skip


def test_packed_microbatched_bfloat16_runs_learn_and_continue(workplace: Workplace) -> None:
    run, parts = (workplace.folder / "runs" / name for name in ("options", "parts"))
    train = ("train", str(workplace.experiment), *OPTIONS)
    workplace.run(*train, "--run=options")
    workplace.run(*train, "--gin.TRAIN_STEPS=6", "--run=parts")
    assert "continues after step 6" in workplace.run(*train, "--run=parts")
    assert_same_run(parts, run, 12)
    validation = [record["loss"] for record in read_jsonl(run / "metrics.jsonl") if record["split"] == "validation"]
    assert validation[-1] < validation[0] - 0.1


def test_a_run_of_length_buckets_continues(workplace: Workplace) -> None:
    """Stopped with buckets half full and batches of several shapes read ahead; targets of 1 to 60 bytes."""
    pairs = "\n".join(f"Write {7 * number % 60 + 1} times x.\t{'x' * (7 * number % 60)}." for number in range(400))
    (workplace.folder / "pairs.tsv").write_text(pairs)
    workplace.run("data", "pairs", f"--files='{workplace.folder / 'pairs.tsv'}'", "--fields=inputs,targets")
    options = [
        str(workplace.experiment), "--gin_file=gin/objectives/none.gin", "--gin.USE_CACHED_TASKS=False",
        "--gin.MIXTURE_OR_TASK_NAME=pairs_text_to_text", "--gin.TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 64}",
        "--gin.LENGTH_BUCKETS=(32, 48, 64)", "--gin.NUM_MICROBATCHES=2", "--gin.STATS_PERIOD=1",
        "--gin_file=gin/optimizers/adafactor.gin", "--gin.CHECKPOINT_PERIOD=6",
    ]  # fmt: skip
    printed = workplace.run("train", *options, "--run=buckets")
    assert "8 x 32/32 or 4 x 32/48 or 4 x 32/64 tokens" in printed
    runs = workplace.folder / "runs"
    shutil.copytree(runs / "buckets", runs / "bucket_parts", ignore=shutil.ignore_patterns("12"))
    assert "continues after step 6" in workplace.run("train", *options, "--run=bucket_parts")
    assert_same_run(runs / "bucket_parts", runs / "buckets", 12)
    timing = read_jsonl(runs / "buckets" / "timing.jsonl")
    tokens = {round(each["tokens_per_second"] * each["seconds_per_step"] * each["steps"]) for each in timing}
    assert tokens == {8 * (32 + 32), 4 * (32 + 48), 4 * (32 + 64)}, "updates of every bucket"
    other = ("--gin.LENGTH_BUCKETS=(32, 64)", "--run=bucket_parts")
    workplace.refused("train", *options, *other, words=["train_dataset.length_buckets"])
