"""`T5Config`: the sizes and choices of a T5, under T5X's names."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.models.parts import (
    Embeddings,
    EncoderSizes,
    Heads,
    Ngrams,
    Windows,
    as_tuples,
    check,
    check_counts,
    check_positive,
    is_count,
)
from t5xpg.models.positions import Buckets, Rotary

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
    scan_layers, remat_policy: see `layer_stack`; results are equal but for rounding.
    positions: see `positions`. heads, embeddings, windows, encoder_sizes: see `parts`. A T5 has their defaults.
    layer_norms: "pre" normalises the input of an attention or an MLP, "post" its output before it is added to the
        residual, "both" does both (Gemma 2).
    logit_softcap: c; each logit x of the model becomes c tanh(x / c). None: no cap.
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
    attention_chunk_size: int | None = None
    scan_layers: bool = False
    remat_policy: str = "none"
    positions: Buckets | Rotary | None = field(default_factory=Buckets)
    heads: Heads = field(default_factory=Heads)
    embeddings: Embeddings = field(default_factory=Embeddings)
    windows: Windows = field(default_factory=Windows)
    encoder_sizes: EncoderSizes = field(default_factory=EncoderSizes)
    layer_norms: str = "pre"
    logit_softcap: float | None = None
    decoder_start_token_id: int = 0
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        as_tuples(self, "mlp_activations")
        if isinstance(self.mlp_activations, str):  # one name, which gin takes for several
            object.__setattr__(self, "mlp_activations", (self.mlp_activations,))
        for name in _SIZES:
            check(self, is_count(getattr(self, name)), name, "a whole number of at least 1")
            check(self, "layers" not in name or getattr(self, name) <= MOST_LAYERS, name, f"at most {MOST_LAYERS:,}")
        check_counts(self, "attention_chunk_size")
        check_positive(self, "logit_softcap")
        check(self, 0.0 <= self.dropout_rate < 1.0, "dropout_rate", "at least 0 and below 1")
        check(self, bool(self.mlp_activations), "mlp_activations", 'some names; T5 1.1 has ("gelu", "linear")')
        choices: list[tuple[str, str, tuple[str, ...]]] = [("dtype", self.dtype, DTYPES)]
        choices += [("remat_policy", self.remat_policy, REMAT_POLICIES)]
        choices += [("layer_norms", self.layer_norms, LAYER_NORMS)]
        choices += [("mlp_activations", activation, ACTIVATIONS) for activation in self.mlp_activations]
        for name, value, known in choices:
            if value not in known:
                near = nearest("dots" if value == "minimal" else str(value), known)  # T5X's name
                raise UserError(f"T5Config.{name} is {getattr(self, name)!r}.{near}")
        is_start = is_count(self.decoder_start_token_id, 0) and self.decoder_start_token_id < self.vocab_size
        check(self, is_start, "decoder_start_token_id", "an id of the vocabulary")
        check(self, is_count(self.prompt_tokens, 0), "prompt_tokens", "a whole number")
        self._check_together()

    def _check_together(self) -> None:
        """Check which settings go together."""
        heads, windows, encoder = self.heads, self.windows, self.encoder_sizes
        for part, number in ((heads, self.num_heads), (encoder, encoder.num_heads or self.num_heads)):
            groups = part.num_kv_heads or heads.num_kv_heads or number
            check(part, number % groups == 0, "num_kv_heads", f"a divisor of num_heads, {number}")
        if encoder.emb_dim not in (None, self.emb_dim):
            check(self.embeddings, not self.embeddings.shared, "shared", "False with an EncoderSizes.emb_dim")
            check(heads, not heads.merged, "merged", "False with an EncoderSizes.emb_dim")
        has_no_chunks = self.attention_chunk_size is None
        check(self, has_no_chunks or not heads.merged, "attention_chunk_size", "None with Heads.merged")
        check(self, self.rotary is None or self.head_dim % 2 == 0, "head_dim", "even with rotary positions")
        if windows.global_block is not None:
            all_local = windows.pattern > self.num_encoder_layers
            check(windows, all_local, "pattern", "above num_encoder_layers with global_block")
            are_shared = self.rotary is None and not self.has_table_in_every_layer
            check(self, are_shared, "positions", "None, or Buckets not in every layer, with Windows.global_block")

    @property
    def buckets(self) -> Buckets | None:
        """The positions, if they are T5's."""
        return self.positions if isinstance(self.positions, Buckets) else None

    @property
    def rotary(self) -> Rotary | None:
        """The positions, if they are rotary."""
        return self.positions if isinstance(self.positions, Rotary) else None

    @property
    def has_table_in_every_layer(self) -> bool:
        """True if every layer has a table of relative positions."""
        return self.buckets is not None and self.buckets.in_every_layer

    @property
    def has_rotary_cross_attention(self) -> bool:
        """True if cross attention is rotary, too."""
        return self.rotary is not None and self.rotary.cross_attention

    @property
    def ngrams(self) -> Ngrams | None:
        """The embeddings, if n-grams have some, too."""
        return self.embeddings if isinstance(self.embeddings, Ngrams) else None

    @property
    def encoder(self) -> "T5Config":
        """The config with the sizes of the encoder in place of the decoder's."""
        sizes = {name: value for name, value in vars(self.encoder_sizes).items() if value is not None}
        if not sizes:
            return self
        heads = replace(self.heads, num_kv_heads=sizes.pop("num_kv_heads", self.heads.num_kv_heads))
        return replace(self, **sizes, heads=heads, encoder_sizes=EncoderSizes())

    @property
    def ngram_context(self) -> int:
        """The number of ids before a position in its longest n-gram; 0 without n-grams."""
        return 0 if self.ngrams is None else max(self.ngrams.lengths) - 1

    def recorded(self) -> dict[str, Any]:
        """The settings as runs record them, parts and all in one dict: their names are from before there were parts."""
        parts = [getattr(self, name) for name in PARTS]
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in PARTS}
        for name, (kind, attribute, default) in _OF_PARTS.items():
            part = next((part for part in parts if isinstance(part, kind)), None)
            found[name] = default if part is None else getattr(part, attribute)
        return {**found, "relative_attention_bias": self.buckets is not None}

    @property
    def beyond_t5(self) -> list[str]:
        """The recorded names of the settings that are not a T5's."""
        values = self.recorded()
        return [name for name, default in BEYOND_T5.items() if values[name] != default]

    def require_t5(self, kind: str, others: Collection[str] = ()) -> None:
        """Raise UserError, naming `kind`, for a setting beyond T5's whose recorded name is not in `others`."""
        if names := [setting_name(name) for name in self.beyond_t5 if name not in others]:
            raise UserError(f"{kind} {'has' if kind[-1] != 's' else 'have'} no {' and no '.join(names)}.")


