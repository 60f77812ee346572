"""T5X's gin for a model and its vocabulary, as text."""

from __future__ import annotations

from pathlib import Path

from t5xpg.interop.t5x_networks import DECODER_ONLY, SCALABLE, Network, network_of
from t5xpg.models.config import T5Config
from t5xpg.models.model import Model
from t5xpg.token_models import SENTENCEPIECE
from t5xpg.vocabularies import BYT5_GOOGLE, BYTES, OWN, SEQIO, Vocabulary

_WIDTHS = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "mlp_activations", "logits_via_embedding")


def network_gin(model: Model) -> list[str]:
    """Lines that import T5X's network and define NETWORK, which uses DROPOUT_RATE.

    Raises UserError where T5X has none.
    """
    network, config = network_of(model), model.config
    values = {name: getattr(config, name) for name in _WIDTHS} | {"dtype": config.dtype}
    values |= _layers(network, config)
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


def _layers(network: Network, config: T5Config) -> dict[str, int]:
    if network == DECODER_ONLY:
        return {"num_layers": config.num_decoder_layers}
    return {"num_encoder_layers": config.num_encoder_layers, "num_decoder_layers": config.num_decoder_layers}


def vocabulary_gin(vocabulary: Vocabulary, folder: Path) -> list[str]:
    """Lines that define VOCABULARY by SeqIO's classes. folder: where the copy of its model lies."""
    if vocabulary.kind == BYTES and vocabulary.sentinels in (SEQIO, BYT5_GOOGLE) and not vocabulary.named_tokens:
        lines = ["VOCABULARY = @seqio.ByteVocabulary()"]
        return [*lines, f"seqio.ByteVocabulary.extra_ids = {vocabulary.extra_ids}"]
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


def model_gin(model: Model, vocabulary: Vocabulary, folder: Path, said: str) -> str:
    """A file that T5X's runs include: MODEL with T5X's Adafactor, as its own files of sizes. said: its first line."""
    network = network_of(model)
    ids = ["vocabulary"] if network == DECODER_ONLY else ["input_vocabulary", "output_vocabulary"]
    return "\n".join(
        [
            f"# {said}",
            "from __gin__ import dynamic_registration",
            "",
            "import seqio",
            "from t5x import adafactor",
            "from t5x import models",
            *network_gin(model),
            "",
            "DROPOUT_RATE = 0.0",
            "Z_LOSS = 0.0001",
            "LABEL_SMOOTHING = 0.0",
            "LOSS_NORMALIZING_FACTOR = None",
            "",
            *vocabulary_gin(vocabulary, folder),
            "",
            "OPTIMIZER = @adafactor.Adafactor()",
            "adafactor.Adafactor:",
            "  decay_rate = 0.8",
            "  step_offset = 0",
            "  logical_factor_rules = @adafactor.standard_logical_factor_rules()",
            "",
            f"MODEL = @models.{network.model}()",
            f"models.{network.model}:",
            "  module = %NETWORK",
            *(f"  {name} = %VOCABULARY" for name in ids),
            "  optimizer_def = %OPTIMIZER",
            "  z_loss = %Z_LOSS",
            "  label_smoothing = %LABEL_SMOOTHING",
            "  loss_normalizing_factor = %LOSS_NORMALIZING_FACTOR",
            "",
        ]
    )
