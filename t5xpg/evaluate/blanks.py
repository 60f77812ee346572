"""Blanks of held-out text that a model of span corruption is to fill in: single words, and spans of two or three."""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5xpg.data.vocab.sentinels import blanks_of, predicted_spans
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.predictor import Predictor
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.decoding import DecodingConfig

FILE = "blanks.json"
NUM_WINDOWS = 256  # of held-out text
NUM_WORDS: Mapping[str, tuple[int, ...]] = {"word": (1,), "span": (2, 3)}
_BLANK = "<extra_id_0>"
_WORD = re.compile(r"(?<!\w)\w{2,12}(?!\w)")
_SPARED = 4  # tokens: a text may have more of them without a word than with it
_SEED = 0

Blank = tuple[str, str]  # a text with <extra_id_0>, and what that stands for


def windows(rows: Iterable[tuple[np.ndarray, np.ndarray]], vocabulary: Vocabulary, room: int) -> Iterator[str]:
    """The text that span corruption made rows of, inputs [S] and targets [T]: as much as inputs of `room` tokens hold.
    Rows that are not made so give none, packed ones that of their first example."""
    for inputs, targets in rows:
        text = vocabulary.decode(_restored(inputs.tolist(), targets.tolist(), vocabulary)[: room - _SPARED])
        if text and not blanks_of(text):
            yield text


def _restored(inputs: Sequence[int], targets: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """The ids of the text; [] where the targets do not begin with a sentinel of the inputs."""
    spans: dict[int, list[int]] = {}
    span: list[int] | None = None
    for token in itertools.takewhile(lambda token: token != vocabulary.eos_id, targets):
        if vocabulary.sentinel_index(token) is not None:
            span = spans.setdefault(token, [])
        elif span is None:
            return []
        else:
            span.append(token)
    return [one for token in inputs for one in spans.get(token, [token])] if spans.keys() & set(inputs) else []


def places(text: str, words: int) -> list[tuple[int, int]]:
    """Where so many words stand in a row, a space between them: of 2 to 12 letters, and not at the text's edges, which
    may have cut a word."""
    found = [match.span() for match in _WORD.finditer(text)][1:-1]
    rows = [(first[0], last[1]) for first, last in zip(found, found[words - 1 :], strict=False)]
    return [(start, end) for start, end in rows if all(map(str.isalpha, text[start:end].split(" ")))]


def made_of(texts: Iterable[str], words: Sequence[int]) -> list[Blank]:
    """A blank of each text that has one, drawn uniformly among its places by a fixed seed."""
    draw, blanks = np.random.default_rng(_SEED), []
    for text in texts:
        if possible := [place for count in words for place in places(text, count)]:
            start, end = possible[draw.integers(len(possible))]
            blanks.append((text[:start] + _BLANK + text[end:], text[start:end]))
    return blanks


def measure(
    experiment: Experiment, params: Any, vocabulary: Vocabulary, held_out: Sequence[str], training: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """`scored` of what a model predicts greedily. held_out, training: `windows` of those splits."""
    asked = {kind: made_of(held_out, words) for kind, words in NUM_WORDS.items()}
    longest = max((len(vocabulary.encode_plain(right)) for blanks in asked.values() for _, right in blanks), default=0)
    # room for a sentinel before the answer, one behind it, and white space: what is cut off is longer than any answer
    decoding = DecodingConfig(max_decode_length=longest + 4)
    predictor = Predictor(dataclasses.replace(experiment, decoding=decoding), params, vocabulary)
    size = predictor.batch_size

    def say(texts: Sequence[str]) -> list[str]:
        tokens = predictor.encode(texts, rows=-(-len(texts) // size) * size)
        found = [row for start in range(0, len(tokens), size) for row in predictor.tokens(tokens[start : start + size])]
        return [vocabulary.decode(row) for row in found[: len(texts)]]

    return scored(asked, say, training)


def scored(
    asked: Mapping[str, Sequence[Blank]], say: Callable[[Sequence[str]], Sequence[str]], training: Iterable[str]
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """{"word", "span": {"exact_match", "exchanged", "unigram", "examples"}}, in %; and every blank with what was said.

    say: predictions for texts. An answer is what stands behind <extra_id_0>, up to the next sentinel, without white
    space around it. "exchanged": the model is asked with the text of the example before, of the first with that of the
    last. "unigram": the answer is always the most frequent word of `training`, of spans the most frequent two words.
    """
    numbers: dict[str, Any] = {}
    records: list[dict[str, str]] = []
    for kind, blanks in ((kind, blanks) for kind, blanks in asked.items() if blanks):
        said = [predicted_spans(text).get(0, "").strip() for text in say([text for text, _ in blanks])]
        counts = Counter(text[start:end] for text in training for start, end in places(text, NUM_WORDS[kind][0]))
        always = max(counts, key=lambda answer: counts[answer], default="")

        def exact_match(answers: Iterable[str], blanks: Sequence[Blank] = blanks) -> float:
            return 100 * sum(answer == right for answer, (_, right) in zip(answers, blanks, strict=True)) / len(blanks)

        numbers[kind] = {
            "exact_match": exact_match(said),
            "exchanged": exact_match([said[-1], *said[:-1]]),  # what is said depends on nothing but the text
            "unigram": exact_match([always] * len(blanks)),
            "examples": len(blanks),
        }
        pairs = [(text, right, answer) for (text, right), answer in zip(blanks, said, strict=True)]
        records += [{"kind": kind, "input": a, "target": _BLANK + b, "prediction": _BLANK + c} for a, b, c in pairs]
    return numbers, records
