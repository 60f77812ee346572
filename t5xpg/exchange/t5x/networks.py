"""Our architectures in T5X: the network of each, and the parameters in its layout (docs/interop.md)."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t5xpg.base.errors import UserError
from t5xpg.data.batch import PREFIX_LM
from t5xpg.data.vocab.tokenizers import SENTENCEPIECE
from t5xpg.data.vocab.vocabulary import BYT5_GOOGLE, BYTES, OWN, SEQIO, Vocabulary
from t5xpg.exchange.huggingface.architectures import ENCODER_DECODERS, known_kind, unshared
from t5xpg.exchange.t5x.params import SCAN_AXIS, STACKS
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.model import Model, Params
from t5xpg.optim.optimizers import Adafactor

_BUCKETS, _DISTANCE = 32, 128  # of T5X's networks
# Settings of our Adafactor that T5X's has too, by its names for them, besides the decay rate.
_ADAFACTOR = {
    **{name: name for name in ("multiply_by_parameter_scale", "clipping_threshold", "epsilon1", "epsilon2")},
    "min_dim_size_to_factor": "min_dim_size_to_factor",
    "weight_decay": "weight_decay_rate",
    "weight_decay_lr_exponent": "weight_decay_rate_lr_exponent",
}


@dataclass(frozen=True)
class Network:
    """A network of T5X. module: its Python module; transformer, config: its classes; model: the class in t5x.models."""

    module: str
    transformer: str
    config: str
    model: str


MINIMAL = Network("t5x.examples.t5", "Transformer", "T5Config", "EncoderDecoderModel")
SCALABLE = dataclasses.replace(MINIMAL, module="t5x.examples.scalable_t5")
DECODER_ONLY = Network("t5x.examples.decoder_only", "DecoderWrapper", "TransformerConfig", "DecoderOnlyModel")


def network_of(model: Model) -> Network:
    """T5X's network for such a model. Raises UserError where T5X has none that computes the same."""
    config = model.config
    kind = known_kind(model, (*ENCODER_DECODERS, DecoderOnlyModel), "T5X has no network")
    config.require_t5("T5X's networks")
    if (ours := config.buckets) is not None and (ours.num_buckets, ours.max_distance) != (_BUCKETS, _DISTANCE):
        raise UserError(
            f"T5X's networks have {_BUCKETS} buckets of relative positions up to a distance of {_DISTANCE}; this model "
            f"has {ours.num_buckets} up to {ours.max_distance}."
        )
    if not config.has_table_in_every_layer:
        return DECODER_ONLY if kind is DecoderOnlyModel else MINIMAL
    if kind is DecoderOnlyModel:
        raise UserError("T5X has no decoder alone with tables of relative positions in every layer.")
    return SCALABLE


def in_t5x(model: Model, params: Params) -> Params:
    """The parameters of a model, or any tree of their structure, in the layout of `network_of(model)`."""
    network, config, params = network_of(model), model.config, jax.tree.map(np.asarray, params)
    if network == DECODER_ONLY:
        return {"decoder": {**params["decoder"], "token_embedder": params["token_embedder"]}}
    params = unshared(model, params)
    if network == MINIMAL:
        return params
    scalable: Params = {"token_embedder": params["token_embedder"]}
    for stack, count in zip(STACKS, (config.num_encoder_layers, config.num_decoder_layers), strict=True):
        layers = [flatten_dict(params[stack][f"layers_{layer}"], sep="/") for layer in range(count)]
        stacked = {
            name: np.stack([_with_heads(name, layer[name], config) for layer in layers], axis=SCAN_AXIS)
            for name in layers[0]
        }
        outside = {name: part for name, part in params[stack].items() if not name.startswith("layers_")}
        scalable[stack] = {**outside, stack: unflatten_dict(stacked, sep="/")}
    return scalable


def _with_heads(name: str, array: np.ndarray, config: T5Config) -> np.ndarray:
    if "attention/" not in name:
        return array
    heads = (config.num_heads, config.head_dim)
    return array.reshape(*heads, -1) if name.endswith("out/kernel") else array.reshape(-1, *heads)


_WIDTHS = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "mlp_activations", "logits_via_embedding")


