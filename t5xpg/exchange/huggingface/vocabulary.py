"""The vocabulary of a folder with tokenizer files, as transformers or this program writes them."""

import dataclasses
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import json_object_of
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.sentinels import NAMED_TOKENS, SENTINEL
from t5xpg.data.vocab.tokenizers import HuggingFaceTokenizer
from t5xpg.data.vocab.vocabulary import BYT5_GOOGLE, BYTES, CONVENTIONS, OWN, SEQIO, TRANSFORMERS, Vocabulary
from t5xpg.exchange.huggingface.tokenizer_files import BYTE_CLASS, CONFIG, CONVENTION, DEFINITION, PIECES, SAMPLES

_BYT5_SENTINELS = 125  # of ByT5 in transformers
_SHOWN = 5  # tokens that a message names


def vocabulary_of_folder(
    folder: Path, config: Mapping[str, Any], *, tokenizer: str | None = None, sentinels: str | None = None
) -> Vocabulary:
    """The vocabulary of a folder whose model has this config.json.

    tokenizer: "bytes", or the path of another one's file or folder. sentinels: the convention of a byte vocabulary.
    Raises UserError where no tokenizer is found, or its ids are not the model's.
    """
    rows = config.get("vocab_size", 0)
    if sentinels is not None and sentinels not in CONVENTIONS:
        raise UserError(f"SENTINELS={sentinels} is no convention.{nearest(sentinels, CONVENTIONS)}")
    vocabulary = _read(folder, tokenizer, sentinels, rows)
    if sentinels is not None and vocabulary.sentinels != sentinels:
        raise UserError(
            f"SENTINELS={sentinels} is for bytes; this {vocabulary.kind} vocabulary numbers them as "
            f"{vocabulary.sentinels}."
        )
    if vocabulary.size > rows:
        raise UserError(
            f"The tokenizer of {folder} has {vocabulary.size:,} ids and the model {rows:,}: they are not of one "
            "checkpoint. Name another tokenizer: TOKENIZER=path, or TOKENIZER=bytes."
        )
    if vocabulary.tokenizer_pad_id:
        raise UserError(
            f"The padding of the tokenizer in {folder} is {vocabulary.tokenizer_pad_id}, and that of the model 0."
        )
    end = config.get("eos_token_id")  # or a list of several
    if end is not None and vocabulary.eos_id not in (end if isinstance(end, list) else [end]):
        raise UserError(
            f"The end token of {folder} is {end} by its config.json, and {vocabulary.eos_id} by its tokenizer."
        )
    return vocabulary


def _read(folder: Path, tokenizer: str | None, sentinels: str | None, rows: int) -> Vocabulary:
    settings = json_object_of(folder / CONFIG)
    if tokenizer == BYTES:
        return _byte_vocabulary(folder, settings, sentinels)
    if tokenizer is not None:
        return vocabulary_of_file(Path(tokenizer))
    if str(settings.get("tokenizer_class", "")).startswith(BYTE_CLASS):
        return _byte_vocabulary(folder, settings, sentinels)
    definition = folder / DEFINITION
    if (folder / PIECES).is_file():
        vocabulary = _sentencepiece_vocabulary(folder / PIECES, settings)
        added = _all_added(folder, settings)
        other_ids = [f"{text} is {token}" for token, text in added if not _has(vocabulary, text, token)]
        if not other_ids and _reads_alike(definition, vocabulary):
            return vocabulary
        if not definition.is_file():
            raise UserError(
                f"The tokenizer of {folder} adds tokens that its {PIECES} does not have, or gives them other ids: "
                f"{', '.join(other_ids[:_SHOWN])}. Load it with transformers' AutoTokenizer and save it: that writes a "
                f"{DEFINITION}, or name another: TOKENIZER=path."
            )
    if definition.is_file():
        own, extended = (vocabulary_of_file(definition, extra_ids) for extra_ids in (0, None))
        # ids behind the tokens are sentinels only where no token is one and the model has rows for them
        return own if own.sentinels == OWN or extended.size > rows else extended
    raise UserError(
        f"{folder} has no tokenizer: expected {DEFINITION}, {PIECES}, or a {CONFIG} of {BYTE_CLASS}. Name one: "
        "TOKENIZER=path, or TOKENIZER=bytes."
    )


