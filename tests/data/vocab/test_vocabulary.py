"""Vocabularies against their definitions, and against SeqIO's."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import seqio

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.sentinels import NAMED_TOKENS
from t5xpg.data.vocab.seqio_vocabularies import from_seqio, to_seqio
from t5xpg.data.vocab.vocabulary import BYT5_GOOGLE, SEQIO, TRANSFORMERS, Vocabulary
from tests.refusals import refused
from tests.small_tokenizers import sentencepiece_model

BYTES = Vocabulary("bytes", 125)
ORIGINAL = Vocabulary("bytes", 0, BYT5_GOOGLE)
HUGGING_FACE = Vocabulary("bytes", 125, TRANSFORMERS)
NAMED = Vocabulary("bytes", 381, named_tokens=NAMED_TOKENS)
NAMED_OTHERWISE = Vocabulary("bytes", 381, TRANSFORMERS, named_tokens=NAMED_TOKENS)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sentencepiece_model(tmp_path_factory.mktemp("vocabulary") / "tiny.model")


@pytest.mark.parametrize(
    ("vocabulary", "size", "sentinels"),
    [(BYTES, 384, {0: 383, 1: 382, 124: 259}), (ORIGINAL, 259, {0: 258, 1: 257, 10: 248}),
     (HUGGING_FACE, 384, {0: 259, 1: 260, 124: 383})],
)  # fmt: skip
def test_numbers_the_sentinels_of_each_convention(vocabulary: Vocabulary, size: int, sentinels: dict[int, int]) -> None:
    assert vocabulary.size == size
    assert {number: vocabulary.sentinel_id(number) for number in sentinels} == sentinels
    by_id = {vocabulary.sentinel_id(i): i for i in range(vocabulary.num_sentinels)}
    assert len(by_id) == vocabulary.num_sentinels
    assert all(vocabulary.sentinel_index(token) == by_id.get(token) for token in range(-1, size + 1))
    ids = vocabulary.encode("é<extra_id_0>b")
    assert ids == [0xC3 + 3, 0xA9 + 3, sentinels[0], ord("b") + 3]
    assert vocabulary.decode([*ids, 1, 70, 0]) == "é<extra_id_0>b"


def test_decoding_drops_padding_and_unknown_ids_and_replaces_broken_bytes() -> None:
    assert BYTES.decode(np.array([0, 2, 72 + 3, 0xC3 + 3, 999, 0, 105 + 3, 1, 72 + 3], np.int32)) == "H\ufffdi"


def test_token_bytes_counts_text_only() -> None:
    expected = np.repeat(np.array([0, 1, 0], np.int32), [3, 256, 125])
    np.testing.assert_array_equal(BYTES.token_bytes(), expected, strict=True)
    np.testing.assert_array_equal(np.flatnonzero(ORIGINAL.token_bytes()), np.arange(3, 248))


@pytest.mark.parametrize(
    ("vocabulary", "names", "sentinels"),
    [(NAMED, range(259, 264), range(639, 263, -1)), (NAMED_OTHERWISE, range(639, 634, -1), range(259, 635))],
)
def test_named_tokens_are_the_extra_ids_that_sentinels_do_not_start_from(
    vocabulary: Vocabulary, names: range, sentinels: range
) -> None:
    assert (vocabulary.size, vocabulary.num_sentinels) == (640, len(sentinels))
    assert [vocabulary.named_id(name) for name in NAMED_TOKENS] == list(names)
    assert [vocabulary.sentinel_id(i) for i in range(len(sentinels))] == list(sentinels)
    assert all(vocabulary.sentinel_index(token) is None for token in names)
    assert vocabulary.token_bytes()[259:].sum() == 0


def test_named_tokens_are_read_and_shown() -> None:
    text = "[NLU]He [MASK] <extra_id_0>[nlu] [X]"
    ids = NAMED.encode(text)
    assert ids[0] == 259
    assert ids.count(263) == ids.count(639) == 1
    assert NAMED.decode([*ids, 1, 259]) == text
    assert len(BYTES.encode("[NLU]")) == 5
    with refused("[NLU]"):
        BYTES.named_id("[NLU]")
    with refused("<extra_id_125>", "125 sentinels"):
        BYTES.encode("a <extra_id_125> b")


def test_names_that_cannot_be() -> None:
    for names, extra_ids, named in (
        (("[A]", "[B]"), 1, "2 named tokens, and 1 extra ids"),
        (("[A]", "[A]"), 9, "one id"),
        (("<extra_id_3>",), 9, "no sentinel"),
        (("",), 9, "expected texts"),
    ):
        with refused(named):
            Vocabulary("bytes", extra_ids, named_tokens=names)


def test_json_gives_the_same_vocabulary_back(model_file: str) -> None:
    pieces = Vocabulary("sentencepiece", 100, SEQIO, model_file)
    for vocabulary in (BYTES, ORIGINAL, HUGGING_FACE, NAMED, pieces):
        assert Vocabulary.from_json(json.loads(json.dumps(vocabulary.to_json()))) == vocabulary
    assert "named_tokens" not in BYTES.to_json()
    gone = str(Path(model_file).with_name("gone.model"))
    for other, named in (({"model_sha256": "0" * 64}, model_file), ({"model_file": gone}, gone)):
        with refused(named):
            Vocabulary.from_json(pieces.to_json() | other)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"kind": "byte"}, "'byte'|Did you mean bytes"),
        ({"kind": "sentencepiece"}, "model file"),
        ({"sentinels": "transformer"}, "Did you mean transformers"),
        ({"extra_ids": "125"}, "extra_ids|'125'"),
        ({"extra_ids": 10**12}, "extra_ids|from 0 to 1000000"),
        ({"eos_id": 1.5}, "eos_id|1.5"),
        ({"size": 3}, "3 ids|384"),
        ({"model_file": "a\0b"}, "name of a file"),
    ],
)
def test_what_describes_no_vocabulary_is_refused(change: dict[str, object], names: str) -> None:
    with refused(*names.split("|")):
        Vocabulary.from_json({**BYTES.to_json(), **change})
    for no_record in ([], {}):
        with refused("vocabulary" if no_record == [] else "kind, extra_ids, sentinels, pad_id"):
            Vocabulary.from_json(no_record)  # type: ignore[arg-type]


def test_a_file_that_is_no_sentencepiece_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.model"
    for content in (b"", b"not a model", bytes(range(256)) * 9):
        file.write_bytes(content)
        with refused("a.model"):
            Vocabulary("sentencepiece", 100, SEQIO, str(file)).size  # noqa: B018


def test_agrees_with_seqio(model_file: str) -> None:
    text = "Zürich bag dem kib"
    named_pieces = Vocabulary("sentencepiece", 100, SEQIO, model_file, named_tokens=NAMED_TOKENS)
    pieces = Vocabulary("sentencepiece", 100, SEQIO, model_file)
    for vocabulary in (BYTES, ORIGINAL, NAMED, named_pieces, pieces):
        theirs = to_seqio(vocabulary)
        assert from_seqio(theirs) == vocabulary
        assert theirs.vocab_size == vocabulary.size
        assert list(theirs.encode(text)) == vocabulary.encode(text)
        assert (theirs.pad_id, theirs.eos_id, theirs.unk_id) == (0, 1, 2)
        # t5's preprocessors number sentinels from the last id downwards
        assert vocabulary.sentinel_id(0) == theirs.vocab_size - 1
    text = "bag <extra_id_0> dem <extra_id_99>"
    assert list(to_seqio(pieces).encode(text)) == pieces.encode(text)
    assert pieces.decode([*pieces.encode(text), 1, 5]) == "bag<extra_id_0> dem<extra_id_99>"

    # vocabularies with other names are others, whichever side asks
    plain, named = seqio.ByteVocabulary(extra_ids=381), to_seqio(NAMED)
    assert named == to_seqio(NAMED)
    assert plain != named != plain
    with refused("ids at the edges"):
        to_seqio(HUGGING_FACE)
    with refused("UnigramVocabulary"):
        from_seqio(seqio.UnigramVocabulary(["a"]))


def test_ids_that_are_no_text() -> None:
    ids = Vocabulary("ids", 0, unk_id=None, num_ids=50)
    assert (ids.size, ids.num_sentinels) == (50, 0)
    assert ids.summary.startswith("50 ids")
    assert BYTES.summary.startswith("bytes, 384 ids")
    assert ids.encode(" 7 49  0 3") == [7, 49, 0, 3]
    assert ids.decode([7, 49, 0, 3, 50, 1, 5]) == "7 49 3"
    assert [ids.piece(token) for token in (0, 7, 50)] == ["0", "7", ""]
    assert ids.token_bytes().tolist() == [0] * 50
    assert ids.unknown_characters("a") == 0
    assert Vocabulary.from_json(json.loads(json.dumps(ids.to_json()))) == ids
    assert to_seqio(ids) == seqio.PassThroughVocabulary(50, eos_id=1)
    assert from_seqio(to_seqio(ids)) == ids
    for text in ("7 seven", "50", "-1", "<extra_id_0>"):
        with refused(text.split()[-1]):
            ids.encode(text)
    with refused("eos_id"):
        from_seqio(seqio.PassThroughVocabulary(10))
    for change in ({"num_ids": 0}, {"kind": "bytes", "unk_id": 2}, {"extra_ids": 1}, {"eos_id": 50}):
        with pytest.raises(UserError, match=r"num_ids is|has no extra ids \(\d+\), and its end is one of its own"):
            dataclasses.replace(ids, **change)
