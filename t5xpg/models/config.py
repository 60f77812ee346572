"""`T5Config`: the sizes and choices of a T5, under T5X's names."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from t5xpg.base.errors import UserError, nearest

DTYPES = ("float32", "bfloat16", "float16")
REMAT_POLICIES = ("none", "dots", "full")
LAYER_NORMS = ("pre", "post", "both")
_SIZES = (
    "vocab_size", "emb_dim", "num_heads", "head_dim", "num_encoder_layers", "num_decoder_layers", "mlp_dim",
)  # fmt: skip
MOST_LAYERS = 1_000  # in a stack, because every layer is described before anything is computed
ACTIVATIONS = ("gelu", "relu", "silu", "swish", "tanh", "linear")


@dataclass(frozen=True)
class T5Config:
    """A T5 1.1 (the defaults), a ByT5 or a first-generation T5.

    vocab_size: V, rows of the embedding; ids must be below it.
    emb_dim: D. num_heads: H. head_dim: K; H * K need not equal D. mlp_dim: F.
    mlp_activations: ("gelu", "linear") is the gated GELU of T5 1.1, ("relu",) the MLP of the first T5.
    dropout_rate: used only where a dropout key is given.
    logits_via_embedding: True ties the output matrix to the embedding (the first T5), False makes it a separate one.
    dtype: of the activations; parameters are always float32.
    float32_attention_logits: multiply queries and keys in float32 even where dtype has 16 bits.
    attention_chunk_size: the number of queries that attention computes at a time. Its memory then grows with the
        length, not with its square; results are equal but for rounding. For 4,096 tokens and more, or where memory is
        short. None: all queries at once.
    relpos_bias_in_every_layer: every layer has its own table of relative positions (umT5, T5X's scalable_t5); otherwise
        the layers of a stack share one table.
    scan_layers, remat_policy: see `layer_stack`; results are equal but for rounding.

    Settings of later encoder-decoders, which T5 does not have (`beyond_t5` lists those that a model uses):
    num_kv_heads: G, the heads of keys and values; H / G heads of queries read each (Ainslie et al. 2023). None: H.
    qk_norm: RMS norms of each head's queries and keys; queries are then divided by sqrt(K).
    layer_norms: "pre" normalises the input of an attention or an MLP, "post" its output before it is added to the
        residual, "both" does both (Gemma 2).
    attention_logit_softcap, logit_softcap: c; each product x of query and key, or each logit x of the model, becomes
        c tanh(x / c). None: no cap.
    relative_attention_bias: False leaves out T5's table of relative positions.
    rotary_base: of rotary positions (Su et al. 2021) in self attention; number k of a head's first half turns with
        number k of the second. None: no rotary positions. rotary_local_base: the base in layers with a window, if it
        differs. rotary_scale: positions are divided by it in layers without a window. For these two settings,
        sliding_window_pattern alone decides which layers have a window, even where a stack has none.
    rotary_cross_attention: the decoder's positions continue where the inputs of its example end, and cross attention
        is rotary, too, with these positions (RedLLM, arXiv 2510.26622).
    encoder_window: the numbers of positions behind and ahead that a position of the encoder sees, in layers with a
        window; decoder_window: the number behind. None: all. sliding_window_pattern: n; every n-th layer has no window.
        Rows longer than what a block of queries sees are computed by blocks; time and memory then grow linearly with
        the length.
    encoder_global_block: n; positions of the encoder see, besides their windows, the sum of each block of n positions
        (LongT5's transient global attention, Guo et al. 2022). None: no such sums.
    merged_attention: a layer of the decoder has one attention, over its own positions and the source (T5Gemma 2).
    share_embeddings: False gives the decoder its own embedding; a tied output matrix is tied to that one.
    encoder_emb_dim, encoder_num_heads, encoder_num_kv_heads, encoder_mlp_dim: sizes of an encoder that differs in width
        from the decoder (T5Gemma 9B-2B); the decoder makes keys and values of its outputs. None: as in the decoder.
    ngram_lengths, ngram_buckets: to the embedding of an id are added those of the n-grams, of these lengths, that end
        with it. Their hashes choose rows of a table of `ngram_buckets` rows (BLT, arXiv 2412.09871; see `ngrams`).
        None: none.
    decoder_start_token_id: the id that decoders begin with, in place of the 0 in batches.
    prompt_tokens: number of embeddings, parameters of their own, before the model's input (Lester et al. 2021).

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
    num_kv_heads: int | None = None
    qk_norm: bool = False
    layer_norms: str = "pre"
    attention_logit_softcap: float | None = None
    logit_softcap: float | None = None
    relative_attention_bias: bool = True
    rotary_base: float | None = None
    rotary_local_base: float | None = None
    rotary_scale: float = 1.0
    rotary_cross_attention: bool = False
    encoder_window: tuple[int, int] | None = None
    decoder_window: int | None = None
    sliding_window_pattern: int = 2
    encoder_global_block: int | None = None
    merged_attention: bool = False
    share_embeddings: bool = True
    encoder_emb_dim: int | None = None
    encoder_num_heads: int | None = None
    encoder_num_kv_heads: int | None = None
    encoder_mlp_dim: int | None = None
    ngram_lengths: tuple[int, ...] | None = None
    ngram_buckets: int = 16384
    decoder_start_token_id: int = 0
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        # gin hands lists over; a frozen dataclass has to be hashable
        for name in ("mlp_activations", "encoder_window", "ngram_lengths"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        if isinstance(self.mlp_activations, str):  # one name, which gin takes for several
            object.__setattr__(self, "mlp_activations", (self.mlp_activations,))
        chunk, buckets = self.attention_chunk_size, self.relative_attention_num_buckets

        def check(is_good: bool, name: str, expected: str) -> None:
            if not is_good:
                raise UserError(f"T5Config.{name} is {getattr(self, name)!r}; it must be {expected}.")

        for name in _SIZES:
            check(is_count(getattr(self, name)), name, "a whole number of at least 1")
            check("layers" not in name or getattr(self, name) <= MOST_LAYERS, name, f"at most {MOST_LAYERS:,}")
        check(chunk is None or is_count(chunk), "attention_chunk_size", "None or a whole number of at least 1")
        check(0.0 <= self.dropout_rate < 1.0, "dropout_rate", "at least 0 and below 1")
        check(
            is_count(buckets, 4) and buckets % 4 == 0, "relative_attention_num_buckets", "a multiple of 4 (T5 has 32)"
        )
        # half of the buckets of one direction stand for one distance each; the rest divides what lies beyond
        reaches_on = is_count(self.relative_attention_max_distance, buckets // 2 + 1)
        check(
            reaches_on, "relative_attention_max_distance", f"a whole number above {buckets // 2} with {buckets} buckets"
        )
        check(bool(self.mlp_activations), "mlp_activations", 'some names; T5 1.1 has ("gelu", "linear")')
        choices: list[tuple[str, str, tuple[str, ...]]] = [("dtype", self.dtype, DTYPES)]
        choices += [("remat_policy", self.remat_policy, REMAT_POLICIES)]
        choices += [("layer_norms", self.layer_norms, LAYER_NORMS)]
        choices += [("mlp_activations", activation, ACTIVATIONS) for activation in self.mlp_activations]
        for name, value, known in choices:
            if value not in known:
                near = nearest("dots" if value == "minimal" else str(value), known)  # T5X's name
                raise UserError(f"T5Config.{name} is {getattr(self, name)!r}.{near}")
        self._check_attention_beyond_t5(check)
        self._check_other_parts(check)

    def _check_attention_beyond_t5(self, check: Callable[[bool, str, str], None]) -> None:
        """Check the settings of heads, positions and windows that T5 does not have."""
        heads, window = self.num_kv_heads, self.encoder_window
        check(
            heads is None or (is_count(heads) and self.num_heads % heads == 0),
            "num_kv_heads",
            "None or a divisor of num_heads",
        )
        for name in ("attention_logit_softcap", "logit_softcap", "rotary_base", "rotary_local_base", "rotary_scale"):
            value = getattr(self, name)
            check(value is None or (isinstance(value, int | float) and value > 0), name, "None or a number above 0")
        check(self.rotary_scale is not None, "rotary_scale", "a number above 0")
        is_rotary = self.rotary_base is not None
        check(not is_rotary or self.head_dim % 2 == 0, "head_dim", "even with rotary positions")
        for name, other in _READ_WITH.items():
            is_read = getattr(self, other) is not None
            check(is_read or getattr(self, name) == _DEFAULTS[name], name, f"as it is without {other}")
        is_pair = isinstance(window, tuple) and len(window) == 2 and all(is_count(one, 0) for one in window)
        check(window is None or is_pair, "encoder_window", "None or two whole numbers: positions behind and ahead")
        check(
            self.decoder_window is None or is_count(self.decoder_window, 0), "decoder_window", "None or a whole number"
        )
        check(is_count(self.sliding_window_pattern), "sliding_window_pattern", "a whole number of at least 1")
        size = self.encoder_global_block
        check(size is None or is_count(size), "encoder_global_block", "None or a whole number of at least 1")
        if size is not None:
            check(window is not None, "encoder_window", "two whole numbers with encoder_global_block")
            all_local = self.sliding_window_pattern > self.num_encoder_layers
            check(all_local, "sliding_window_pattern", "above num_encoder_layers with encoder_global_block")
            for name in ("rotary_base", "relpos_bias_in_every_layer"):
                check(getattr(self, name) == _DEFAULTS[name], name, f"{_DEFAULTS[name]} with encoder_global_block")

    def _check_other_parts(self, check: Callable[[bool, str, str], None]) -> None:
        """Check start id, prompt, n-grams, sizes of the encoder, and which settings go together."""
        is_start = is_count(self.decoder_start_token_id, 0) and self.decoder_start_token_id < self.vocab_size
        check(is_start, "decoder_start_token_id", "an id of the vocabulary")
        check(is_count(self.prompt_tokens, 0), "prompt_tokens", "a whole number")
        lengths = self.ngram_lengths
        are_counts = isinstance(lengths, tuple) and all(is_count(n) and n <= 16 for n in lengths)
        check(lengths is None or (are_counts and lengths != ()), "ngram_lengths", "None or whole numbers from 1 to 16")
        check(is_count(self.ngram_buckets), "ngram_buckets", "a whole number of at least 1")
        for name in ENCODER_SIZES:
            value = getattr(self, name)
            check(value is None or is_count(value), name, "None or a whole number of at least 1")
        heads = self.encoder_num_heads or self.num_heads
        groups = self.encoder_num_kv_heads or self.num_kv_heads or heads
        check(heads % groups == 0, "encoder_num_kv_heads", f"a divisor of the encoder's {heads} heads")
        if self.encoder.emb_dim != self.emb_dim:
            check(not self.share_embeddings, "share_embeddings", "False with an encoder_emb_dim of its own")
            check(not self.merged_attention, "merged_attention", "False with an encoder_emb_dim of its own")
        has_tables = self.relative_attention_bias or not self.relpos_bias_in_every_layer
        check(has_tables, "relpos_bias_in_every_layer", "False without relative_attention_bias")
        check(
            not self.merged_attention or self.attention_chunk_size is None,
            "attention_chunk_size",
            "None with merged_attention",
        )

    @property
    def encoder(self) -> "T5Config":
        """The config with the sizes of the encoder in place of the decoder's."""
        sizes = {name: value for name in ENCODER_SIZES if (value := getattr(self, name)) is not None}
        changes: dict[str, Any] = {name.removeprefix("encoder_"): value for name, value in sizes.items()}
        changes |= dict.fromkeys(sizes)
        return replace(self, **changes) if changes else self

    @property
    def ngram_context(self) -> int:
        """The number of ids before a position in its longest n-gram; 0 without n-grams."""
        return max(self.ngram_lengths or (1,)) - 1

    @property
    def beyond_t5(self) -> list[str]:
        """The names of the settings that are not a T5's."""
        return [name for name, default in BEYOND_T5.items() if getattr(self, name) != default]

    def require_t5(self, kind: str, others: Collection[str] = ()) -> None:
        """Raise UserError, naming `kind`, if the model uses a setting beyond T5's that is not in `others`."""
        if names := [name for name in self.beyond_t5 if name not in others]:
            raise UserError(f"{kind} {'has' if kind[-1] != 's' else 'have'} no {' and no '.join(names)} (T5Config).")


# sizes of the encoder that can be other than the decoder's
ENCODER_SIZES = ("encoder_emb_dim", "encoder_num_heads", "encoder_num_kv_heads", "encoder_mlp_dim")
_DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(T5Config)}
_READ_WITH = {
    **dict.fromkeys(("rotary_local_base", "rotary_scale", "rotary_cross_attention"), "rotary_base"),
    "ngram_buckets": "ngram_lengths",
}  # settings that are read only if the other one is not None
# settings of models that have an encoder and a decoder, and of each of the two
TWO_STACK_SETTINGS = {
    "rotary_cross_attention", "merged_attention", "share_embeddings", *ENCODER_SIZES,
}  # fmt: skip
ENCODER_SETTINGS = {"encoder_window", "encoder_global_block"}
DECODER_SETTINGS = {"decoder_window", "decoder_start_token_id"}
# the settings that T5 does not have, and their values in a T5
BEYOND_T5: Mapping[str, Any] = dict(list(_DEFAULTS.items())[list(_DEFAULTS).index("num_kv_heads") :])


def is_count(value: object, least: int = 1) -> bool:
    """True if a setting is a whole number of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def padded_vocab_size(vocab_size: int, multiple: int = 1) -> int:
    """`vocab_size` rounded up to a multiple, so that the embedding divides well (T5X: 128); no id uses the new rows."""
    for name, value in (("VOCAB_SIZE", vocab_size), ("VOCAB_SIZE_MULTIPLE", multiple)):
        if not is_count(value):
            raise UserError(f"{name} is {value!r}: it must be a whole number of at least 1.")
    return -(-vocab_size // multiple) * multiple
