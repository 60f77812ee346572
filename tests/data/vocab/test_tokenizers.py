"""Hugging Face tokenizers and SentencePiece models against the libraries that read them."""

import json
import pickle
from pathlib import Path

import pytest
import seqio
import tensorflow as tf
from tokenizers import Tokenizer

from t5xpg.data.vocab.files import vocabulary_of_file, vocabulary_of_record
from t5xpg.data.vocab.seqio_vocabularies import HuggingFaceVocabulary, from_seqio, to_seqio
from t5xpg.data.vocab.tokenizers import HUGGING_FACE, load
from t5xpg.data.vocab.vocabulary import OWN, SEQIO, Vocabulary
from t5xpg.run.directory import RunDirectory
from tests.refusals import refused
from tests.small_tokenizers import byte_level, sentencepiece_model, with_spaces_in_pieces, word_pieces

TEXTS = ("bag dem kib", "  bag\n\tdem ", "Zürich 日本 🎉", "", "< pad> <|s|>x", "a\u0301 ▁")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def files(folder: Path) -> tuple[Path, Path]:
    return byte_level(folder / "bytes"), with_spaces_in_pieces(folder / "spaces")


def test_ids_are_the_tokenizers(files: tuple[Path, Path]) -> None:
    for file in files:
        tokenizer, vocabulary = Tokenizer.from_file(str(file)), vocabulary_of_file(file)
        assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.tokenizer_pad_id) == (0, 1, 0)
        assert vocabulary.size == tokenizer.get_vocab_size() + 100
        assert vocabulary.sentinel_id(0) == vocabulary.size - 1
        for text in TEXTS:
            assert vocabulary.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids
        assert all(vocabulary.piece(token) == tokenizer.id_to_token(token) for token in range(200))
        counts = vocabulary.token_bytes()
        assert counts.shape == (vocabulary.size,)
        assert not counts[[0, 1, *range(-100, 0)]].any(), "special tokens are no text"


def test_limits_of_the_tokenizer_do_not_count(folder: Path) -> None:
    file = byte_level(folder / "limited")
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=40)
    tokenizer.save(str(file))
    assert len(vocabulary_of_file(file).encode("bag dem kib 123456")) > 8
    assert 0 not in vocabulary_of_file(file).encode("bag")


def test_pieces_of_words(folder: Path, files: tuple[Path, Path]) -> None:
    vocabulary = vocabulary_of_file(word_pieces(folder / "words"), eos_token="bad")
    ids = vocabulary.encode("bagger is bagger")
    assert vocabulary.token_bytes()[ids].sum() == len("baggerisbagger")
    assert vocabulary.decode(ids) == "bagger is bagger"
    assert vocabulary.unknown_characters("bagger zzz is") == 3
    of_bytes = vocabulary_of_file(files[0])
    assert (of_bytes.unknown_characters("日本"), of_bytes.unk_id) == (0, None)
    assert of_bytes.encode("\ud800") == of_bytes.encode("\ufffd")


def test_a_link_of_the_hubs_cache(folder: Path) -> None:
    """To a file whose name is a digest, without an ending."""
    blob = word_pieces(folder / "linked").rename(folder / "0f1e2d")
    (folder / "linked" / "tokenizer.json").symlink_to(blob)
    vocabulary = vocabulary_of_file(folder / "linked", eos_token="bad")
    assert vocabulary.model_file == str(folder / "linked" / "tokenizer.json")


def test_sentinels_behind_the_tokens(files: tuple[Path, Path]) -> None:
    for file in files:
        vocabulary = vocabulary_of_file(file, extra_ids=7)
        ids = vocabulary.encode("bag <extra_id_0> kib<extra_id_6>")
        assert ids.count(vocabulary.size - 1) == ids.count(vocabulary.size - 7) == 1
        assert vocabulary.decode([*ids, 1, 5]).split() == ["bag", "<extra_id_0>", "kib<extra_id_6>"]
        with refused("<extra_id_7>"):
            vocabulary.encode("<extra_id_7>")


