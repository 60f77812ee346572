"""Blanks in held-out text that a model of span corruption has to fill in: single words, frequent words, short spans."""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5xpg.data.vocab.sentinels import blanks_of, predicted_spans
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.predictor import Predictor
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.decoding import DecodingConfig

FILE = "blanks.json"
NUM_WINDOWS = 1024  # of held-out text
NUM_WORDS: Mapping[str, tuple[int, ...]] = {"word": (1,), "frequent word": (1,), "span": (2, 3)}
FREQUENT = 100  # how many words count as frequent
_BLANK = "<extra_id_0>"
_WORD = re.compile(r"(?<!\w)\w{2,12}(?!\w)")
_SPARED = 4  # tokens: a text may have more of them without a word than with it
_SEED = 0

Blank = tuple[str, str]  # a text with <extra_id_0>, and what that stands for


def windows(rows: Iterable[tuple[np.ndarray, np.ndarray]], vocabulary: Vocabulary, room: int) -> Iterator[str]:
    """The texts that span corruption made the rows from (inputs [S], targets [T]), cut to inputs of `room` tokens. Rows
    whose targets do not begin with a sentinel give none; packed rows give the text of their first example."""
    for inputs, targets in rows:
        spans: dict[int, list[int]] = {}
        span: list[int] | None = None
        for token in itertools.takewhile(lambda token: token != vocabulary.eos_id, targets.tolist()):
            if vocabulary.sentinel_index(token) is not None:
                span = spans.setdefault(token, [])
            elif span is None:
                break
            else:
                span.append(token)
        ids = [one for token in inputs.tolist() for one in spans.get(token, [token])]
        text = vocabulary.decode(ids[: room - _SPARED])
        if spans and text and not blanks_of(text):
            yield text


def places(text: str, words: int) -> list[tuple[int, int]]:
    """The places of `words` words in a row, with one space between them. Each has 2 to 12 letters; the first and the
    last word of the text, which may have been cut, are left out."""
    found = [match.span() for match in _WORD.finditer(text)][1:-1]
    rows = [(first[0], last[1]) for first, last in zip(found, found[words - 1 :], strict=False)]
    parts = {row: text[slice(*row)].split(" ") for row in rows}
    return [row for row, part in parts.items() if len(part) == words and all(map(str.isalpha, part))]


def counts_of(texts: Iterable[str], words: int) -> Counter[str]:
    """How often each answer of `words` words occurs in the texts."""
    return Counter(text[start:end] for text in texts for start, end in places(text, words))


def draw_blanks(texts: Sequence[str], words: Sequence[int], among: Collection[str] | None = None) -> list[Blank]:
    """One blank for each text that has a place for it, drawn uniformly with a fixed seed. No answer is used for more
    than one text in 25, so that a constant answer is right no more often. among: the only answers allowed."""
    draw, blanks = np.random.default_rng(_SEED), []
    times: Counter[str] = Counter()
    for text in texts:
        found = {place: text[slice(*place)] for count in words for place in places(text, count)}
        kept = [place for place, answer in found.items() if among is None or answer in among]
        if possible := [place for place in kept if times[found[place]] < max(1, len(texts) // 25)]:
            start, end = possible[draw.integers(len(possible))]
            times[text[start:end]] += 1
            blanks.append((text[:start] + _BLANK + text[end:], text[start:end]))
    return blanks


def measure(
    experiment: Experiment, params: Any, vocabulary: Vocabulary, held_out: Sequence[str], training: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """`scored` for what a model predicts greedily. held_out, training: `windows` of those splits."""
    frequent = {answer for answer, _ in counts_of(training, 1).most_common(FREQUENT)}
    among = {"frequent word": frequent}
    asked = {kind: draw_blanks(held_out, words, among.get(kind)) for kind, words in NUM_WORDS.items()}
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
    asked: Mapping[str, Sequence[Blank]], say: Callable[[Sequence[str]], Sequence[str]], training: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """{kind: {"exact_match", "exchanged", "unigram": in %, "examples"}}; and every blank with what was predicted.

    say: returns predictions for texts. An answer is the text from <extra_id_0> to the next sentinel, without white
    space around it. "exchanged": the model gets the text of the example before; for the first one, the last text.
    "unigram": the answer is always the most frequent word of `training`, for spans the most frequent two words.
    """
    counts = {words: counts_of(training, words) for words in {words[0] for words in NUM_WORDS.values()}}
    always = {words: max(found, key=lambda answer: found[answer], default="") for words, found in counts.items()}
    numbers: dict[str, Any] = {}
    records: list[dict[str, str]] = []
    for kind, blanks in asked.items():
        if not blanks:
            continue
        texts, right = zip(*blanks, strict=True)
        said = [predicted_spans(text).get(0, "").strip() for text in say(texts)]
        # what is said depends on nothing but the text
        constant = [always[NUM_WORDS[kind][0]]] * len(right)
        answers = {"exact_match": said, "exchanged": [said[-1], *said[:-1]], "unigram": constant}
        hits = {name: sum(map(str.__eq__, right, given)) for name, given in answers.items()}
        numbers[kind] = {name: 100 * count / len(right) for name, count in hits.items()} | {"examples": len(right)}
        for text, target, prediction in zip(texts, right, said, strict=True):
            filled = {"target": _BLANK + target, "prediction": _BLANK + prediction}
            records.append({"kind": kind, "input": text, **filled})
    return numbers, records
