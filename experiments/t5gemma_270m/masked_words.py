"""Counts the masked words of held-out text that runs of Gemma's vocabulary fill in, each text with one of them.

    PYTHONPATH=. .venv/bin/python experiments/t5gemma_270m/masked_words.py gemma3_270m t5gemma_270m
    PYTHONPATH=. .venv/bin/python experiments/t5gemma_270m/masked_words.py gemma3_270m t5gemma_270m --text FILE

A decoder alone reads the text before the word. An encoder-decoder's encoder reads the whole text, with a sentinel for
the word, and its decoder continues the text before it. A word counts if greedy decoding would write it, and then end
it. "exchanged": the encoder reads the text of the example before; the difference is what the encoder is used for.
"""

import argparse
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import t5xpg
from t5xpg.base import paths
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.blanks import draw_blanks
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Model

TEXTS, TEXT_TOKENS, BATCH_SIZE = 512, 100, 8
_BLANK = "<extra_id_0>"


@dataclass(frozen=True)
class Example:
    """A text without one word: the ids before it, of the word, and behind it."""

    before: list[int]
    word: list[int]
    behind: list[int]


def documents(file: str | None) -> Iterator[str]:
    """The documents of the test split of `pydocs`, or the lines of a file of plain text."""
    if file is None:
        for line in (paths.data_directory() / "pydocs" / "test.jsonl").read_text(encoding="utf-8").splitlines():
            yield json.loads(line)["text"]
    else:
        with open(file, encoding="utf-8") as lines:
            yield from (line.strip() for line in lines if not line.strip().startswith("="))


def examples(texts: Iterator[str], vocabulary: Vocabulary) -> list[Example]:
    """One example of the beginning of each of the first texts that are long enough, with a blank at a fixed place."""
    beginnings = (vocabulary.encode_plain(text) for text in texts)
    long = [vocabulary.decode(ids[:TEXT_TOKENS]) for ids in beginnings if len(ids) >= TEXT_TOKENS // 2]
    result = []
    for text, word in draw_blanks(long[:TEXTS], (1,)):
        before, _, behind = text.partition(_BLANK)
        space = " " if before.endswith(" ") else ""
        parts = before.removesuffix(" "), space + word, behind
        result.append(Example(*(vocabulary.encode_plain(part) for part in parts)))
    return result


def hits(model: Model, params: Any, vocabulary: Vocabulary, asked: Sequence[Example], *, shift: int = 0) -> np.ndarray:
    """Boolean [N]: whether greedy decoding writes the word. shift: the encoder reads the example so far before."""
    of_word, begins = vocabulary.word_flags()
    continues = jnp.asarray(np.asarray(of_word) & ~np.asarray(begins))
    with_encoder = isinstance(model, EncoderDecoderModel)

    @jax.jit
    def right(params: Any, batch: dict[str, jax.Array], in_word: jax.Array) -> jax.Array:
        outputs = model.outputs(params, batch)
        best = jnp.argmax(outputs.to_logits(outputs.states), axis=-1)
        is_wanted = jnp.where(in_word == 1, best == batch["decoder_target_tokens"], ~continues[best])
        return jnp.all(is_wanted | (in_word == 0), axis=1)

    found: list[np.ndarray] = []
    for start in range(0, len(asked), BATCH_SIZE):
        rows = [asked[min(start + at, len(asked) - 1)] for at in range(BATCH_SIZE)]
        read = [asked[min(start + at, len(asked) - 1) - shift] for at in range(BATCH_SIZE)]
        # the token behind the word is 2: any that does not continue it is right
        marks = [[0] * len(row.before) + [1] * len(row.word) + [2] for row in rows]
        targets = _rows([[*row.before, *row.word, vocabulary.eos_id] for row in rows])
        batch = {"decoder_target_tokens": targets, "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0)))}
        if with_encoder:
            blank = vocabulary.sentinel_id(0)
            batch["encoder_input_tokens"] = _rows(
                [[*row.before, blank, *row.behind, vocabulary.eos_id] for row in read]
            )
        found.append(np.asarray(right(params, batch, _rows(marks))))
    return np.concatenate(found)[: len(asked)]


def _rows(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """int32 [N, TEXT_TOKENS + 16], padded with 0."""
    return np.array([[*row, *[0] * (TEXT_TOKENS + 16 - len(row))] for row in rows], np.int32)


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--text", help="a file of plain text, a document a line; default: the test split of pydocs")
    arguments = parser.parse_args()
    for name in arguments.runs:
        trained = t5xpg.load(name)
        asked = examples(documents(arguments.text), trained.vocabulary)
        count = functools.partial(hits, trained.experiment.model, trained.params, trained.vocabulary, asked)
        shares = {"right": count()}
        if isinstance(trained.experiment.model, EncoderDecoderModel):
            shares["exchanged"] = count(shift=1)
        numbers = ", ".join(f"{kind} {100 * share.mean():.1f}%" for kind, share in shares.items())
        print(f"{name}: {numbers} of {len(asked)} words", flush=True)


if __name__ == "__main__":
    main()
