"""What a T5 is made of: sizes and choices, under the names that T5X gives them."""

from __future__ import annotations

from dataclasses import dataclass

from t5xpg.errors import UserError, nearest

DTYPES = ("float32", "bfloat16", "float16")
ACTIVATIONS = ("gelu", "relu", "silu", "swish", "tanh", "linear")


@dataclass(frozen=True)
class T5Config:
    """A T5 1.1 (the defaults), a ByT5 or a first-generation T5.

    vocab_size: V, rows of the embedding; ids must be below it.
    emb_dim: D. num_heads: H. head_dim: K; H * K need not equal D. mlp_dim: F.
    mlp_activations: ("gelu", "linear") is the gated GELU of T5 1.1, ("relu",) the MLP of the first T5.
    dropout_rate: used only where a dropout key is given.
    logits_via_embedding: True ties the output matrix to the embedding (the first T5), False gives it its own.
    dtype: what activations are computed in; parameters are float32 always.
    float32_attention_logits: multiply queries and keys in float32 where dtype is a 16-bit one.
    attention_chunk_size: attention works off so many queries at a time and makes their weights again in the backward
        pass, so that what it holds grows with the length, not with its square. What is computed is the same but for
        rounding. For long inputs (from about 1,024 tokens) and whenever memory is what is short; None, for all queries
        at once, is faster where memory is not.

    Raises UserError for a value that no model can have.
    """

    vocab_size: int
    emb_dim: int = 512
    num_heads: int = 8
    head_dim: int = 64
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    mlp_dim: int = 2048
    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    dropout_rate: float = 0.0
    logits_via_embedding: bool = False
    dtype: str = "float32"
    float32_attention_logits: bool = False
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    attention_chunk_size: int | None = None

    def __post_init__(self) -> None:
        # gin hands lists over; a frozen dataclass has to be hashable
        object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
        sizes = {
            name: getattr(self, name)
            for name in ("vocab_size", "emb_dim", "num_heads", "head_dim", "num_encoder_layers", "num_decoder_layers")
        } | {"mlp_dim": self.mlp_dim}
        for name, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise UserError(f"T5Config.{name} is {size!r}; it must be a whole number of at least 1.")
        chunk = self.attention_chunk_size
        if chunk is not None and (not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1):
            raise UserError(
                f"T5Config.attention_chunk_size is {chunk!r}; it must be None or a whole number of at least 1."
            )
        if self.dtype not in DTYPES:
            raise UserError(f"T5Config.dtype is {self.dtype!r}.{nearest(str(self.dtype), DTYPES)}")
        if not self.mlp_activations:
            raise UserError('T5Config.mlp_activations is empty; T5 1.1 has ("gelu", "linear").')
        for activation in self.mlp_activations:
            if activation not in ACTIVATIONS:
                raise UserError(
                    f"T5Config.mlp_activations holds {activation!r}.{nearest(str(activation), ACTIVATIONS)}"
                )
        if not 0.0 <= self.dropout_rate < 1.0:
            raise UserError(f"T5Config.dropout_rate is {self.dropout_rate!r}; it must be at least 0 and below 1.")
        buckets, distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if buckets < 4 or buckets % 4:
            raise UserError(
                f"T5Config.relative_attention_num_buckets is {buckets!r}; it must be a multiple of 4 (T5 has 32)."
            )
        # half of the buckets of one direction stand for one distance each; the rest divides what lies beyond
        if distance <= buckets // 2:
            raise UserError(
                f"T5Config.relative_attention_max_distance is {distance!r}; with {buckets} buckets it must be above "
                f"{buckets // 2}."
            )
