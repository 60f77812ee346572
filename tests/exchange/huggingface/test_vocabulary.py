"""The vocabulary that a folder means: conventions of bytes, models of pieces, tokenizers.

Those that were exported are read back in test_tokenizer_files.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange.huggingface.tokenizer_files import write_tokenizer
from t5xpg.exchange.huggingface.vocabulary import vocabulary_of_folder
from tests.refusals import refused
from tests.small_tokenizers import byte_level, sentencepiece_model, with_spaces_in_pieces


def found(folder: Path, rows: int = 1000, **options: Any) -> Vocabulary:
    return vocabulary_of_folder(folder, {"vocab_size": rows, "eos_token_id": 1}, **options)


def added(texts: dict[int, str]) -> dict[str, Any]:
    return {"added_tokens_decoder": {str(token): {"content": text} for token, text in texts.items()}}


def write(folder: Path, **settings: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_bytes_as_others_write_them(tmp_path: Path) -> None:
    google = Vocabulary("bytes", 0, "byt5_google")
    write(tmp_path, tokenizer_class="ByT5Tokenizer", extra_ids=125)
    assert found(tmp_path) == google
    assert found(tmp_path, sentinels="transformers") == Vocabulary("bytes", 125, "transformers")
    assert found(tmp_path, sentinels="seqio") == Vocabulary("bytes", 125, "seqio")
    # as transformers saves any of Google's
    upwards = {259 + index: f"<extra_id_{index}>" for index in range(125)}
    write(tmp_path, tokenizer_class="ByT5Tokenizer", **added({0: "<pad>", 1: "</s>", 2: "<unk>", **upwards}))
    assert found(tmp_path) == google
    assert found(tmp_path, sentinels="transformers") == Vocabulary("bytes", 125, "transformers")
    downwards = {383 - index: f"<extra_id_{index}>" for index in range(125)}
    write(tmp_path, tokenizer_class="ByT5Tokenizer", **added(downwards))
    assert found(tmp_path) == Vocabulary("bytes", 125, "seqio")
    write(tmp_path, tokenizer_class="ByT5Tokenizer", **added({300: "<extra_id_0>"}))
    with refused("<extra_id_0>", "300"):
        found(tmp_path)
    write(tmp_path, tokenizer_class="ByT5Tokenizer", **added({**upwards, 384: "<sep>"}))
    with refused("<sep>", "Google"):
        found(tmp_path)
    assert found(tmp_path, sentinels="transformers").encode("a<sep>") == [100, 384]
    (tmp_path / "tokenizer_config.json").unlink()
    assert found(tmp_path, tokenizer="bytes") == google
    several = {"vocab_size": 1000, "eos_token_id": [1, 106]}
    assert vocabulary_of_folder(tmp_path, several, tokenizer="bytes") == google


def test_pieces_as_others_write_them(tmp_path: Path) -> None:
    sentencepiece_model(tmp_path / "spiece.model")
    assert found(tmp_path).extra_ids == 100
    write(tmp_path, extra_ids=300)
    assert found(tmp_path).extra_ids == 300
    write(tmp_path, extra_special_tokens=[f"<extra_id_{index}>" for index in range(7)])
    assert found(tmp_path).extra_ids == 7
    sentinels = ",".join(f"▁<extra_id_{index}>" for index in (2, 1, 0))
    (own := tmp_path / "own").mkdir()  # a model stays loaded by its path
    sentencepiece_model(own / "spiece.model", user_defined_symbols=sentinels)
    write(own, extra_ids=0)
    assert (found(own).sentinels, found(own).num_sentinels) == ("own", 3)


@pytest.mark.parametrize("text", ["[MASK]", "{", "[FOO]"])
@pytest.mark.parametrize("place", ["tokenizer_config.json", "added_tokens.json"])
def test_tokens_that_someone_added_behind_the_sentinels(text: str, place: str, tmp_path: Path) -> None:
    """As `add_tokens` of transformers 4 does; its slow tokenizers have no tokenizer.json."""
    size = vocabulary_of_file(Path(sentencepiece_model(tmp_path / "spiece.model")), 8).size
    ids = {size - 1 - index: f"<extra_id_{index}>" for index in range(8)}
    write(tmp_path, **added(ids), extra_ids=8)
    assert found(tmp_path).sentinel_id(0) == size - 1
    if place == "added_tokens.json":  # of before version 4.34
        write(tmp_path, extra_ids=8)
        (tmp_path / place).write_text(json.dumps({text: size}))
    else:
        write(tmp_path, **added({**ids, size: text}), extra_ids=8)
    with refused("spiece.model"):
        found(tmp_path)


@pytest.fixture
def definition(tmp_path: Path) -> dict[str, Any]:
    """What tokenizer.json has of the pieces that lie beside it."""
    (tmp_path / "made").mkdir()
    made = vocabulary_of_file(Path(sentencepiece_model(tmp_path / "made" / "a.model")), 8)
    write_tokenizer(tmp_path, made, longest=64)
    assert found(tmp_path).kind == "sentencepiece"
    return json.loads((tmp_path / "tokenizer.json").read_text())


def test_a_tokenizer_with_more_than_its_pieces(tmp_path: Path, definition: dict[str, Any]) -> None:
    """Tokens that someone has added are in tokenizer.json alone."""
    definition["added_tokens"].append({**definition["added_tokens"][-1], "id": 72, "content": "Ærø", "special": False})
    definition["model"]["vocab"].append(["Ærø", 0.0])
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    assert found(tmp_path).kind == "huggingface"
    assert 72 in found(tmp_path).encode("bad Ærø")


def test_a_tokenizer_that_reads_texts_otherwise_than_its_pieces(tmp_path: Path, definition: dict[str, Any]) -> None:
    """transformers reads tokenizer.json; where it was changed, the pieces beside it are of an earlier tokenizer."""
    definition["normalizer"]["normalizers"].insert(0, {"type": "Lowercase"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    lower = found(tmp_path)
    assert lower.kind == "huggingface"
    assert lower.encode("BAD bag") == lower.encode("bad bag")


def test_sentinels_of_a_tokenizer_that_count_upwards(tmp_path: Path) -> None:
    """As transformers numbers those of `T5Tokenizer(vocab=…)`; no others come behind them, whatever rows there are."""
    tokenizer = Tokenizer.from_file(str(file := with_spaces_in_pieces(tmp_path)))
    tokenizer.add_special_tokens([f"<extra_id_{index}>" for index in range(100)])
    tokenizer.save(str(file))
    for rows in (400, 1000):
        assert found(tmp_path, rows) == vocabulary_of_file(file, 0)
        assert found(tmp_path, rows).encode("<extra_id_1>") == [tokenizer.token_to_id("<extra_id_1>")]


def test_what_does_not_fit(tmp_path: Path) -> None:
    with refused("TOKENIZER=path", "TOKENIZER=bytes"):
        found(tmp_path)
    write(tmp_path, tokenizer_class="ByT5Tokenizer")
    with refused("259 ids", "100"):
        found(tmp_path, rows=100)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with refused("tokenizer_config.json"):
        found(tmp_path)
    byte_level(tmp_path / "other", ("</s>", "<pad>"))
    with refused("padding", " 1", " 0"):
        vocabulary_of_folder(tmp_path / "other", {"vocab_size": 1000})
