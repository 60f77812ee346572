"""Regular expressions as automata over tokens, against Python's `re` on the texts of vocabularies of all kinds."""

import random
import re
from pathlib import Path

import numpy as np
import pytest

from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.pattern import pattern_constraint, token_bytes
from t5xpg.models.decoding import Constraint
from tests.refusals import refused
from tests.small_tokenizers import byte_level, sentencepiece_model

# a pattern, texts that it matches, and texts that it does not
PATTERNS = [
    ("yes|no|not yet", ["yes", "no", "not yet"], ["not", "yes no", ""]),
    (r"[0-9]{2,3}(\.[0-9])?", ["10", "123.4"], ["1", "1234", "10."]),
    ("(ba|do)+[mn]", ["babam", "don"], ["bam bam", "ba"]),
    ("é{1,2}|日本", ["é", "éé", "日本"], ["e", "日"]),
    (" a( bob)*", [" a", " a bob bob"], ["a", "a bob"]),
    ("(no|not)?(b*?)", ["", "not", "no", "nobb"], ["nob t"]),
]


def vocabulary(kind: str, folder: Path) -> Vocabulary:
    fallback = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 340}
    if kind == "bytes":
        return Vocabulary()
    if kind == "byte level":
        return vocabulary_of_file(byte_level(folder), 0)
    led = {"add_dummy_prefix": kind == "pieces", "remove_extra_whitespaces": False}
    return vocabulary_of_file(Path(sentencepiece_model(folder / "spiece.model", **fallback, **led)), 10)


def walk(constraint: Constraint, draw: random.Random) -> list[int]:
    """The tokens of a random answer, of which none is far from its end; without the end token."""
    offsets, tokens, next_states, distances = map(np.asarray, constraint)
    state, answer = 0, []
    for remaining in range(24, 0, -1):
        places = range(offsets[state], offsets[state + 1])
        place = draw.choice([one for one in places if distances[next_states[one]] < remaining])
        state = next_states[place]
        if state == len(distances) - 1:
            return answer
        answer.append(int(tokens[place]))
    raise AssertionError("no answer ended in time")


def accepts(constraint: Constraint, ids: list[int]) -> bool:
    offsets, tokens, next_states, distances = map(np.asarray, constraint)
    state = 0
    for token in ids:
        here = {int(tokens[place]): place for place in range(offsets[state], offsets[state + 1])}
        if token not in here:
            return False
        state = next_states[here[token]]
    return bool(state == len(distances) - 1)


@pytest.mark.parametrize("kind", ["bytes", "pieces", "pieces without a space in front", "byte level"])
def test_answers_are_the_texts_that_the_pattern_matches(tmp_path: Path, kind: str) -> None:
    words, draw = vocabulary(kind, tmp_path), random.Random(0)
    for pattern, matched, others in PATTERNS:
        if kind == "byte level" and not pattern.isascii():
            continue  # its tokens end within these characters
        constraint = pattern_constraint(pattern, words)
        for _ in range(40):
            text = words.decode(walk(constraint, draw))
            assert re.fullmatch(pattern, text), text
        for texts, expected in ((matched, True), (others, False)):
            # with pieces, an empty text is spelt "▁"
            spelt = [text for text in texts if words.decode(words.encode(text)) == text and (text or kind == "bytes")]
            found = [accepts(constraint, [*words.encode(text), words.eos_id]) for text in spelt]
            assert found == [expected] * len(spelt), (pattern, spelt)


def test_the_bytes_of_tokens_make_up_texts(tmp_path: Path) -> None:
    for kind in ("bytes", "pieces", "byte level"):
        folder = tmp_path / kind.replace(" ", "_")
        folder.mkdir()
        words = vocabulary(kind, folder)
        texts, is_led_by_space = token_bytes(words)
        assert is_led_by_space == (kind == "pieces")
        for text in ("bab beb", "x", *(["kan 日本 é"] if kind != "byte level" else [])):
            spelt = b"".join(texts[token] for token in words.encode(text)).decode()
            assert spelt == (" " + text if is_led_by_space else text)


def test_words_are_tokens_that_begin_with_a_space(tmp_path: Path) -> None:
    words = vocabulary_of_file(
        Path(sentencepiece_model(tmp_path / "spiece.model", model_type="word", vocab_size=40)), 0
    )
    known = [text for text in map(words.piece, range(3, words.size)) if text.startswith("▁")][:2]
    one, other = (text.removeprefix("▁") for text in known)
    constraint = pattern_constraint(f"{one}( {other})*", words)
    assert accepts(constraint, [*words.encode(f"{one} {other} {other}"), words.eos_id])
    assert not accepts(constraint, [*words.encode(other), words.eos_id])


def test_what_is_no_pattern_is_refused(tmp_path: Path) -> None:
    for pattern in ("(", "x(?=y)", r"(a)\1", "^ab$", "[b-a]", r"\bfoo"):
        with refused(f"PATTERN={pattern}", "back references"):
            pattern_constraint(pattern, Vocabulary())
    letters = vocabulary_of_file(Path(sentencepiece_model(tmp_path / "spiece.model")), 0)  # without bytes
    with refused("PATTERN=日本", "vocabulary"):
        pattern_constraint("日本", letters)
