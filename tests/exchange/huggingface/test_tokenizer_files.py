"""Tokenizers that transformers reads have the ids of training: for any text, of every kind; and are read back."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.sentinels import NAMED_TOKENS
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange.huggingface.tokenizer_files import check_tokenizer, expected_ids, write_tokenizer
from t5xpg.exchange.huggingface.vocabulary import vocabulary_of_folder
from tests.refusals import refused
from tests.small_tokenizers import LINES, byte_level, sentencepiece_model, with_spaces_in_pieces, word_pieces

IDENTITY = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
FALLBACK = {"byte_fallback": True, "vocab_size": 400}
_WORDS = [word for line in LINES[:20] for word in line.split()]
_PARTS = [*_WORDS, " ", "  ", "\n", "\t", "<extra_id_0>", "<extra_id_3>", "é", "日", "[MASK]"]
# with what stands in a character of its own in NFD, and what Unicode or the table of characters replaces
_MARKED = [
    *"aeiouA\uff45ﬁ㎏㈀か\u3000\r\n\x85 ",
    *"\u0300\u0301\u0302\u0323\u0344\u0345\u3099ﾞ\u1100\u1161\u11a8\u0651\u064e\u200d🏻",
]
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁\0"), max_size=30),
    st.text(st.sampled_from(_MARKED), max_size=9),
    st.lists(st.sampled_from(_PARTS), max_size=8).map("".join),
    st.lists(st.sampled_from(_PARTS), max_size=8).map(" ".join),
)


def pieces(folder: Path, **options: object) -> Vocabulary:
    return vocabulary_of_file(Path(sentencepiece_model(folder / "a.model", **options)), 8)


def named(vocabulary: Vocabulary) -> Vocabulary:
    return dataclasses.replace(vocabulary, extra_ids=vocabulary.extra_ids + 5, named_tokens=NAMED_TOKENS)


# how it is made in a folder
KINDS: dict[str, Callable[[Path], Vocabulary]] = {
    "like_t5": pieces,
    "like_t5_with_names": lambda folder: named(pieces(folder)),
    "nfkc_bpe": lambda folder: pieces(folder, model_type="bpe", normalization_rule_name="nfkc", **FALLBACK),
    "symbols": lambda folder: pieces(folder, user_defined_symbols=["\n", "[SEP]"], **FALLBACK),
    "symbols_and_spaces": lambda folder: pieces(
        folder, user_defined_symbols=["\n", "\uff41"], remove_extra_whitespaces=False, **FALLBACK
    ),
    "bpe": lambda folder: pieces(folder, model_type="bpe"),
    "bytes_for_the_rest": lambda folder: pieces(folder, **FALLBACK),
    "lossless": lambda folder: pieces(folder, **FALLBACK, **IDENTITY),
    "lossless_bpe": lambda folder: pieces(folder, model_type="bpe", **FALLBACK, **IDENTITY),
    "byte_level": lambda folder: vocabulary_of_file(byte_level(folder), 8),
    "padding_elsewhere": lambda folder: named(vocabulary_of_file(byte_level(folder, ("</s>", "a b", "<pad>")), 8)),
    "no_padding": lambda folder: vocabulary_of_file(byte_level(folder, ("<|endoftext|>",)), 8),
    "own_sentinels": lambda folder: vocabulary_of_file(with_spaces_in_pieces(folder, 5)),
    "word_pieces": lambda folder: vocabulary_of_file(word_pieces(folder), 8, eos_token="##ger"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_has_the_ids_of_training(tmp_path: Path, kind: str) -> None:
    made, folder = tmp_path / "made", tmp_path / "written"
    made.mkdir()
    folder.mkdir()
    vocabulary = KINDS[kind](made)
    write_tokenizer(folder, vocabulary, longest=64)
    check_tokenizer(folder, vocabulary)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    is_like_t5 = kind.startswith("like_t5")
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["model_max_length"] == 64
    written = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert written.get_vocab_size() == vocabulary.size
    assert written.token_to_id(config["pad_token"]) == 0
    assert written.token_to_id(config["eos_token"]) == vocabulary.eos_id
    assert (folder / "spiece.model").is_file() == (vocabulary.kind == "sentencepiece")
    if is_like_t5 or kind == "byte_level":  # which need nothing said besides
        again = vocabulary_of_folder(folder, {"vocab_size": 1000, "eos_token_id": 1})
        assert again.size == vocabulary.size
        assert not is_like_t5 or again == dataclasses.replace(vocabulary, model_file=again.model_file)
        for text in ("bad bag", "<extra_id_0> and <extra_id_7>"):
            assert again.encode(text) == vocabulary.encode(text)

    @settings(max_examples=60)
    @given(TEXTS)
    def check(text: str) -> None:
        assert written.encode(text).ids == expected_ids(vocabulary, text)

    check()


@pytest.mark.parametrize(
    "vocabulary",
    [
        Vocabulary("bytes", 125, "seqio"),
        Vocabulary("bytes", 30, "seqio"),
        Vocabulary("bytes", 125, "transformers"),
        Vocabulary("bytes", 0, "byt5_google"),
        Vocabulary("bytes", 381, named_tokens=NAMED_TOKENS),
    ],
    ids=lambda one: f"{one.sentinels}_{one.extra_ids}",
)
def test_bytes_say_every_id_that_is_no_byte(tmp_path: Path, vocabulary: Vocabulary) -> None:
    """ByT5Tokenizer takes ids from `added_tokens_decoder`, and numbers nothing itself where `extra_ids` is 0."""
    write_tokenizer(tmp_path, vocabulary, longest=64)
    check_tokenizer(tmp_path, vocabulary)
    assert vocabulary_of_folder(tmp_path, {"vocab_size": 1000, "eos_token_id": 1}) == vocabulary
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer_config.json"]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["tokenizer_class"], config["extra_ids"]) == ("ByT5Tokenizer", 0)
    added = {int(token): one["content"] for token, one in config["added_tokens_decoder"].items()}
    assert (added[0], added[1], added[2]) == ("<pad>", "</s>", "<unk>")
    names = config["additional_special_tokens"]
    assert sorted(names) == sorted(text for token, text in added.items() if token > 2)
    for token, text in added.items():
        if token > 2:
            assert vocabulary.encode(text) == [token]
    assert len(names) == vocabulary.num_sentinels + len(vocabulary.named_tokens)


def test_what_cannot_be_said(tmp_path: Path) -> None:
    words = vocabulary_of_file(Path(sentencepiece_model(tmp_path / "words.model", model_type="word", vocab_size=90)), 8)
    behind = pieces(tmp_path, treat_whitespace_as_suffix=True)
    (tmp_path / "bpe").mkdir()  # a model stays loaded by its path
    symbols = pieces(tmp_path / "bpe", model_type="bpe", user_defined_symbols=["+", "<sep>"])
    for vocabulary, named in (
        (words, "words or characters"),
        (behind, "spaces before words"),
        (symbols, "'<sep>'"),
        (Vocabulary("ids", 0, unk_id=None, num_ids=32), "ids that stand for no text"),
    ):
        with refused(named):
            write_tokenizer(tmp_path, vocabulary, longest=64)


def test_texts_are_neither_cut_nor_padded(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(file := byte_level(tmp_path / "made")))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(file))
    write_tokenizer(tmp_path, vocabulary_of_file(file, 8), longest=64)
    written = json.loads((tmp_path / "tokenizer.json").read_text())
    assert (written["truncation"], written["padding"]) == (None, None)


def test_a_file_with_other_ids_is_noticed(tmp_path: Path) -> None:
    vocabulary = pieces(tmp_path)
    write_tokenizer(tmp_path, vocabulary, longest=64)
    other = dataclasses.replace(vocabulary, extra_ids=9)
    with refused("cannot be exported"):
        check_tokenizer(tmp_path, other)