def network_gin(model: Model) -> list[str]:
    """Lines that import T5X's network and define NETWORK, which uses DROPOUT_RATE. Raises UserError without one."""
    network, config = network_of(model), model.config
    values = {name: getattr(config, name) for name in _WIDTHS} | {"dtype": config.dtype}
    if network == DECODER_ONLY:
        values["num_layers"] = config.num_decoder_layers
    else:
        values |= {name: getattr(config, name) for name in ("num_encoder_layers", "num_decoder_layers")}
    if network == SCALABLE:
        values["scan_layers"] = True
    elif network != DECODER_ONLY and config.float32_attention_logits:
        values["float32_attention_logits"] = True
    return [
        f"from {network.module} import network",
        "",
        f"NETWORK = @network.{network.transformer}()",
        f"network.{network.transformer}.config = @network.{network.config}()",
        f"network.{network.config}:",
        *(f"  {name} = {value!r}" for name, value in sorted(values.items())),
        "  dropout_rate = %DROPOUT_RATE",
    ]


def vocabulary_gin(vocabulary: Vocabulary, folder: Path) -> list[str]:
    """Lines that define VOCABULARY by SeqIO's classes. folder: where the copy of its model lies."""
    if vocabulary.kind == BYTES and vocabulary.sentinels in (SEQIO, BYT5_GOOGLE) and not vocabulary.named_tokens:
        return ["VOCABULARY = @seqio.ByteVocabulary()", f"seqio.ByteVocabulary.extra_ids = {vocabulary.extra_ids}"]
    if vocabulary.kind == SENTENCEPIECE and vocabulary.sentinels in (SEQIO, OWN) and not vocabulary.named_tokens:
        return [
            "VOCABULARY = @seqio.SentencePieceVocabulary()",
            "seqio.SentencePieceVocabulary:",
            f"  sentencepiece_model_file = {str(folder / Path(str(vocabulary.model_file)).name)!r}",
            f"  extra_ids = {vocabulary.extra_ids}",
        ]
    return [
        "# SeqIO has no class for this vocabulary: ids alone.",
        "VOCABULARY = @seqio.PassThroughVocabulary()",
        f"seqio.PassThroughVocabulary.size = {vocabulary.size}",
        f"seqio.PassThroughVocabulary.eos_id = {vocabulary.eos_id}",
    ]


def model_gin(
    model: Model, vocabulary: Vocabulary, folder: Path, comment: str, converter: str, optimizer: Any = None
) -> str:
    """A gin file that T5X's runs include: MODEL and Adafactor, as in T5X's files of sizes. comment: its first line.
    converter: of the batches, by which a decoder alone is causal or a prefix LM. optimizer: the Adafactor whose
    accumulators T5X continues with; None for T5X's usual one."""
    network, newline = network_of(model), "\n"
    optimizer = optimizer or Adafactor  # the class has the usual values
    changed = [name for name in _ADAFACTOR if getattr(optimizer, name) != getattr(Adafactor, name)]
    ids = ["vocabulary"] if network == DECODER_ONLY else ["input_vocabulary", "output_vocabulary"]
    settings = [f"{name} = %VOCABULARY" for name in ids]
    if isinstance(model, DecoderOnlyModel) and model.inputs_bidirectional_attention and converter == PREFIX_LM:
        settings.append("inputs_bidirectional_attention = True")
    return f"""\
# {comment}
from __gin__ import dynamic_registration

import seqio
from t5x import adafactor
from t5x import models
{newline.join(network_gin(model))}

DROPOUT_RATE = 0.0
Z_LOSS = 0.0001
LABEL_SMOOTHING = 0.0
LOSS_NORMALIZING_FACTOR = None

{newline.join(vocabulary_gin(vocabulary, folder))}

OPTIMIZER = @adafactor.Adafactor()
adafactor.Adafactor:
  decay_rate = {optimizer.decay_rate}
  step_offset = 0{"".join(f"{newline}  {_ADAFACTOR[name]} = {getattr(optimizer, name)}" for name in changed)}
  logical_factor_rules = @adafactor.standard_logical_factor_rules()

MODEL = @models.{network.model}()
models.{network.model}:
  module = %NETWORK
{newline.join(f"  {setting}" for setting in settings)}
  optimizer_def = %OPTIMIZER
  z_loss = %Z_LOSS
  label_smoothing = %LABEL_SMOOTHING
  loss_normalizing_factor = %LOSS_NORMALIZING_FACTOR
"""


RECORD = "t5xpg.json"  # beside the files of T5X and of engines, which do not say all that it says


def record_of(config: T5Config, vocabulary: Vocabulary) -> dict[str, Any]:
    """The sizes of a model and the vocabulary of its ids, as JSON."""
    return {"model": config.recorded(), "vocabulary": vocabulary.to_json()}
