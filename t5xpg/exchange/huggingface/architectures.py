"""Our architectures in transformers: the class of each, its config.json and its tensors (docs/interop.md).

transformers has no decoder alone with T5's relative positions. We export it in an encoder-decoder: cross attention
whose matrices are zero adds zero to every position, so that the decoder computes the same as alone.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from t5xpg.base.errors import UserError
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange.huggingface import t5gemma
from t5xpg.exchange.huggingface.config import FAMILIES, config_to_transformers
from t5xpg.exchange.huggingface.params import params_to_transformers, tensors_of, to_tensors
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.encoder_only import EncoderOnlyModel
from t5xpg.models.model import Model, Params
from t5xpg.models.shared_encoder_decoder import SharedEncoderDecoderModel

ENCODER_DECODERS = (SharedEncoderDecoderModel, EncoderDecoderModel)
SEQ2SEQ = "AutoModelForSeq2SeqLM"
CAUSAL = "AutoModelForCausalLM"
TOKENS = "AutoModelForTokenClassification"


@dataclass(frozen=True)
class Exported:
    """A model in the form of transformers. auto_class: the class that loads it. notes: sentences for its users.

    prompted: True if it continues `decoder_input_ids`, and reads nothing from its encoder.
    """

    auto_class: str
    config: dict[str, Any]
    tensors: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()
    prompted: bool = False


def in_transformers(model: Model, params: Params, vocabulary: Vocabulary, *, prefix_lm: bool) -> Exported:
    """The model with these parameters in the form of transformers.

    prefix_lm: for a decoder alone, whether its batches have inputs and targets. Raises UserError, with the reason,
    where transformers has no architecture that computes the same.
    """
    if isinstance(model, DecoderOnlyModel) and prefix_lm and model.inputs_bidirectional_attention:
        raise UserError(
            "transformers has no architecture that is equal to this one: in a decoder whose inputs see all of "
            "themselves (PrefixLMFeatureConverter) positions look ahead, and its decoders with T5's relative positions "
            "only look back. A causal one (LMFeatureConverter) can be exported."
        )
    kind = known_kind(model, _EXPORTS, "transformers has no architecture")
    return _EXPORTS[kind](model, jax.tree.map(np.asarray, params), vocabulary)


def known_kind(model: Model, known: Collection[type[Model]], refusal: str) -> type[Model]:
    """The class in `known` that a model is of. Raises UserError, which begins with `refusal`, where there is none.

    gin configures a class through a subclass of the same name; a subclass of another name computes something else.
    """
    name = type(model).__name__
    for kind in known:
        if isinstance(model, kind) and name == kind.__name__:
            return kind
    names = ", ".join(kind.__name__ for kind in known)
    raise UserError(f"{refusal} that is known to be equal to {name}: {names} can be exported.")


def _encoder_decoder(model: Model, params: Params, vocabulary: Vocabulary) -> Exported:
    config = model.config
    if t5gemma.fits(config):
        return Exported(SEQ2SEQ, *t5gemma.to_transformers(config, params, vocabulary.eos_id))
    return Exported(SEQ2SEQ, config_to_transformers(config, vocabulary.eos_id), params_to_transformers(params, config))


def unshared(model: Model, params: Params) -> Params:
    """The parameters of an EncoderDecoderModel that computes the same as the model: a shared stack is in them twice."""
    if not isinstance(model, SharedEncoderDecoderModel):
        return params
    decoder = params["decoder"]
    encoder = {"encoder_norm": decoder["decoder_norm"]}
    if "relpos_bias" in decoder:
        encoder["relpos_bias"] = decoder["relpos_bias"]
    for index in range(model.config.num_decoder_layers):
        layer = decoder[f"layers_{index}"]
        own = {name: part for name, part in layer.items() if "encoder_decoder" not in name and "cross" not in name}
        encoder[f"layers_{index}"] = {name.replace("self_attention", "attention"): own[name] for name in own}
    return {**params, "encoder": encoder}


def _shared(model: Model, params: Params, vocabulary: Vocabulary) -> Exported:
    exported = _encoder_decoder(model, unshared(model, params), vocabulary)
    note = "Encoder and decoder were trained as one set of parameters, which stands here twice."
    return dataclasses.replace(exported, notes=(note,))


def _decoder_only(model: Model, params: Params, vocabulary: Vocabulary) -> Exported:
    model.config.require_t5("transformers' T5")
    both = EncoderDecoderModel(dataclasses.replace(model.config, num_encoder_layers=1))
    zeros: Params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), both.abstract_params())
    decoder = {
        name: {**zeros["decoder"][name], **part} if name.startswith("layers_") else part
        for name, part in params["decoder"].items()
    }
    exported = _encoder_decoder(both, {**zeros, **params, "decoder": decoder}, vocabulary)
    note = (
        "It is a decoder alone: the cross attention and the one layer of the encoder are zeros, because transformers "
        "asks for them. Give the text to continue as `decoder_input_ids`, behind a 0, and anything as `input_ids`."
    )
    return dataclasses.replace(exported, notes=(note,), prompted=True)


def _encoder_only(model: Model, params: Params, vocabulary: Vocabulary) -> Exported:
    config = model.config
    config.require_t5("transformers' T5ForTokenClassification")
    encoder_decoder = config_to_transformers(config, vocabulary.eos_id)
    labels = token_names(config.vocab_size, vocabulary)
    settings = {
        **encoder_decoder,
        "architectures": [f"{FAMILIES[encoder_decoder['model_type']]}ForTokenClassification"],
        "is_encoder_decoder": False,
        "id2label": {str(token): label for token, label in enumerate(labels)},
        "label2id": {label: token for token, label in enumerate(labels)},
    }
    embedding = np.asarray(params["token_embedder"]["embedding"], np.float32)
    if config.logits_via_embedding:
        head = embedding / np.float32(math.sqrt(config.emb_dim))
    else:
        head = np.ascontiguousarray(np.asarray(params["logits_dense"]["kernel"], np.float32).T)
    parts = {name: params[name] for name in ("token_embedder", "encoder")}
    encoder_tensors = (tensor for tensor in tensors_of(config, 1.0) if not tensor.ours.startswith("decoder/"))
    tensors = {f"transformer.{name}": array for name, array in to_tensors(parts, encoder_tensors).items()}
    tensors |= {"classifier.weight": head, "classifier.bias": np.zeros(config.vocab_size, np.float32)}
    note = "It is an encoder with an output matrix: the label of a position is the token that belongs there."
    return Exported(TOKENS, settings, tensors, (note,))


def token_names(size: int, vocabulary: Vocabulary) -> list[str]:
    """The tokens of all ids, all different: the id is appended where it has no token or that of an earlier id."""
    labels: dict[str, None] = {}
    for token in range(size):
        piece = vocabulary.piece(token) if token < vocabulary.size else ""
        labels[piece if piece and piece not in labels else f"{piece}#{token}"] = None
    return list(labels)


_EXPORTS: Mapping[type[Model], Callable[[Model, Params, Vocabulary], Exported]] = {
    SharedEncoderDecoderModel: _shared,
    EncoderDecoderModel: _encoder_decoder,
    DecoderOnlyModel: _decoder_only,
    EncoderOnlyModel: _encoder_only,
}