def test_sentinels_of_its_own(folder: Path) -> None:
    file = with_spaces_in_pieces(folder / "own", sentinels=10)
    vocabulary = vocabulary_of_file(file)
    assert (vocabulary.sentinels, vocabulary.extra_ids, vocabulary.num_sentinels) == (OWN, 0, 10)
    assert vocabulary.counts_down_from_last
    tokenizer = Tokenizer.from_file(str(file))
    text = "bag <extra_id_0> kib <extra_id_9>"
    assert vocabulary.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids
    assert vocabulary.sentinel_id(9) == tokenizer.token_to_id("<extra_id_9>")
    assert (vocabulary.sentinel_index(vocabulary.size - 1), vocabulary.sentinel_index(5)) == (0, None)
    assert "<extra_id_0>" in vocabulary.decode(vocabulary.encode(text))
    assert from_seqio(to_seqio(vocabulary)) == vocabulary
    assert not vocabulary.token_bytes()[-10:].any()
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary
    # others, behind them
    assert vocabulary_of_file(file, extra_ids=3).sentinels == SEQIO


def test_ids_are_the_same_in_graphs(folder: Path) -> None:
    vocabulary = vocabulary_of_file(byte_level(folder / "graphs", special=("</s>",)), extra_ids=20)
    theirs = to_seqio(vocabulary)
    assert from_seqio(theirs) == vocabulary
    assert (theirs.vocab_size, theirs.extra_ids) == (vocabulary.size, 20)
    assert (theirs.pad_id, theirs.eos_id, theirs.unk_id) == (0, vocabulary.eos_id, None)
    for text in ("bag dem", "Zürich 日本", "", "<extra_id_0>"):
        ids = vocabulary.encode_plain(text)
        assert list(theirs.encode(text)) == theirs.encode_tf(tf.constant(text)).numpy().tolist() == ids
    ids = [*vocabulary.encode("bag <extra_id_0> dem"), vocabulary.eos_id, 0, 0]
    rows = tf.constant([ids, ids[::-1]], tf.int32)
    assert [text.decode() for text in theirs.decode_tf(rows).numpy()] == [theirs.decode(row) for row in rows.numpy()]
    assert theirs.decode_tf(rows[0]).numpy().decode() == theirs.decode(ids) == "bag <extra_id_0> dem"
    # tasks compare the vocabularies of their features, and Beam sends them to other processes
    assert pickle.loads(pickle.dumps(theirs)) == theirs == to_seqio(vocabulary)
    assert theirs != seqio.ByteVocabulary()
    with refused("not of bytes"):
        HuggingFaceVocabulary(Vocabulary())


def test_padding_changes_places_with_the_token_of_id_0(folder: Path) -> None:
    """Batches are padded with 0; GPT-2's 0 is "!", and it has no padding."""
    end_alone = byte_level(folder / "gpt", special=("</s>",))
    its_padding = byte_level(folder / "late", special=("</s>", "a piece", "<pad>"))
    for file, padding in ((end_alone, None), (its_padding, 2)):
        tokenizer, vocabulary = Tokenizer.from_file(str(file)), vocabulary_of_file(file)
        swapped = tokenizer.get_vocab_size() if padding is None else padding
        assert (vocabulary.tokenizer_pad_id, vocabulary.eos_id) == (swapped, swapped)  # the end was 0
        assert vocabulary.size == tokenizer.get_vocab_size() + (padding is None) + 100
        for text in TEXTS:
            theirs = tokenizer.encode(text, add_special_tokens=False).ids
            exchanged = {0: swapped, swapped: 0}
            assert vocabulary.encode(text) == [exchanged.get(token, token) for token in theirs]
        ids = vocabulary.encode("bag dem")
        assert vocabulary.decode([0, *ids, vocabulary.eos_id, *ids]) == "bag dem"
        assert vocabulary.token_bytes()[0] == 0
        assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary
    assert vocabulary_of_file(end_alone).piece(0) == ""


def test_roles_are_said_beside_the_tokenizer_or_by_name(folder: Path) -> None:
    file = byte_level(folder / "roles", special=("<blank>", "<stop>", "</s>"), pad_token="<blank>", eos_token="<stop>")
    assert vocabulary_of_file(file).eos_id == 1
    (file.parent / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}, "pad_token": null}')
    load.cache_clear()  # it was read before
    assert vocabulary_of_file(file, pad_token="<blank>").eos_id == 2
    with refused("'<stopp>'", "Did you mean <stop>"):
        vocabulary_of_file(file, eos_token="<stopp>")