def _byte_vocabulary(folder: Path, settings: Mapping[str, Any], sentinels: str | None) -> Vocabulary:
    """A byte vocabulary. Its convention: the given one, else that of our export, else that of the added tokens."""
    convention = sentinels or settings.get(CONVENTION)
    ids = {text: token for token, text in _all_added(folder, settings)}
    names = tuple(text for text in ids if text not in ("<pad>", "</s>", "<unk>") and not SENTINEL.fullmatch(text))
    count = (sum(bool(SENTINEL.fullmatch(text)) for text in ids) or _BYT5_SENTINELS) + len(names)
    google = Vocabulary(BYTES, 0, BYT5_GOOGLE)
    seqio = Vocabulary(BYTES, count, SEQIO, named_tokens=names)
    transformers = Vocabulary(BYTES, count, TRANSFORMERS, named_tokens=names[::-1])
    if convention is not None:
        chosen = next((one for one in (seqio, transformers) if one.sentinels == convention), google)
        for name in chosen.named_tokens:
            if chosen.named_id(name) != ids[name]:
                raise UserError(f"The tokenizer's files give {name} the id {ids[name]}, and {convention} another one.")
        return chosen
    first_sentinel = ids.get("<extra_id_0>")
    if first_sentinel in (None, transformers.sentinel_id(0), google.sentinel_id(0)):
        if names:
            raise UserError(
                f"The tokenizer's files add {', '.join(names[:_SHOWN])}, which Google's convention has no ids for. Name"
                f" the one that the model was trained with: SENTINELS={TRANSFORMERS} or SENTINELS={SEQIO}, or "
                f"SENTINELS={BYT5_GOOGLE} to leave them out."
            )
        return google
    if first_sentinel == seqio.sentinel_id(0):
        return seqio
    raise UserError(
        f"The tokenizer's files give <extra_id_0> the id {first_sentinel}, as no convention does: name one, "
        f"SENTINELS={', '.join(CONVENTIONS)}."
    )


def _sentencepiece_vocabulary(file: Path, settings: Mapping[str, Any]) -> Vocabulary:
    """A SentencePiece model with as many sentinels behind its pieces as the files say."""
    texts = set(_added_tokens(settings).values())
    for name in ("additional_special_tokens", "extra_special_tokens"):  # of transformers 4 and of 5
        listed = settings.get(name)
        texts |= {text for text in listed if isinstance(text, str)} if isinstance(listed, list) else set()
    names = tuple(name for name in NAMED_TOKENS if name in texts)
    extra = settings.get("extra_ids")
    if not isinstance(extra, int):
        extra = sum(bool(SENTINEL.fullmatch(text)) for text in texts) or None
    vocabulary = vocabulary_of_file(file, None if extra is None else extra + len(names))
    return dataclasses.replace(vocabulary, named_tokens=names) if names and vocabulary.extra_ids else vocabulary


def _reads_alike(definition: Path, vocabulary: Vocabulary) -> bool:
    """True unless the tokenizer.json, which transformers reads, gives texts other ids than the pieces do. NFD is not
    compared: T5Tokenizer loses accents that the models were trained with."""
    if not definition.is_file():
        return True
    other, added = HuggingFaceTokenizer(str(definition)), json_object_of(definition).get("added_tokens") or ()
    texts = (*SAMPLES, *(one["content"] for one in added))
    compared = [text for text in texts if unicodedata.is_normalized("NFC", text) and not SENTINEL.search(text)]
    return all(other.encode(text) == vocabulary.encode(text) for text in compared)


def _has(vocabulary: Vocabulary, text: str, token: int) -> bool:
    """True if an added token has this id in the vocabulary. Of the ids of pieces, the text is not compared."""
    if match := SENTINEL.fullmatch(text):
        return int(match[1]) < vocabulary.num_sentinels and vocabulary.sentinel_id(int(match[1])) == token
    if text in vocabulary.named_tokens:
        return vocabulary.named_id(text) == token
    return token < vocabulary.size and vocabulary.sentinel_index(token) is None


def _all_added(folder: Path, settings: Mapping[str, Any]) -> list[tuple[int, str]]:
    """The tokens, with their ids, that any of a folder's files adds, by id."""
    by_text = () if _added_tokens(settings) else json_object_of(folder / "added_tokens.json").items()
    added = json_object_of(folder / DEFINITION).get("added_tokens")
    pairs: list[tuple[Any, Any]] = [*_added_tokens(settings).items(), *((token, text) for text, token in by_text)]
    pairs += [(one.get("id"), one.get("content")) for one in added or () if isinstance(one, Mapping)]
    return sorted({(token, text) for token, text in pairs if isinstance(token, int) and isinstance(text, str)})


def _added_tokens(settings: Mapping[str, Any]) -> dict[int, str]:
    """The tokens by id that tokenizer_config.json adds."""
    added = settings.get("added_tokens_decoder")
    entries = added.items() if isinstance(added, Mapping) else ()
    tokens = {token: one.get("content") if isinstance(one, Mapping) else one for token, one in entries}
    return {int(token): text for token, text in tokens.items() if isinstance(text, str) and str(token).isdecimal()}
