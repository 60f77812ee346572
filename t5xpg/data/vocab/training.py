"""Trains SentencePiece models on exported text: the same bytes for the same text, settings and seed, on any machine."""

import contextlib
import dataclasses
import heapq
import io
import math
import random
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.progress import Progress
from t5xpg.base.seeds import check_seed
from t5xpg.data.text.manifest import texts_of_line

# Characters of a sentence; what is longer is cut between words.
LONGEST_SENTENCE = 4_000
_UNITS = {"": 0, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(r"(\d{1,15})\s*(B|[KMG]i?B)?")


@dataclass(frozen=True)
class SampleSize:
    """At most so many sentences, and at most so many bytes of UTF-8; None: no limit."""

    sentences: int | None = None
    bytes: int | None = None

    @classmethod
    def parse(cls, text: str) -> "SampleSize":
        """ "1000000" counts sentences, "200MB" bytes. Raises UserError for anything else."""
        match = _SIZE.fullmatch(text.strip())
        if match is None or int(match[1]) < 1:
            raise UserError(f"SAMPLE={text}: expected a number of sentences (1000000) or of bytes (200MB, 1GiB).")
        unit = _UNITS[match[2] or ""]
        return cls(bytes=int(match[1]) * unit) if unit else cls(sentences=int(match[1]))

    def __str__(self) -> str:
        return str(self.sentences) if self.sentences is not None else f"{self.bytes}B"


class Sample:
    """Draws sentences, each with the same chance, without knowing how many there will be: every one gets a random
    number, and those with the smallest are kept, as many as there is room for."""

    def __init__(self, size: SampleSize, seed: int) -> None:
        self._size = size
        # `random` is the same on every machine and version of Python
        self._draw = random.Random(seed).random
        self._kept: list[tuple[float, int, str]] = []  # the largest number first
        self._highest = 1.0  # no sentence with this number or above is kept
        self.offered = 0
        self.bytes = 0

    def offer(self, sentence: str) -> None:
        """Keep a sentence, or not."""
        number = self._draw()
        self.offered += 1
        if number >= self._highest:
            return
        heapq.heappush(self._kept, (-number, self.offered, sentence))
        self.bytes += len(sentence.encode("utf-8"))
        most = math.inf if self._size.sentences is None else self._size.sentences
        most_bytes = math.inf if self._size.bytes is None else self._size.bytes
        while len(self._kept) > most or self.bytes > most_bytes:
            lowest, _, left_out = heapq.heappop(self._kept)
            self._highest = -lowest
            self.bytes -= len(left_out.encode("utf-8"))

    def sentences(self) -> list[str]:
        """What was kept, in the order in which it came."""
        return [sentence for _, _, sentence in sorted(self._kept, key=lambda kept: kept[1])]


def sentences_of(text: str, keep_spaces: bool) -> Iterator[str]:
    """The lines of a text, long ones in pieces. keep_spaces: with the spaces at their ends."""
    for line in text.split("\n") if keep_spaces else text.splitlines():
        rest = line if keep_spaces else line.strip()
        while len(rest) > LONGEST_SENTENCE:
            end = rest.rfind(" ", 1, LONGEST_SENTENCE)
            end = end if end > 0 else LONGEST_SENTENCE
            yield rest[:end]
            rest = rest[end:]
        if rest.strip():
            yield rest


WORD = "word"
MODELS = ("unigram", "bpe", WORD)
IDENTITY = "identity"
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", IDENTITY)
# Sums of the unigram model are made thread by thread: another number of them gives other last digits, and other pieces.
_THREADS = 16
_MOST_BYTES_OF_CHARACTER = 4
_MOST_PIECES = 10_000_000
_USUAL_COVERAGE, _SMALL_ALPHABET = 0.9995, 1_000  # T5's, and characters
_LARGE = 2**30  # bytes of text from which SentencePiece needs wider numbers


@dataclass(frozen=True)
class VocabularySettings:
    """What decides a trained vocabulary beside the text. The defaults are T5's. Raises UserError for what cannot be.

    size: pieces, with the three special ones and the 256 of `byte_fallback`, which leave no text unknown; extra_ids
    come on top. model: "word" has the most frequent words, which spaces divide, for text that is in pieces already.
    character_coverage: the share of the text's characters that get a piece; None: see `for_text`. normalization:
    SentencePiece's rule; "identity" keeps spaces and line ends, as code needs it. sample: how much of the text is used.
    seed: which of it.
    """

    size: int = 32_000
    extra_ids: int = 100
    model: str = MODELS[0]
    character_coverage: float | None = None
    byte_fallback: bool = False
    normalization: str = NORMALIZATIONS[0]
    sample: SampleSize = SampleSize(sentences=1_000_000)  # frozen, too
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("model", MODELS), ("normalization", NORMALIZATIONS)):
            if (value := getattr(self, name)) not in known:
                raise UserError(f"{name.upper()}={value} is not known.{nearest(str(value), known)}")
        if not 1 <= self.size <= _MOST_PIECES:
            raise UserError(f"SIZE={self.size}: it counts pieces, so it is from 1 to {_MOST_PIECES:,}.")
        if self.character_coverage is not None and not 0.9 <= self.character_coverage <= 1.0:
            raise UserError(f"CHARACTER_COVERAGE={self.character_coverage}: it is a share, from 0.9 to 1.")
        if self.byte_fallback and self.model == WORD:
            raise UserError("BYTE_FALLBACK=1 is for unigram and bpe: MODEL=word has words alone.")
        check_seed(self.seed)

    @property
    def keeps_spaces(self) -> bool:
        """Whether spaces and line ends are text; they divide words."""
        return self.normalization == IDENTITY and self.model != WORD

    @property
    def name(self) -> str:
        """What such a vocabulary is called where nobody says otherwise."""
        return f"{self.model}_{self.size}"

    def for_text(self, sentences: Sequence[str]) -> "VocabularySettings":
        """With the coverage for a text, if none was chosen: all characters, where they are few and would be unknown."""
        import sentencepiece

        if self.character_coverage is not None:
            return self
        normalize = sentencepiece.SentencePieceNormalizer(rule_name=self.normalization).Normalize
        characters = len(set(normalize("".join(sorted(set().union(*sentences))))))
        covers_all = not self.byte_fallback and characters <= min(_SMALL_ALPHABET, self.size // 4)
        return dataclasses.replace(self, character_coverage=1.0 if covers_all else _USUAL_COVERAGE)

    def to_json(self) -> dict[str, Any]:
        """As the record keeps them; without a coverage that the text decides."""
        settings = {**vars(self), "sample": str(self.sample)}
        return {name: value for name, value in settings.items() if value is not None}


def draw_sample(dataset: str, split: Path, documents: int, settings: VocabularySettings) -> Sample:
    """Read a split of an export, a document at a time, and draw the sample from all of its lines."""
    sample = Sample(settings.sample, settings.seed)
    keep_spaces = settings.keeps_spaces
    with Progress(f"read {dataset}", documents, "documents") as progress, split.open("rb") as file:
        for line in file:
            for text in texts_of_line(line):
                for sentence in sentences_of(text, keep_spaces):
                    sample.offer(sentence)
            progress.advance()
    return sample


def train_model(
    sentences: Sequence[str], settings: VocabularySettings, bytes_of_text: int, prompts: Sequence[str] = ()
) -> bytes:
    """The SentencePiece model of the sentences, as its file holds it, with fewer pieces where the text has no more to
    give, and with a piece for every character of `prompts` (of words, they are text too). Raises UserError where the
    characters alone are more."""
    import sentencepiece

    settings = settings.for_text(sentences)
    if settings.model == WORD:
        return _train([*sentences, *prompts], settings, bytes_of_text, "")
    trained = _train(sentences, settings, bytes_of_text, "")
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained)
    unknown = {one for one in "".join(prompts) if processor.unk_id() in processor.encode(one)}
    return _train(sentences, settings, bytes_of_text, "".join(sorted(unknown))) if unknown else trained


def _train(sentences: Sequence[str], settings: VocabularySettings, bytes_of_text: int, required: str) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    keeps_all = settings.keeps_spaces
    special: dict[str, int] = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    try:
        with _signals_end_it():
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
                model_writer=model,
                model_type=settings.model,
                vocab_size=settings.size,
                hard_vocab_limit=False,
                character_coverage=settings.character_coverage,
                required_chars=required,
                byte_fallback=settings.byte_fallback,
                normalization_rule_name=settings.normalization,
                remove_extra_whitespaces=not keeps_all,
                allow_whitespace_only_pieces=keeps_all,
                # no line has the one, and SentencePiece takes no piece with the other from a text
                user_defined_symbols=["\n", "\t"] if keeps_all else [],
                input_sentence_size=0,  # it would draw by chance
                shuffle_input_sentence=False,
                max_sentence_length=LONGEST_SENTENCE * _MOST_BYTES_OF_CHARACTER,
                train_extremely_large_corpus=bytes_of_text >= _LARGE,
                num_threads=_THREADS,
                minloglevel=2,
                **special,
            )
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
    """Let Ctrl-C and SIGTERM end the process at once, as Python would hear of them when the training is over. Nothing
    is half-written meanwhile: the model is made in memory."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
