"""The experiments on published tables, with made-up files of the same format; and the splits of SCAN."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from t5xpg.experiment import config
from t5xpg.run.records import read_jsonl
from tests.table_files import SPLITS, TABLES, scan, write_table_files
from tests.workplace import Workplace, program_of

SMALL = [
    "TRAIN_STEPS=2", "WARMUP_STEPS=1", "EVAL_PERIOD=2", "EVAL_STEPS=1", "INFER_EVAL_PERIOD=2", "INFER_EVAL_STEPS=1",
    "BATCH_SIZE=2", "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 48}", "LENGTH_BUCKETS=(16, 64)",
    "needs.Data.sha256=None",
    "decoding.DecodingConfig.max_decode_length=8", "encoder_decoder.T5Config.emb_dim=32",
    "encoder_decoder.T5Config.num_encoder_layers=1", "encoder_decoder.T5Config.num_decoder_layers=1",
]  # fmt: skip
METRICS = {
    "java_csharp": {"codexglue_bleu", "codexglue_exact_match"},
    "multi30k_bpe": {"token_bleu", "token_bleu_parts", "token_bleu_signature"},
    "nb_nn": {"bleu", "bleu_signature", "exact_match"},
    "scan_length": {"exact_match"},
    "title_retrieval": {"exact_match"},
}


@pytest.mark.process
@pytest.mark.parametrize("name", TABLES)
def test_files_become_data_vocabulary_and_a_run(name: str, own_place: Path) -> None:
    write_table_files(own_place)
    # caching with a trained vocabulary: tests/data/tasks/test_every_task.py
    given = [f"needs.Data.files={at_place(name, own_place)}", f"USE_CACHED_TASKS={name == 'java_csharp'}", *SMALL]
    printed = Workplace(own_place).run("train", name, *(f"--gin.{one}" for one in given))
    assert not [line for line in printed.splitlines() if "warning" in line.lower()], printed
    (record,) = [one for one in read_jsonl(own_place / "runs" / name / "metrics.jsonl") if one["split"] == "infer_eval"]
    assert set(record["metrics"]) == METRICS[name]


def at_place(name: str, place: Path) -> dict[str, str]:
    given = config.load(name).experiment.needs[0].files
    return {split: " ".join(str(place / file) for file in files.split()) for split, files in given.items()}


def test_scan_is_split_by_length() -> None:
    splits = program_of(SPLITS)
    found = splits.split_by_length(splits.pairs_of(scan()))
    lengths = {split: [len(actions.split()) for _, actions in pairs] for split, pairs in found.items()}
    assert lengths["test"] == list(range(27, 61))
    # NumPy draws without replacement by taking the first of a permutation
    held_out = np.random.RandomState(1234).permutation(26)[:2] + 1
    assert lengths["validation"] == sorted(held_out.tolist())
    assert sorted(lengths["train"] + lengths["validation"]) == list(range(1, 27))
    assert found["test"][0] == ("jump " + " ".join(["twice"] * 27), " ".join(["I_JUMP"] * 27))


def test_another_file_than_that_of_scan_is_refused(tmp_path: Path) -> None:
    splits = program_of(SPLITS)
    (tmp_path / "tasks.txt.gz").write_bytes(gzip.compress(scan().encode()))
    with pytest.raises(SystemExit, match=r"tasks\.txt\.gz"):
        splits.main(tmp_path / "tasks.txt.gz", tmp_path / "scan")
    with pytest.raises(ValueError, match="line 2"):
        splits.pairs_of("IN: a OUT: b\njump\n")
