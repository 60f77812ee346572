"""Text to ids to text: of every kind of vocabulary that has something for all text, for any text; and what is lost."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from t5xpg.data.text.export import export_dataset
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.making import copy_vocabulary, measure, train_vocabulary
from t5xpg.data.vocab.record import come_back
from t5xpg.data.vocab.training import VocabularySettings, train_model
from t5xpg.data.vocab.vocabulary import BYT5_GOOGLE, TRANSFORMERS, Vocabulary
from tests.small_tokenizers import LINES, byte_level, sentencepiece_model, with_spaces_in_pieces

# text that spells special tokens out, in NFD, with blanks, line ends and control characters, of several scripts
PARTS = [
    "</s>",
    "<pad>",
    "<unk>",
    "[EXT1]",
    "<s>",
    "<extra_id_0>",
    "<|end|>",
    "bag",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\x85",
    "\x1b",
]
PARTS += [
    "Tie\u0302\u0301ng",
    "か\u3099",
    "\u1112\u1161\u11ab",
    "שָׁלוֹם",
    "عَرَّبَ",
    "हिन्दी",
    "日本",
    "👩‍👩‍👧",
    "🏳️‍🌈",
    "ﬁ",
    "\u3000\u0301",
    "é",
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(PARTS), max_size=8).map("".join),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁\0"), max_size=20),
)
FALLBACK = {"byte_fallback": True, "vocab_size": 400}
AS_IT_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}


def added(file: Path, *tokens: str) -> Path:
    """The tokenizer with more special tokens."""
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens(list(tokens))
    tokenizer.save(str(file))
    return file


def pieces(folder: Path, **options: object) -> Vocabulary:
    return vocabulary_of_file(Path(sentencepiece_model(folder / "a.model", **FALLBACK, **options)))


# how it is made in a folder, and whether it keeps a text as it is
KINDS: dict[str, tuple[Callable[[Path], Vocabulary], bool]] = {
    "bytes": (lambda folder: Vocabulary(), True),
    "bytes_google": (lambda folder: Vocabulary("bytes", 0, BYT5_GOOGLE), True),
    "bytes_upwards": (lambda folder: Vocabulary("bytes", 125, TRANSFORMERS), True),
    "lossless": (lambda folder: pieces(folder, **AS_IT_IS), True),
    "lossless_bpe": (lambda folder: pieces(folder, model_type="bpe", **AS_IT_IS), True),
    "normalising": (pieces, False),
    "symbols": (lambda folder: pieces(folder, user_defined_symbols=["\n", "[EXT1]"]), False),
    "byte_level": (lambda folder: vocabulary_of_file(added(byte_level(folder), "[EXT1]", "<s>")), True),
    "another_end": (lambda folder: vocabulary_of_file(added(byte_level(folder), "<|end|>"), eos_token="<|end|>"), True),
    "no_padding": (lambda folder: vocabulary_of_file(added(byte_level(folder, ("</s>",)), "[EXT1]")), True),
    "spaces_in_pieces": (lambda folder: vocabulary_of_file(with_spaces_in_pieces(folder)), True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_text_comes_back(tmp_path: Path, kind: str) -> None:
    make, keeps = KINDS[kind]
    vocabulary = make(tmp_path)
    normalize = str if keeps else sentencepiece.SentencePieceProcessor(model_file=vocabulary.model_file).Normalize
    adds_space = keeps and vocabulary.piece(vocabulary.encode_plain("a")[0]).startswith("▁")

    @settings(max_examples=80)
    @example("a </s> b <pad><unk>c[EXT1] d")
    @example("Tie\u0302\u0301ng Vie\u0323\u0302t\u3000\u0301")
    @given(TEXTS)
    def check(text: str) -> None:
        expected = normalize(text).replace("▁", " ")
        ids = vocabulary.encode_plain(text)
        assert not {vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id} & {*ids}
        assert vocabulary.decode(ids) == (expected if keeps else expected[1:])
        assert vocabulary.token_bytes()[ids].sum() == len(expected.encode()) + (adds_space and text != "")

    check()


def test_added_tokens_are_text(tmp_path: Path) -> None:
    """Also an end that merges make as well."""
    vocabulary = vocabulary_of_file(added(byte_level(tmp_path), "[EXT1]"), 0)
    assert vocabulary.piece(vocabulary.encode("[EXT1] yes")[0]) == "[EXT1]"
    named = byte_level(tmp_path / "named", pad_token="<pad>", eos_token="bag")
    assert vocabulary_of_file(named).decode(vocabulary_of_file(named).encode("a bag b")) == "a bag b"


def export(folder: Path, *lines: str) -> Path:
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    files: dict[str | None, list[Path]] = {split: [folder / "a.txt"] for split in ("train", "validation")}
    export_dataset("mine", data_dir=folder / "data", files=files, log=lambda line: None)
    return folder / "data" / "mine"


def test_what_is_lost_is_said_with_a_count(tmp_path: Path) -> None:
    folder = export(tmp_path, "bag dem", "bag  dem", "bag ½", "dem 日")
    unknown = vocabulary_of_file(Path(sentencepiece_model(tmp_path / "a.model")))
    report = measure(unknown, folder)
    assert (report["documents"], report["kept"], report["words_kept"]) == (4, 1, 2)
    assert report["first_change"] == ("½", "⁇")
    assert all(str(count) in come_back(report) for count in ("1 of 4", "1 but", "½", "⁇"))
    whole = measure(Vocabulary(), folder)
    assert (whole["kept"], whole["words_kept"], whole["first_change"]) == (4, 4, None)
    said: list[str] = []
    copy_vocabulary("mine", tmp_path / "a.model", data_dir=tmp_path / "data", name="copied", log=said.append)
    assert come_back(report) in said[-1]


def test_half_a_character_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud800 \\udfff"}\n{"text": "\\ud83d\\ude00"}\n')
    said: list[str] = []
    files: dict[str | None, list[Path]] = {split: [tmp_path / "a.jsonl"] for split in ("train", "validation")}
    export_dataset("mine", data_dir=tmp_path / "data", files=files, log=said.append)
    assert "U+FFFD" in said[-1]
    assert said[-1].endswith(" 2")
    assert json.loads((tmp_path / "data/mine/train.jsonl").read_text().splitlines()[0])["text"] == "a \ufffd \ufffd"


def test_a_small_alphabet_is_covered(tmp_path: Path) -> None:
    """By default; the record says so, and a vocabulary that was made with another coverage stays what it is."""
    folder = export(tmp_path, *LINES, "œ Ÿ « »")
    wanted = VocabularySettings(size=200, extra_ids=0)
    options = {"data_dir": tmp_path / "data", "log": lambda line: None}
    record = train_vocabulary("mine", wanted, **options)
    assert record.settings["character_coverage"] == 1.0
    assert measure(record.vocabulary_in(folder / "vocabularies" / record.name), folder)["coverage"] == 1.0
    few = dataclasses.replace(wanted, character_coverage=0.99)
    made = train_vocabulary("mine", few, name="few", **options)
    assert train_vocabulary("mine", wanted, name="few", **options) == made
    assert json.loads((folder / "vocabularies/few/report.json").read_text())["coverage"] < 1
    for other in (dataclasses.replace(wanted, byte_fallback=True, size=500), dataclasses.replace(wanted, size=60)):
        assert other.for_text(LINES).character_coverage == 0.9995
    lines = [*LINES, *(chr(0x4E00 + code) for code in range(1_001))]
    assert VocabularySettings().for_text(lines).character_coverage == 0.9995
    assert train_model(LINES, wanted, 1000) == train_model(LINES, wanted.for_text(LINES), 1000)
