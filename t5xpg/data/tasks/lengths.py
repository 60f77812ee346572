"""How long the inputs and targets of an objective become, what ids they take, and why a task cannot be read so: what
training refuses and `make check` reports. Without TensorFlow.

Known before anything is read, so that no run trains on targets that were cut off, or on sentinels that are tokens of
text. Of tokens that are masked by chance, the numbers are those that one example in a thousand million exceeds.
"""

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from t5xpg.data.objectives import (
    CHOSEN,
    IidDenoising,
    LanguageModel,
    MaskedLM,
    NextLine,
    Objective,
    Passkey,
    PrefixLM,
    SpanCorruption,
    features_of,
    name_of,
)
from t5xpg.data.vocab.sentinels import CLS, MASK
from t5xpg.data.vocab.vocabulary import BYTES, Vocabulary


@dataclass(frozen=True)
class SpanLengths:
    """What span corruption makes of one length of inputs: tokens of text that fill it, of their targets, and spans."""

    noise_density: float
    mean_noise_span_length: float
    text_tokens: int
    target_tokens: int
    spans: int


def span_lengths(inputs_length: int, objective: SpanCorruption) -> SpanLengths:
    """The lengths that fill inputs of `inputs_length` tokens."""
    density, mean = objective.noise_density, objective.mean_noise_span_length

    def of(text: int) -> tuple[int, int]:
        """Lengths of inputs and targets as t5's helper counts them."""
        noise = round(text * density)
        spans = round(noise / mean)
        return text - noise + spans + 1, noise + spans + 1

    # t5 counts upwards from here; no text below the second number is too long, whatever is rounded
    text = max(inputs_length - 1, int((inputs_length - 3) / (1 - density + density / mean)) - 1)
    while of(text + 1)[0] <= inputs_length:
        text += 1
    inputs, targets = of(text)
    if density == 0.5 and targets > inputs:  # t5 makes the two equal
        text, targets = text - 1, targets - 1
    noise = min(max(round(text * density), 1), text - 1)
    spans = max(round(noise / mean), 1)
    # t5's helper does not know that there is always one span, which tells for very short inputs
    return SpanLengths(density, mean, text, max(targets, noise + spans + 1), spans)


_RARE = 1e-9  # the probability that an example exceeds what is said of it
_LONGEST_COUNTED = 1 << 11  # tokens of text; for longer ones its numbers are scaled


@dataclass(frozen=True)
class ObjectiveLengths:
    """For lengths of features: most tokens of text in an example, tokens of the longest targets, most sentinels."""

    text: int
    targets: int
    sentinels: int = 0


