"""SentencePiece models: what their tokens stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.vocabulary import OWN, SEQIO, Vocabulary
from tests.small_tokenizers import sentencepiece_model

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁\0"))
LOSSLESS = {
    "vocab_size": 400, "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def lossless(folder: Path) -> Vocabulary:
    return vocabulary_of_file(Path(sentencepiece_model(folder / "lossless.model", **LOSSLESS)))


@pytest.fixture(scope="module")
def normalising(folder: Path) -> Vocabulary:
    return vocabulary_of_file(
        Path(sentencepiece_model(folder / "normalising.model", vocab_size=400, byte_fallback=True))
    )


@given(ANY_TEXT)
def test_bytes_of_the_tokens_are_those_of_the_text_and_a_space(lossless: Vocabulary, text: str) -> None:
    expected = len(text.encode()) + (1 if text else 0)
    assert lossless.token_bytes()[lossless.encode_plain(text)].sum() == expected


@given(ANY_TEXT)
def test_what_a_model_normalises_counts_as_normalised(normalising: Vocabulary, text: str) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=normalising.model_file)
    seen = processor.Normalize(text).replace("▁", " ")
    assert normalising.token_bytes()[normalising.encode_plain(text)].sum() == len(seen.encode())


def test_unknown_characters_are_no_bytes(folder: Path) -> None:
    vocabulary = vocabulary_of_file(Path(sentencepiece_model(folder / "plain.model")))
    ids = vocabulary.encode("bag 日本 dem")
    assert vocabulary.unknown_characters("bag 日本 dem") == 2
    assert vocabulary.unknown_characters("bag dem") == 0
    assert vocabulary.token_bytes()[ids].sum() == len(" bag  dem")


def test_sentinels_among_the_pieces(folder: Path) -> None:
    """As the model of mT5 has them."""
    pieces = [f"<extra_id_{i}>" for i in reversed(range(5))]
    given_size = {"vocab_size": 64, "user_defined_symbols": pieces}
    file = Path(sentencepiece_model(folder / "own.model", **given_size))
    appended = vocabulary_of_file(file)
    assert (appended.sentinels, appended.extra_ids) == (SEQIO, 100)  # its own are not the last ones
    own = vocabulary_of_file(file, extra_ids=0)
    assert (own.sentinels, own.num_sentinels, own.counts_down_from_last) == (OWN, 5, False)
    ids = own.encode("bag <extra_id_3>dem")
    assert own.sentinel_id(3) in ids
    assert own.decode(ids) == "bag<extra_id_3> dem"
    assert not own.token_bytes()[[own.sentinel_id(i) for i in range(5)]].any()


def test_special_ids_of_the_model(folder: Path) -> None:
    as_llama = {"vocab_size": 400, "byte_fallback": True, "unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
    vocabulary = vocabulary_of_file(Path(sentencepiece_model(folder / "llama.model", **as_llama)))
    assert (vocabulary.eos_id, vocabulary.unk_id) == (2, 0)  # no text has unknown tokens: 0 is free for padding
    without_bytes = sentencepiece_model(folder / "unknown.model", unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    with pytest.raises(UserError, match="has '<unk>' as id 0, and batches are padded with 0"):
        vocabulary_of_file(Path(without_bytes))
    endless = sentencepiece_model(folder / "endless.model", eos_id=-1)
    with pytest.raises(UserError, match="no token for the end"):
        vocabulary_of_file(Path(endless))
    with pytest.raises(UserError, match="itself says what its special tokens are"):
        vocabulary_of_file(Path(endless), eos_token="b")


def test_pieces_have_names(folder: Path) -> None:
    vocabulary = vocabulary_of_file(Path(sentencepiece_model(folder / "plain.model")))
    assert [vocabulary.piece(token) for token in (0, 1, 2, vocabulary.size - 1, vocabulary.size, -1)] == [
        "<pad>", "</s>", "<unk>", "<extra_id_0>", "", "",
    ]  # fmt: skip
    assert [Vocabulary().piece(token) for token in (0, 2, 68, 383, 384)] == [
        "<pad>",
        "<unk>",
        "<0x41>",
        "<extra_id_0>",
        "",
    ]
