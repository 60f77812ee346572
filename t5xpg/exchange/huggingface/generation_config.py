"""The generation_config.json of transformers, with which `generate` decodes as an experiment does."""

from typing import Any

from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.models.decoding import DecodingConfig


def generation_config(decoding: DecodingConfig, vocabulary: Vocabulary, longest: int, start_id: int) -> dict[str, Any]:
    """The options of `generate`. longest: most tokens of an answer, unless `decoding` names another number."""
    found: dict[str, Any] = {
        "decoder_start_token_id": start_id,
        "eos_token_id": vocabulary.eos_id,
        "pad_token_id": vocabulary.pad_id,
        "max_new_tokens": decoding.max_decode_length or longest,
    }
    if is_beam(decoding):
        found |= {"num_beams": decoding.decodes, "num_return_sequences": decoding.returned}
        found |= {"length_penalty": decoding.alpha, "early_stopping": decoding.early_stopping}
    elif decoding.method == "sample" and decoding.temperature > 0:
        found |= {"do_sample": True, "num_return_sequences": decoding.returned, "temperature": decoding.temperature}
        found |= {"top_k": decoding.topk, "top_p": decoding.topp or 1.0}
    return found


def is_beam(decoding: DecodingConfig) -> bool:
    """Whether it is a beam search that `generate` can do, too."""
    return decoding.method == "beam" and decoding.length_penalty == "transformers" and decoding.extra_length is None
