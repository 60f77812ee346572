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
_SPARE = 4  # tokens: a text may have more of them without a word than with it
_SEED = 0

Blank = tuple[str, str]  # a text with <extra_id_0>, and the words that were removed there


def windows(rows: Iterable[tuple[np.ndarray, np.ndarray]], vocabulary: Vocabulary, max_tokens: int) -> Iterator[str]:
    """Yields the texts that span corruption made the rows (inputs [S], targets [T]) from, cut to inputs of `max_tokens`
    tokens. Rows whose targets do not begin with a sentinel give none; packed rows give their first example's text."""
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
        ids = [text_id for token in inputs.tolist() for text_id in spans.get(token, [token])]
        text = vocabulary.decode(ids[: max_tokens - _SPARE])
        if spans and text and not blanks_of(text):
            yield text


def places(text: str, words: int) -> list[tuple[int, int]]:
    """The (start, end) of each `words` successive words with one space between them. Each word has 2 to 12 letters; the
    first and the last word of the text, which may have been cut, are left out."""
    spans = [match.span() for match in _WORD.finditer(text)][1:-1]
    ranges = [(first[0], last[1]) for first, last in zip(spans, spans[words - 1 :], strict=False)]
    parts = {place: text[slice(*place)].split(" ") for place in ranges}
    return [place for place, part in parts.items() if len(part) == words and all(map(str.isalpha, part))]


def counts_of(texts: Iterable[str], words: int) -> Counter[str]:
    """The number of times that each answer of `words` words occurs in the texts."""
    return Counter(text[start:end] for text in texts for start, end in places(text, words))


def draw_blanks(texts: Sequence[str], words: Sequence[int], allowed: Collection[str] | None = None) -> list[Blank]:
    """One blank for each text that has a place for it, drawn uniformly with a fixed seed. No answer is used for more
    than one text in 25, so that a constant answer is right no more often. words: the lengths of answers in words.
    allowed: the only answers allowed; None for all."""
    draw, blanks = np.random.default_rng(_SEED), []
    uses: Counter[str] = Counter()
    for text in texts:
        answers = {place: text[slice(*place)] for count in words for place in places(text, count)}
        candidates = [place for place, answer in answers.items() if allowed is None or answer in allowed]
        if free := [place for place in candidates if uses[answers[place]] < max(1, len(texts) // 25)]:
            start, end = free[draw.integers(len(free))]
            uses[text[start:end]] += 1
            blanks.append((text[:start] + _BLANK + text[end:], text[start:end]))
    return blanks


def measure(
    experiment: Experiment, params: Any, vocabulary: Vocabulary, held_out: Sequence[str], training: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """`score` of a model's greedy predictions. held_out, training: `windows` of those splits."""
    allowed = {"frequent word": {answer for answer, _ in counts_of(training, 1).most_common(FREQUENT)}}
    blanks_by_kind = {kind: draw_blanks(held_out, words, allowed.get(kind)) for kind, words in NUM_WORDS.items()}
    answers = [answer for blanks in blanks_by_kind.values() for _, answer in blanks]
    longest = max((len(vocabulary.encode_plain(answer)) for answer in answers), default=0)
    # room for a sentinel before the answer, one behind it, and white space: what is cut off is longer than any answer
    decoding = DecodingConfig(max_decode_length=longest + 4)
    predictor = Predictor(dataclasses.replace(experiment, decoding=decoding), params, vocabulary)
    size = predictor.batch_size

    def predict(texts: Sequence[str]) -> list[str]:
        inputs = predictor.encode(texts, rows=-(-len(texts) // size) * size)
        outputs = [
            row for start in range(0, len(inputs), size) for row in predictor.tokens(inputs[start : start + size])
        ]
        return [vocabulary.decode(row) for row in outputs[: len(texts)]]

    return score(blanks_by_kind, predict, training)


def score(
    blanks_by_kind: Mapping[str, Sequence[Blank]],
    predict: Callable[[Sequence[str]], Sequence[str]],
    training: Sequence[str],
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """{kind: {"exact_match", "exchanged", "unigram": in %, "examples"}}; and every blank with its prediction. Kinds
    with fewer than two blanks, which cannot be exchanged, are left out.

    predict: returns a prediction for each text. Its answer is the text from <extra_id_0> to the next sentinel, without
    white space around it. "exchanged": the model reads the text of the example before; for the first one, the last
    text. "unigram": the answer is always the most frequent word of `training`, for spans the most frequent two words.
    """
    counts = {words: counts_of(training, words) for words in {words[0] for words in NUM_WORDS.values()}}
    most_frequent = {words: max(count, key=lambda answer: count[answer], default="") for words, count in counts.items()}
    numbers: dict[str, Any] = {}
    records: list[dict[str, str]] = []
    for kind, blanks in blanks_by_kind.items():
        if len(blanks) < 2:
            continue
        texts, targets = zip(*blanks, strict=True)
        answers = [predicted_spans(prediction).get(0, "").strip() for prediction in predict(texts)]
        rotated = [answers[-1], *answers[:-1]]  # as an answer depends on its text alone
        constant = [most_frequent[NUM_WORDS[kind][0]]] * len(targets)
        columns = {"exact_match": answers, "exchanged": rotated, "unigram": constant}
        hits = {name: sum(map(str.__eq__, targets, column)) for name, column in columns.items()}
        numbers[kind] = {name: 100 * count / len(targets) for name, count in hits.items()} | {"examples": len(targets)}
        for text, target, answer in zip(texts, targets, answers, strict=True):
            filled = {"target": _BLANK + target, "prediction": _BLANK + answer}
            records.append({"kind": kind, "input": text, **filled})
    return numbers, records
