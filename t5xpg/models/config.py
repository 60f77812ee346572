"""What a T5 is made of: sizes and choices, under the names that T5X gives them."""

from __future__ import annotations

from dataclasses import dataclass

from t5xpg.base.errors import UserError, nearest

DTYPES = ("float32", "bfloat16", "float16")
REMAT_POLICIES = ("none", "dots", "full")
MOST_LAYERS = 1_000  # of a stack: every layer is described before anything is computed
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
        rounding. For inputs of 4,096 tokens and more, where it is as fast or faster on CPUs, and wherever memory is
        what is short; None, for all queries at once, takes about half the time at 1,024 and 2,048 (`make bench
        ROWS=growth`).
    relpos_bias_in_every_layer: every layer has a table of relative positions of its own (umT5, T5X's scalable_t5);
        else the layers of a stack share one.
    scan_layers: one layer is compiled, for all of a stack, whose parameters lie in one array for each kind; what is
        computed is the same but for rounding, and a checkpoint of the one is read as the other.
    remat_policy: what the backward pass has kept of each layer, and what it makes again: "none", "dots" or "full", see
        `layer_stack`.

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
    relpos_bias_in_every_layer: bool = False
    scan_layers: bool = False
    remat_policy: str = "none"

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
            if "layers" in name and size > MOST_LAYERS:
                raise UserError(f"T5Config.{name} is {size:,}; it must be at most {MOST_LAYERS:,}.")
        chunk = self.attention_chunk_size
        if chunk is not None and (not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1):
            raise UserError(
                f"T5Config.attention_chunk_size is {chunk!r}; it must be None or a whole number of at least 1."
            )
        if not isinstance(self.relpos_bias_in_every_layer, bool):
            raise UserError(
                f"T5Config.relpos_bias_in_every_layer is {self.relpos_bias_in_every_layer!r}; it must be True or False."
            )
        if not isinstance(self.scan_layers, bool):
            raise UserError(f"T5Config.scan_layers is {self.scan_layers!r}; it must be True or False.")
        if self.remat_policy not in REMAT_POLICIES:
            near = nearest("dots" if self.remat_policy == "minimal" else str(self.remat_policy), REMAT_POLICIES)
            raise UserError(f"T5Config.remat_policy is {self.remat_policy!r}.{near}")
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


def padded_vocab_size(vocab_size: int, multiple: int = 1) -> int:
    """`vocab_size` rounded up to a multiple: rows that no id uses, for an embedding that divides well (T5X: 128)."""
    for name, value in (("VOCAB_SIZE", vocab_size), ("VOCAB_SIZE_MULTIPLE", multiple)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{name} is {value!r}: it must be a whole number of at least 1.")
    return -(-vocab_size // multiple) * multiple
