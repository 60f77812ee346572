"""Objectives against an independent implementation, and what must hold of them on real text."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf
from t5.data import preprocessors as t5

from t5xpg.data.objectives import IidDenoising, LanguageModel, MaskedLM, PrefixLM, SpanCorruption
from t5xpg.data.tasks import steps as objective_steps
from t5xpg.data.tasks.task_names import NAMED_BYTES, UL2
from t5xpg.data.vocab.sentinels import CLS, MASK
from t5xpg.data.vocab.seqio_vocabularies import to_seqio
from tests.data.tasks.objective_examples import dataset_of, examples_of
from tests.refusals import refused

VOCABULARY = to_seqio(NAMED_BYTES)
FIRST, SENTINELS = NAMED_BYTES.sentinel_id(0), NAMED_BYTES.num_sentinels
FEATURES = objective_steps.output_features(PrefixLM(), VOCABULARY)


# The text of inputs and targets: from the papers, in plain Python over lists of ids, with no code of the program.


def restored(inputs: Sequence[int], targets: Sequence[int]) -> list[int]:
    """The text that was corrupted to these: their runs in turn, of which none between two others is empty."""
    shown, hidden = map(_runs, (inputs, targets))
    first, second = (shown, hidden) if shown[0] else (hidden, shown)
    assert second[0] == []
    runs = [run for turn in itertools.zip_longest(first, second[1:], fillvalue=[]) for run in turn]
    assert sorted(runs, key=bool, reverse=True) == runs
    return [token for run in runs for token in run]


def _runs(side: Sequence[int]) -> list[list[int]]:
    """What stands before, between and behind the sentinels, which count down from the first."""
    runs: list[list[int]] = [[]]
    for token in side:
        if FIRST - SENTINELS < token <= FIRST:
            assert token == FIRST - len(runs) + 1
            runs.append([])
        else:
            runs[-1].append(token)
    return runs


@pytest.fixture(scope="module")
def documents(real_texts: list[str]) -> list[np.ndarray]:
    return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 3 for text in real_texts]


def text_of(example: dict[str, np.ndarray], mode: int) -> list[int]:
    """The tokens of text of an example, of whichever kind; checks the mode in front and the ends."""
    inputs, targets = example["inputs"].tolist(), example["targets"].tolist()
    assert inputs.pop(0) == mode
    assert inputs.pop() == targets.pop() == 1
    assert not set(inputs + targets) & {0, 1, 2, *range(259, 264)}
    if max(inputs + targets) > 258:
        return restored(inputs, targets)
    return inputs + targets


@pytest.mark.parametrize("denoiser", UL2, ids=lambda one: one.name)
def test_the_denoisers_of_ul2_lose_nothing_and_fit(denoiser: Any, documents: list[np.ndarray]) -> None:
    lengths = {"inputs": 128, "targets": 128}
    found = examples_of(documents, denoiser.objective, VOCABULARY, denoiser.mode, **lengths)
    mode = NAMED_BYTES.named_id({"r": "[NLU]", "s": "[S2S]", "x": "[NLG]"}[denoiser.name[0]])
    texts = [text_of(example, mode) for example in found]
    np.testing.assert_array_equal(np.concatenate(texts), np.concatenate(documents))
    assert max(len(example["inputs"]) for example in found) <= 128
    assert max(len(example["targets"]) for example in found) <= 128
    shares = [
        (len(e["targets"]) - 1 - (e["targets"] > 263).sum()) / len(text) for e, text in zip(found, texts, strict=True)
    ]
    if isinstance(denoiser.objective, PrefixLM):
        long = [share for share, text in zip(shares, texts, strict=True) if len(text) == 126]
        assert max(long) <= 0.51
        assert abs(np.mean(long) - 0.25) < 6 * 0.5 / math.sqrt(12 * len(long))  # uniform from 0 to a half
    else:
        full = [share for share, text in zip(shares, texts, strict=True) if len(text) == len(texts[0])]
        assert len(full) >= len(found) - 1
        np.testing.assert_allclose(full, denoiser.objective.noise_density, atol=0.6 / len(texts[0]))
        # the longest inputs that the lengths allow, but for what rounding leaves
        assert {len(e["inputs"]) for e in found[:-1]} <= {127, 128}


def test_iid_denoising_is_that_of_t5(documents: list[np.ndarray]) -> None:
    lengths = {"inputs": 100, "targets": 100}
    ours = examples_of(documents[:9], IidDenoising(), VOCABULARY, **lengths)
    with seqio.map_seed_manager(1):
        step = tf.autograph.experimental.do_not_convert(t5.iid_denoising)
        theirs = step(dataset_of(documents[:9]), lengths, FEATURES)
    for one, other in zip(ours, theirs.as_numpy_iterator(), strict=True):
        for name in ("inputs", "targets"):
            np.testing.assert_array_equal(one[name], [*other[name], 1])
    denser = examples_of(documents[:9], IidDenoising(0.4), VOCABULARY, inputs=100, targets=200)
    share = np.mean([(example["targets"] < 259).sum() / 99 for example in denser[:-1]])
    assert abs(share - 0.4) < 0.05


def test_a_language_model_reads_documents_and_their_ends(documents: list[np.ndarray]) -> None:
    found = examples_of(documents, LanguageModel(), VOCABULARY, targets=100)
    assert all(example.keys() == {"targets"} for example in found)
    expected = np.concatenate([[*tokens, 1] for tokens in documents])
    np.testing.assert_array_equal(np.concatenate([example["targets"] for example in found]), expected)
    assert {len(example["targets"]) for example in found[:-1]} == {100}


def test_chosen_tokens_are_masked_replaced_and_kept(documents: list[np.ndarray]) -> None:
    cls, mask = NAMED_BYTES.named_id(CLS), NAMED_BYTES.named_id(MASK)
    found = examples_of(documents, MaskedLM(), VOCABULARY, inputs=128, targets=128)
    inputs, targets, chosen = (np.concatenate([e[name] for e in found]) for name in ("inputs", "targets", "chosen"))
    for example in found:
        assert len(example["inputs"]) == len(example["targets"]) == len(example["chosen"]) <= 128
        ends = [[int(values[place]) for values in example.values()] for place in (0, -1)]
        assert ends == [[cls, cls, 1], [1, 1, 1]]
    of_text = (targets != cls) & (targets != 1)
    np.testing.assert_array_equal(targets[of_text], np.concatenate(documents))
    picked = chosen == 2
    np.testing.assert_array_equal(inputs[~picked], targets[~picked])

    def share_is(values: np.ndarray, expected: float) -> None:
        assert abs(values.mean() - expected) < 6 * math.sqrt(expected * (1 - expected) / len(values))

    share_is(picked[of_text], 0.15)
    assert picked.sum() > 2000
    share_is(inputs[picked] == mask, 0.8)
    # a random token is the one that was there now and then
    others = (inputs != mask) & (inputs != targets) & picked
    share_is(others[picked], 0.1 * 255 / 256)
    assert inputs[others].min() >= 3
    assert inputs[others].max() <= 258
    assert len(np.unique(inputs[others])) > 100
    kept = MaskedLM(0.3, mask_share=0.0, random_share=0.0)
    for example in examples_of(documents[:5], kept, VOCABULARY, inputs=64, targets=64):
        np.testing.assert_array_equal(example["inputs"], example["targets"])


def test_the_objective_of_a_task_is_known_and_changed() -> None:
    def task(*steps: Any) -> seqio.Task:
        return seqio.Task("known", seqio.TextLineDataSource({"train": "none"}), FEATURES, list(steps))

    for objective in (SpanCorruption(0.2, 4.0), IidDenoising(0.3), PrefixLM(0.4), LanguageModel(), MaskedLM(0.2)):
        one = task(*objective.steps())
        assert objective_steps.objective_of(one) == objective
        assert objective_steps.reserved_of(one) == 0
        other = type(objective)()
        assert objective_steps.objective_of(objective_steps.with_objective(one, other)) == other
    ul2 = task(*SpanCorruption().steps("[NLU]"))
    assert objective_steps.reserved_of(ul2) == 1
    assert objective_steps.reserved_of(objective_steps.with_objective(ul2, SpanCorruption(0.5))) == 1
    theirs = task(t5.iid_denoising)
    assert objective_steps.with_objective(theirs, IidDenoising()) is theirs
    changed = objective_steps.with_objective(theirs, IidDenoising(0.3))
    assert objective_steps.objective_of(changed) == IidDenoising(0.3)
    with refused("known has no step", "span_corruption"):
        objective_steps.with_objective(theirs, SpanCorruption())
    assert objective_steps.objective_of(task(lambda dataset: dataset)) is None
