"""The positions that a `T5Config` chooses: T5's buckets of distances or rotary positions. It can also have None."""

from dataclasses import dataclass

from t5xpg.models.parts import check, check_positive, is_count


@dataclass(frozen=True)
class Buckets:
    """T5's relative positions: a table of biases of attention logits, a row for each bucket of distances.

    num_buckets, max_distance: as in T5X's RelativePositionBiases.
    in_every_layer: every layer has its own table (umT5, T5X's scalable_t5); otherwise the layers of a stack share one.
    """

    num_buckets: int = 32
    max_distance: int = 128
    in_every_layer: bool = False

    def __post_init__(self) -> None:
        buckets = self.num_buckets
        check(self, is_count(buckets, 4) and buckets % 4 == 0, "num_buckets", "a multiple of 4 (T5 has 32)")
        # half of the buckets of one direction stand for one distance each; the rest divides what lies beyond
        reaches_on = is_count(self.max_distance, buckets // 2 + 1)
        check(self, reaches_on, "max_distance", f"a whole number above {buckets // 2} with {buckets} buckets")


@dataclass(frozen=True)
class Rotary:
    """Rotary positions in self attention (Su et al. 2021).

    Number k of a head's first half turns with number k of the second. base: of the angles; local_base: that of layers
    with a window (`parts.Windows`), if it differs. scale: positions are divided by it in layers without a window.
    cross_attention: the decoder's positions continue where the inputs of its example end, and cross attention is
    rotary, too, with these positions (RedLLM, arXiv 2510.26622).
    """

    base: float = 10_000.0
    local_base: float | None = None
    scale: float = 1.0
    cross_attention: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "base", "local_base", "scale")
        for name in ("base", "scale"):
            check(self, getattr(self, name) is not None, name, "a number above 0")