def objective_lengths(
    objective: Objective, lengths: Mapping[str, int], vocabulary: Vocabulary | None = None, reserved: int = 0
) -> ObjectiveLengths:
    """What an objective makes of `lengths` of its features. vocabulary: None where it is not known; then more sentinels
    can be needed. reserved: tokens before the text, such as UL2's mode."""
    if isinstance(objective, LanguageModel):
        return ObjectiveLengths(lengths["targets"], lengths["targets"])
    inputs = lengths["inputs"] - reserved
    if isinstance(objective, SpanCorruption) and objective.whole_words:
        # examples with longer targets are left out, here half of them
        text, density = inputs - 1, objective.noise_density
        # each piece can be a word; bytes need one that is no letter between two words
        words = (text + 1) / 2 if vocabulary is not None and vocabulary.kind == BYTES else text
        # t5 rounds twice, makes at least one span, and rolls one over the end, where it is two
        spans = max(1, math.floor((words * density + 0.5) / objective.mean_noise_span_length + 0.5)) + 1
        # each has two tokens of targets or more
        return ObjectiveLengths(text, math.ceil(density * text) + 2, min(spans, (lengths["targets"] - 1) // 2))
    if isinstance(objective, SpanCorruption):
        found = span_lengths(inputs, objective)
        return ObjectiveLengths(found.text_tokens, found.target_tokens, found.spans)
    if isinstance(objective, MaskedLM):
        return ObjectiveLengths(inputs - 2, inputs)  # [CLS] and the end
    text = inputs - 1  # the end
    if isinstance(objective, NextLine):  # longer lines become no targets
        return ObjectiveLengths(text + lengths["targets"] - 1, lengths["targets"])
    if isinstance(objective, Passkey):
        return ObjectiveLengths(text - objective.line_length, objective.digits + 1)
    if isinstance(objective, PrefixLM):
        # as t5's random_prefix_noise_mask counts, in float32
        share = np.float32(1 - 2 * objective.noise_density) * np.float32(text - 1)
        shortest_beginning = min(text - 1, max(1, int(np.round(share))))
        return ObjectiveLengths(text, text - shortest_beginning + 1)
    assert isinstance(objective, IidDenoising)
    noise_and_runs, runs = _iid_most(max(text, 1), objective.noise_density)
    return ObjectiveLengths(text, noise_and_runs + 1, runs)


def problems(
    task: str, lengths: Mapping[str, int], objective: Objective, vocabulary: Vocabulary | None, reserved: int = 0
) -> list[str]:
    """Why a task with this objective cannot be read with these lengths and this vocabulary. vocabulary: None where the
    objective takes no ids beside those of the text."""
    expected = set(features_of(objective)) - {CHOSEN}
    if set(lengths) != expected:
        names = " and ".join(f"'{name}'" for name in sorted(expected))
        return [f"TASK_FEATURE_LENGTHS has {sorted(lengths)}: {task} ({name_of(objective)}) has {names}."]
    is_made = vocabulary is not None and (vocabulary.model_file is None or Path(vocabulary.model_file).is_file())
    if vocabulary is not None and is_made and (problem := vocabulary_problem(task, objective, vocabulary)):
        return [problem]
    needed = objective_lengths(objective, lengths, vocabulary, reserved)
    if needed.text < 2:
        given = " and ".join(f"{name} of {length} tokens" for name, length in lengths.items())
        return [f"{task} has no room for text in {given}. Set longer TASK_FEATURE_LENGTHS."]
    found = []
    targets = lengths["targets"]
    noise = f" with noise density {objective.noise_density:g}" if hasattr(objective, "noise_density") else ""
    if isinstance(objective, SpanCorruption):
        noise += f" and a mean span of {objective.mean_noise_span_length:g}"
    if isinstance(objective, MaskedLM) and targets != lengths["inputs"]:
        found.append(
            f"The targets of {task} stand at the places of its inputs: both have one length. Set TASK_FEATURE_LENGTHS "
            f"= {{'inputs': {lengths['inputs']}, 'targets': {lengths['inputs']}}}."
        )
    elif targets < needed.targets:
        found.append(
            f"Targets of {targets} tokens are too short for {task}: inputs of {lengths['inputs']} tokens{noise} give "
            f"targets of {needed.targets}. Set TASK_FEATURE_LENGTHS = {{'inputs': {lengths['inputs']}, 'targets': "
            f"{needed.targets}}}, or more."
        )
    sentinels = 0 if vocabulary is None else vocabulary.num_sentinels
    if needed.sentinels > sentinels:
        found.append(
            f"{task} would need {needed.sentinels} sentinels for {needed.sentinels} spans in inputs of "
            f"{lengths['inputs']} tokens, and its vocabulary has {sentinels}: further ones would be ordinary tokens. "
            f"Use {'longer spans, ' if isinstance(objective, SpanCorruption) else ''}a lower noise density or shorter "
            "inputs."
        )
    return found


def vocabulary_problem(task: str, objective: Objective, vocabulary: Vocabulary) -> str | None:
    """Why a task with this objective cannot have this vocabulary, of whatever lengths; None where it can."""
    if isinstance(objective, SpanCorruption | IidDenoising) and not vocabulary.counts_down_from_last:
        return (
            f"{task} has a vocabulary whose sentinels are not its last ids, counting down, and its objective takes "
            "those for sentinels. Have some appended, by make vocab EXTRA_IDS=100 (extra_ids= in Python); a checkpoint "
            "with the ids as they are can be trained on tasks without sentinels alone."
        )
    if isinstance(objective, SpanCorruption) and objective.whole_words and not any(vocabulary.word_flags()[1]):
        return (
            f"WHOLE_WORDS=True: the vocabulary of {task} has no token that begins with a space and so a word. "
            "Set it to False, or choose another vocabulary."
        )
    if isinstance(objective, NextLine) and vocabulary.end_of_line is None:
        return (
            f"{task}: lines are divided by their ends, and the vocabulary ({vocabulary.kind}) has no token for those "
            "alone: use bytes, or pieces of make vocab NORMALIZATION=identity."
        )
    if isinstance(objective, Passkey) and vocabulary.kind != BYTES:
        return f"{task}: a pass key has a token for each digit: use bytes, not {vocabulary.kind}."
    if isinstance(objective, MaskedLM) and (absent := [n for n in (CLS, MASK) if n not in vocabulary.named_tokens]):
        return (
            f"{task}: the vocabulary has no {' and no '.join(absent)}. Name some of its extra ids so, as the table's "
            "mlm tasks do (named_tokens= in Python)."
        )
    return None


def span_numbers(objectives: Collection[Objective | None], lengths: Mapping[str, int]) -> SpanLengths | None:
    """The lengths of span corruption in a stream, where all of its tasks have the same; else None."""
    first = next(iter(objectives), None)
    if not isinstance(first, SpanCorruption) or first.whole_words or any(one != first for one in objectives):
        return None
    return span_lengths(lengths["inputs"], first)


@functools.cache
def _iid_most(text: int, density: float) -> tuple[int, int]:
    """Of `text` tokens masked one by one: most tokens of targets (masked ones, and a sentinel for each run of others)
    without an end, and most sentinels; the inputs have one for each run of masked ones."""
    if text > _LONGEST_COUNTED:  # no larger share of a longer text
        tokens, sentinels = _iid_most(_LONGEST_COUNTED, density)
        return -(-tokens * text // _LONGEST_COUNTED), -(-sentinels * text // _LONGEST_COUNTED)
    masked_and_runs = _most(text, density, {"mm": 1, "om": 1, "mo": 1}, before="m")
    runs_of_masked = _most(text, density, {"om": 1}, before="o")
    runs_of_others = _most(text, density, {"mo": 1}, before="m")
    return masked_and_runs, max(runs_of_masked, runs_of_others)


def _most(text: int, density: float, counted: Mapping[str, int], before: str) -> int:
    """The number that a count exceeds with probability _RARE: of pairs of neighbours, "m" masked and "o" other ones,
    the distribution of which is followed token by token. before: what stands before the first token."""
    ways = {state: np.zeros(text + 1) for state in "mo"}  # probability of each count, by the last token
    ways[before][0] = 1.0
    chances = {"m": density, "o": 1.0 - density}

    def moved(last: str, state: str) -> np.ndarray:
        by = counted.get(last + state, 0)
        return np.concatenate([np.zeros(by), ways[last][: text + 1 - by]])

    for _ in range(text):
        ways = {state: chances[state] * (moved("m", state) + moved("o", state)) for state in "mo"}
    beyond = np.cumsum((ways["m"] + ways["o"])[::-1])[::-1]  # of at least so many
    return int(np.flatnonzero(beyond > _RARE)[-1])
