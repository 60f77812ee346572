"""What a T5 is made of: sizes and choices, under the names that T5X gives them."""

from dataclasses import dataclass

from t5xpg.base.errors import UserError, nearest

DTYPES = ("float32", "bfloat16", "float16")
REMAT_POLICIES = ("none", "dots", "full")
_SIZES = (
    "vocab_size", "emb_dim", "num_heads", "head_dim", "num_encoder_layers", "num_decoder_layers", "mlp_dim",
)  # fmt: skip
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
    attention_chunk_size: attention works off so many queries at a time: what it holds grows with the length, not its
        square; the same but for rounding. For inputs of 4,096 tokens and more, and wherever memory is what is short;
        None, for all queries at once, takes about half the time at 1,024 and 2,048 (`make bench ROWS=growth`).
    relpos_bias_in_every_layer: every layer has a table of relative positions of its own (umT5, T5X's scalable_t5);
        else the layers of a stack share one.
    relative_attention_keys: each bucket of relative positions has a key of each head, too, by which queries are
        multiplied (Shaw et al. 2018, equation 4): how far a head looks can depend on what it looks for. T5 has none.
    scan_layers, remat_policy: see `layer_stack`; the same but for rounding.

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
    relative_attention_keys: bool = False
    scan_layers: bool = False
    remat_policy: str = "none"

    def __post_init__(self) -> None:
        # gin hands lists over; a frozen dataclass has to be hashable
        object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
        chunk, buckets = self.attention_chunk_size, self.relative_attention_num_buckets

        def check(is_good: bool, name: str, expected: str) -> None:
            if not is_good:
                raise UserError(f"T5Config.{name} is {getattr(self, name)!r}; it must be {expected}.")

        for name in _SIZES:
            check(is_count(getattr(self, name)), name, "a whole number of at least 1")
            check("layers" not in name or getattr(self, name) <= MOST_LAYERS, name, f"at most {MOST_LAYERS:,}")
        check(chunk is None or is_count(chunk), "attention_chunk_size", "None or a whole number of at least 1")
        for name in ("relpos_bias_in_every_layer", "relative_attention_keys", "scan_layers"):
            check(isinstance(getattr(self, name), bool), name, "True or False")
        check(chunk is None or not self.relative_attention_keys, "attention_chunk_size", "None with relative keys")
        check(0.0 <= self.dropout_rate < 1.0, "dropout_rate", "at least 0 and below 1")
        check(buckets >= 4 and buckets % 4 == 0, "relative_attention_num_buckets", "a multiple of 4 (T5 has 32)")
        # half of the buckets of one direction stand for one distance each; the rest divides what lies beyond
        reaches_on = self.relative_attention_max_distance > buckets // 2
        check(reaches_on, "relative_attention_max_distance", f"above {buckets // 2} with {buckets} buckets")
        check(bool(self.mlp_activations), "mlp_activations", 'some names; T5 1.1 has ("gelu", "linear")')
        choices: list[tuple[str, str, tuple[str, ...]]] = [("dtype", self.dtype, DTYPES)]
        choices += [("remat_policy", self.remat_policy, REMAT_POLICIES)]
        choices += [("mlp_activations", activation, ACTIVATIONS) for activation in self.mlp_activations]
        for name, value, known in choices:
            if value not in known:
                near = nearest("dots" if value == "minimal" else str(value), known)  # T5X's name
                raise UserError(f"T5Config.{name} is {getattr(self, name)!r}.{near}")


def is_count(value: object, least: int = 1) -> bool:
    """Whether a setting is a whole number, and no smaller than `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def padded_vocab_size(vocab_size: int, multiple: int = 1) -> int:
    """`vocab_size` rounded up to a multiple: rows that no id uses, for an embedding that divides well (T5X: 128)."""
    for name, value in (("VOCAB_SIZE", vocab_size), ("VOCAB_SIZE_MULTIPLE", multiple)):
        if not is_count(value):
            raise UserError(f"{name} is {value!r}: it must be a whole number of at least 1.")
    return -(-vocab_size // multiple) * multiple