PARTS = ("positions", "heads", "embeddings", "windows", "encoder_sizes")
# the recorded name of each setting of a part: the part, the setting, and its value in a T5
_OF_PARTS: Mapping[str, tuple[type, str, Any]] = {
    "relative_attention_num_buckets": (Buckets, "num_buckets", 32),
    "relative_attention_max_distance": (Buckets, "max_distance", 128),
    "relpos_bias_in_every_layer": (Buckets, "in_every_layer", False),
    "rotary_base": (Rotary, "base", None),
    "rotary_local_base": (Rotary, "local_base", None),
    "rotary_scale": (Rotary, "scale", 1.0),
    "rotary_cross_attention": (Rotary, "cross_attention", False),
    "num_kv_heads": (Heads, "num_kv_heads", None),
    "qk_norm": (Heads, "qk_norm", False),
    "attention_logit_softcap": (Heads, "logit_softcap", None),
    "merged_attention": (Heads, "merged", False),
    "share_embeddings": (Embeddings, "shared", True),
    "ngram_lengths": (Ngrams, "lengths", None),
    "ngram_buckets": (Ngrams, "buckets", 16384),
    "encoder_window": (Windows, "encoder", None),
    "decoder_window": (Windows, "decoder", None),
    "sliding_window_pattern": (Windows, "pattern", 2),
    "encoder_global_block": (Windows, "global_block", None),
    "encoder_emb_dim": (EncoderSizes, "emb_dim", None),
    "encoder_num_heads": (EncoderSizes, "num_heads", None),
    "encoder_num_kv_heads": (EncoderSizes, "num_kv_heads", None),
    "encoder_mlp_dim": (EncoderSizes, "mlp_dim", None),
}
# recorded names of the sizes of the encoder that can be other than the decoder's
ENCODER_SIZES = tuple(name for name, (kind, *_) in _OF_PARTS.items() if kind is EncoderSizes)
# of settings of models that have an encoder and a decoder, and of each of the two
TWO_STACK_SETTINGS = {"rotary_cross_attention", "merged_attention", "share_embeddings", *ENCODER_SIZES}
ENCODER_SETTINGS = {"encoder_window", "encoder_global_block"}
DECODER_SETTINGS = {"decoder_window", "decoder_start_token_id"}
# of the settings that T5 does not have, with their values in a T5
_FLAT = ("relative_attention_bias", "layer_norms", "logit_softcap", "decoder_start_token_id", "prompt_tokens")
BEYOND_T5: Mapping[str, Any] = {
    name: value
    for name, value in T5Config(1).recorded().items()
    if name in _FLAT or (name in _OF_PARTS and _OF_PARTS[name][0] is not Buckets)
}


def setting_name(recorded: str) -> str:
    """What a setting is called: "Heads.qk_norm" for the recorded name "qk_norm"."""
    if recorded == "relative_attention_bias":
        return "T5Config.positions"
    kind, name, _ = _OF_PARTS.get(recorded, (T5Config, recorded, None))
    return f"{kind.__name__}.{name}"


def padded_vocab_size(vocab_size: int, multiple: int = 1) -> int:
    """`vocab_size` rounded up to a multiple, so that the embedding divides well (T5X: 128); no id uses the new rows."""
    for name, value in (("VOCAB_SIZE", vocab_size), ("VOCAB_SIZE_MULTIPLE", multiple)):
        if not is_count(value):
            raise UserError(f"{name} is {value!r}: it must be a whole number of at least 1.")
    return -(-vocab_size // multiple) * multiple
