"""Trains SentencePiece models on exported text: the same bytes for the same text, settings and seed, on any machine."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.data.text_sample import LONGEST_SENTENCE, Sample, SampleSize, sentences_of
from t5xpg.errors import UserError, nearest
from t5xpg.progress import Progress
from t5xpg.seeds import check_seed

MODELS = ("unigram", "bpe")
IDENTITY = "identity"
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", IDENTITY)
# Sums of the unigram model are made thread by thread: another number of them gives other last digits, and other pieces.
_THREADS = 16
_MOST_BYTES_OF_CHARACTER = 4
_MOST_PIECES = 10_000_000
_LARGE = 2**30  # bytes of text from which SentencePiece needs wider numbers


@dataclass(frozen=True)
class VocabularySettings:
    """What decides a trained vocabulary beside the text. The defaults are T5's.

    size: pieces, with the three special ones and the 256 of `byte_fallback`; extra_ids come on top. model: one of
    MODELS. character_coverage: so many of the text's characters get a piece; the others become bytes or unknown.
    byte_fallback: 256 pieces for bytes, so that no text has unknown tokens. normalization: SentencePiece's rule;
    "identity" changes nothing, and keeps spaces and line ends too, as code needs it. sample: how much of the text is
    used. seed: which of it. Raises UserError for what cannot be.
    """

    size: int = 32_000
    extra_ids: int = 100
    model: str = MODELS[0]
    character_coverage: float = 0.9995
    byte_fallback: bool = False
    normalization: str = NORMALIZATIONS[0]
    sample: SampleSize = SampleSize(sentences=1_000_000)  # noqa: RUF009  # frozen, too
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("model", MODELS), ("normalization", NORMALIZATIONS)):
            if getattr(self, name) not in known:
                value = getattr(self, name)
                raise UserError(f"{name.upper()}={value} is not known.{nearest(str(value), known)}")
        if not 1 <= self.size <= _MOST_PIECES:
            raise UserError(f"SIZE={self.size}: it counts pieces, so it is from 1 to {_MOST_PIECES:,}.")
        if not 0.9 <= self.character_coverage <= 1.0:
            raise UserError(f"CHARACTER_COVERAGE={self.character_coverage}: it is a share, from 0.9 to 1.")
        check_seed(self.seed)

    @property
    def name(self) -> str:
        """What such a vocabulary is called where nobody says otherwise."""
        return f"{self.model}_{self.size}"

    def to_json(self) -> dict[str, Any]:
        """As the record keeps them."""
        return {**vars(self), "sample": str(self.sample)}


def draw_sample(dataset: str, split: Path, documents: int, settings: VocabularySettings) -> Sample:
    """Read a split of an export, a document at a time, and draw the sample from all of its lines."""
    sample = Sample(settings.sample, settings.seed)
    keep_spaces = settings.normalization == IDENTITY
    with Progress(f"read {dataset}", documents, "documents") as progress, split.open("rb") as file:
        for line in file:
            for text in json.loads(line).values():  # the fields of a record, too
                for sentence in sentences_of(text, keep_spaces):
                    sample.offer(sentence)
            progress.advance()
    return sample


def train_model(sentences: Sequence[str], settings: VocabularySettings, bytes_of_text: int) -> bytes:
    """The SentencePiece model of the sentences, as its file holds it.

    It has fewer pieces than were asked for where the text has no more to give. Raises UserError where the characters of
    the text alone are more than that.
    """
    import sentencepiece

    model = io.BytesIO()
    keeps_all = settings.normalization == IDENTITY
    options: dict[str, Any] = {
        "model_type": settings.model,
        "vocab_size": settings.size,
        "hard_vocab_limit": False,
        "character_coverage": settings.character_coverage,
        "byte_fallback": settings.byte_fallback,
        "normalization_rule_name": settings.normalization,
        "remove_extra_whitespaces": not keeps_all,
        "allow_whitespace_only_pieces": keeps_all,
        # no line has the one, and SentencePiece takes no piece with the other from a text
        "user_defined_symbols": ["\n", "\t"] if keeps_all else [],
        "pad_id": 0,
        "eos_id": 1,
        "unk_id": 2,
        "bos_id": -1,
        "input_sentence_size": 0,  # it would draw by chance
        "shuffle_input_sentence": False,
        "max_sentence_length": LONGEST_SENTENCE * _MOST_BYTES_OF_CHARACTER,
        "train_extremely_large_corpus": bytes_of_text >= _LARGE,
        "num_threads": _THREADS,
        "minloglevel": 2,
    }
    try:
        with _signals_end_it():
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=model, **options)
    except RuntimeError as error:
        if match := re.search(r"smaller than required_chars\. (\d+) vs (\d+)", str(error)):
            raise UserError(
                f"SIZE={settings.size} is too small: the characters of this text, with the special pieces, are "
                f"{int(match[2]):,}. Give a larger SIZE, or a lower CHARACTER_COVERAGE."
            ) from None
        raise UserError(f"SentencePiece cannot train on this text ({error}).") from None
    return model.getvalue()


@contextlib.contextmanager
def _signals_end_it() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the process at once: Python would hear of them when the training is over.

    Nothing is half-written meanwhile: the model is made in memory.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