def test_what_it_lacks_is_said(folder: Path) -> None:
    (folder / "broken.json").write_text("{}")
    for path, named in (
        (word_pieces(folder / "endless"), "end of a text"),
        (folder / "gone.json", "not there"),
        (folder, "holds none of tokenizer.json"),
        (folder / "broken.json", "broken.json"),
    ):
        with refused(named):
            vocabulary_of_file(path)
    with (folder / "huge.json").open("wb") as huge:
        huge.truncate(164_000_000)  # which reading would take gigabytes for
    twice = json.loads(word_pieces(folder / "twice").read_text())
    twice["model"]["vocab"] |= {"another": max(twice["model"]["vocab"].values())}
    (folder / "twice.json").write_text(json.dumps(twice))
    for name, words in (("huge.json", ["164.0 MB"]), ("twice.json", ["two tokens", "'another'"])):
        with refused(name, *words):
            load(HUGGING_FACE, str(folder / name))
    with refused("padding"):
        load(HUGGING_FACE, str(byte_level(folder / "few")), 10_000).encode("a")


def test_unknown_characters_are_no_bytes(folder: Path) -> None:
    vocabulary = vocabulary_of_file(Path(sentencepiece_model(folder / "plain.model")))
    assert vocabulary.unknown_characters("bag 日本 dem") == 2
    assert vocabulary.token_bytes()[vocabulary.encode("bag 日本 dem")].sum() == len(" bag  dem")
    names = [vocabulary.piece(token) for token in (0, 1, 2, vocabulary.size - 1, vocabulary.size, -1)]
    assert names == ["<pad>", "</s>", "<unk>", "<extra_id_0>", "", ""]
    assert [Vocabulary().piece(token) for token in (0, 68, 383, 384)] == ["<pad>", "<0x41>", "<extra_id_0>", ""]


def test_sentinels_among_the_pieces(folder: Path) -> None:
    """As the model of mT5 has them."""
    pieces = [f"<extra_id_{i}>" for i in reversed(range(5))]
    file = Path(sentencepiece_model(folder / "own.model", user_defined_symbols=pieces))
    appended = vocabulary_of_file(file)
    assert (appended.sentinels, appended.extra_ids) == (SEQIO, 100)  # its own are not the last ones
    own = vocabulary_of_file(file, extra_ids=0)
    assert (own.sentinels, own.num_sentinels, own.counts_down_from_last) == (OWN, 5, False)
    ids = own.encode("bag <extra_id_3>dem")
    assert own.sentinel_id(3) in ids
    assert own.decode(ids) == "bag<extra_id_3> dem"
    assert not own.token_bytes()[[own.sentinel_id(i) for i in range(5)]].any()
    assert from_seqio(to_seqio(own)) == own


def test_special_ids_of_the_model(folder: Path) -> None:
    as_llama = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
    model = sentencepiece_model(folder / "llama.model", vocab_size=400, byte_fallback=True, **as_llama)
    vocabulary = vocabulary_of_file(Path(model))
    assert (vocabulary.eos_id, vocabulary.unk_id) == (2, 0)  # no text has unknown tokens: 0 is free for padding
    without_bytes = Path(sentencepiece_model(folder / "unknown.model", **as_llama))
    endless = Path(sentencepiece_model(folder / "endless.model", eos_id=-1))
    for path, options, names in (
        (without_bytes, {}, ("'<unk>' as id 0", "padded with 0")),
        (endless, {}, ("end",)),
        (endless, {"eos_token": "b"}, ("special tokens",)),
    ):
        with refused(*names):
            vocabulary_of_file(path, **options)


def test_a_run_keeps_the_model_of_its_vocabulary(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    model = Path(sentencepiece_model(tmp_path / "a.model"))
    vocabulary = vocabulary_of_file(model)
    record = vocabulary.to_json()
    run.copy_vocabulary_model(vocabulary.model_file)
    run.check("any", {})  # it is one of a run's own files
    assert vocabulary_of_record(record, run.vocabulary_model) == vocabulary
    model.write_bytes(b"another model")
    run.copy_vocabulary_model(vocabulary.model_file)  # what is kept stays
    kept = vocabulary_of_record(record, run.vocabulary_model)
    assert kept.model_file == str(run.vocabulary_model)
    assert kept.to_json() | {"model_file": None} == record | {"model_file": None}
    run.vocabulary_model.unlink()
    with refused("a.model"):
        vocabulary_of_record(record, run.vocabulary_model)
