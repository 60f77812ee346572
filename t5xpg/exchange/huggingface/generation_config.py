"""The generation_config.json of transformers, with which `generate` decodes as an experiment does."""

from typing import Any

from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.models.decoding.config import CONSENSUS, T5X, DecodingConfig


def generation_config(decoding: DecodingConfig, vocabulary: Vocabulary, longest: int, start_id: int) -> dict[str, Any]:
    """The options of `generate`. longest: most tokens of an answer, unless `decoding` names another number."""
    options: dict[str, Any] = {
        "decoder_start_token_id": start_id,
        "eos_token_id": vocabulary.eos_id,
        "pad_token_id": vocabulary.pad_id,
        "max_new_tokens": decoding.max_decode_length or longest,
    }
    if is_beam(decoding):
        options |= {"num_beams": decoding.decodes, "num_return_sequences": decoding.returned}
        options |= {"length_penalty": decoding.alpha, "early_stopping": decoding.early_stopping}
    elif decoding.method == "sample" and decoding.temperature > 0:
        options |= {"do_sample": True, "num_return_sequences": decoding.returned, "temperature": decoding.temperature}
        options |= {"top_k": decoding.topk, "top_p": decoding.topp or 1.0}
    return options


def differences(decoding: DecodingConfig) -> list[str]:
    """A sentence on the parts of the decoding that `generate` cannot do; none if it can do all of it."""
    is_other_beam = decoding.method == "beam" and not is_beam(decoding)
    missing = ["beam search with T5X's length penalty"] if is_other_beam and decoding.length_penalty == T5X else []
    missing += ["choice of the sample that is most like the others"] if decoding.ranked_by == CONSENSUS else []
    is_ranked = decoding.method == "sample" and decoding.decodes > 1 and decoding.ranked_by != CONSENSUS
    missing += ["choice of the likeliest sample"] if is_ranked else []
    missing += [] if decoding.extra_length is None else ["limit for an answer that is longer than its input"]
    missing += [] if decoding.allowed is None else ["set of allowed answers"]
    missing += [] if decoding.pattern is None else ["pattern of answers"]
    verb, instead = "are" if missing[1:] else "is", "answers greedily" if is_other_beam else "does without"
    return [f"Its {' and its '.join(missing)} {verb} not in transformers: `generate` {instead}."] if missing else []


def is_beam(decoding: DecodingConfig) -> bool:
    """True for a beam search that `generate` can also do."""
    return decoding.method == "beam" and decoding.length_penalty == "transformers" and decoding.extra_length is None
