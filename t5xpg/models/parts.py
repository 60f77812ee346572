"""The parts that a `T5Config` chooses, but for its positions (`positions`). Each has its own settings and refusals.

They raise UserError for a value that no model can have; `T5Config` says what goes with what.
"""

from dataclasses import dataclass
from typing import Any

from t5xpg.base.errors import UserError


def check(part: Any, is_good: bool, name: str, expected: str) -> None:
    """Raise UserError for the setting of this name of a part, unless it is good."""
    if not is_good:
        raise UserError(f"{type(part).__name__}.{name} is {getattr(part, name)!r}; it must be {expected}.")


def is_count(value: object, least: int = 1) -> bool:
    """True if a setting is a whole number of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_counts(part: Any, *names: str) -> None:
    """Raise UserError unless each of these settings is None or a whole number of at least 1."""
    for name in names:
        value = getattr(part, name)
        check(part, value is None or is_count(value), name, "None or a whole number of at least 1")


def check_positive(part: Any, *names: str) -> None:
    """Raise UserError unless each of these settings is None or a number above 0."""
    for name in names:
        value = getattr(part, name)
        is_good = value is None or (isinstance(value, int | float) and value > 0)
        check(part, is_good, name, "None or a number above 0")


def as_tuples(part: Any, *names: str) -> None:
    """Make tuples of lists, which gin hands over: a frozen dataclass has to be hashable."""
    for name in names:
        if isinstance(value := getattr(part, name), list):
            object.__setattr__(part, name, tuple(value))


@dataclass(frozen=True)
class Heads:
    """The heads of all attentions.

    num_kv_heads: G, the heads of keys and values; H / G heads of queries read each (Ainslie et al. 2023). None: H.
    qk_norm: RMS norms of each head's queries and keys; queries are then divided by sqrt(K).
    logit_softcap: c; each product x of query and key becomes c tanh(x / c). None: no cap.
    merged: a layer of the decoder has one attention, over its own positions and the source (T5Gemma 2).
    """

    num_kv_heads: int | None = None
    qk_norm: bool = False
    logit_softcap: float | None = None
    merged: bool = False

    def __post_init__(self) -> None:
        check_counts(self, "num_kv_heads")
        check_positive(self, "logit_softcap")


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """The embeddings of tokens.

    shared: False gives the decoder its own embedding; a tied output matrix is tied to that one.
    """

    shared: bool = True


@dataclass(frozen=True, kw_only=True)
class Ngrams(Embeddings):
    """Embeddings of tokens plus those of the n-grams that end with them (BLT, arXiv 2412.09871; see `ngrams`).

    lengths: of the n-grams. buckets: rows of their table; the n-grams' hashes choose the rows.
    """

    lengths: tuple[int, ...]
    buckets: int = 16384

    def __post_init__(self) -> None:
        as_tuples(self, "lengths")
        are_counts = isinstance(self.lengths, tuple) and all(is_count(n) and n <= 16 for n in self.lengths)
        check(self, are_counts and self.lengths != (), "lengths", "whole numbers from 1 to 16")
        check(self, is_count(self.buckets), "buckets", "a whole number of at least 1")


@dataclass(frozen=True)
class EncoderSizes:
    """The sizes of an encoder that differs in width from the decoder (T5Gemma 9B-2B); None: as in the decoder.

    The decoder makes keys and values of the encoder's outputs.
    """

    emb_dim: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    mlp_dim: int | None = None

    def __post_init__(self) -> None:
        check_counts(self, "emb_dim", "num_heads", "num_kv_heads", "mlp_dim")


@dataclass(frozen=True)
class Windows:
    """The windows of self attention: how far a position sees in all layers but every `pattern`-th.

    encoder: the numbers of positions behind and ahead. decoder: the number behind. None: all. pattern: also decides
    which layers have Rotary.local_base, even in a stack without windows. Rows longer than what a block of queries sees
    are computed by blocks; time and memory then grow linearly with the length.
    global_block: n; positions of the encoder see, besides their windows, the sum of each block of n positions (LongT5's
    transient global attention, Guo et al. 2022). None: no such sums.
    """

    encoder: tuple[int, int] | None = None
    decoder: int | None = None
    pattern: int = 2
    global_block: int | None = None

    def __post_init__(self) -> None:
        as_tuples(self, "encoder")
        pair = self.encoder
        is_pair = isinstance(pair, tuple) and len(pair) == 2 and all(is_count(one, 0) for one in pair)
        check(self, pair is None or is_pair, "encoder", "None or two whole numbers: positions behind and ahead")
        check(self, self.decoder is None or is_count(self.decoder, 0), "decoder", "None or a whole number")
        check(self, is_count(self.pattern), "pattern", "a whole number of at least 1")
        check_counts(self, "global_block")
        check(self, self.global_block is None or pair is not None, "encoder", "two whole numbers with global_block")
