"""What an import takes of a checkpoint, whoever wrote it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import json_object_of
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.sentinels import NAMED_TOKENS, SENTINEL
from t5xpg.data.vocab.vocabulary import BYT5_GOOGLE, BYTES, CONVENTIONS, OWN, SEQIO, TRANSFORMERS, Vocabulary
from t5xpg.exchange.huggingface.tokenizer_files import BYTE_CLASS, CONFIG, CONVENTION, DEFINITION, PIECES
from t5xpg.models.config import T5Config
from t5xpg.models.model import Params


@dataclass(frozen=True)
class Taken:
    """A checkpoint as this project has it.

    source: where it came from, for people. name: what its run is called. format: of the files ("huggingface", "t5x",
    "mesh_tensorflow"). family: as its own program calls it. files: those that identify it. tokenizer_files: kept with
    the run. step, opt_state: of the optimiser, where it was taken, too (optax's state of `optimizers.Adafactor`).
    """

    source: str
    name: str
    format: str
    family: str
    config: T5Config
    params: Params
    vocabulary: Vocabulary
    files: tuple[Path, ...]
    tokenizer_files: tuple[Path, ...] = ()
    step: int = 0
    opt_state: Any = None

    def sha256(self, digest: Any) -> Mapping[str, str]:
        """Digests of the files by name."""
        return {file.name: digest(file) for file in self.files}


_EXTRA_IDS = 125  # of ByT5 in transformers
_SPECIAL = re.compile(r"</?[a-z]+>|\[[A-Z0-9]+\]|<\|.*\|>")


def vocabulary_of_folder(
    folder: Path, config: Mapping[str, Any], *, tokenizer: str | None = None, sentinels: str | None = None
) -> Vocabulary:
    """The vocabulary of a folder with this config.json.

    tokenizer: "bytes", or the path of another one's file or folder. sentinels: a convention of bytes. Raises UserError
    where no tokenizer is found, or its ids are not the model's.
    """
    if sentinels is not None and sentinels not in CONVENTIONS:
        raise UserError(f"SENTINELS={sentinels} is no convention.{nearest(sentinels, CONVENTIONS)}")
    found = _found(folder, tokenizer, sentinels, config.get("vocab_size", 0))
    if sentinels is not None and found.sentinels != sentinels:
        raise UserError(
            f"SENTINELS={sentinels} is for bytes; this {found.kind} vocabulary numbers them as {found.sentinels}."
        )
    if found.size > config.get("vocab_size", 0):
        raise UserError(
            f"The tokenizer of {folder} has {found.size:,} ids and the model {config.get('vocab_size', 0):,}: they are "
            "not of one checkpoint. Name another tokenizer: TOKENIZER=path, or TOKENIZER=bytes."
        )
    if found.tokenizer_pad_id:
        raise UserError(
            f"The padding of the tokenizer in {folder} is {found.tokenizer_pad_id}, and that of the model 0."
        )
    if (end := config.get("eos_token_id")) not in (None, found.eos_id):
        raise UserError(f"The end token of {folder} is {end} by its config.json, and {found.eos_id} by its tokenizer.")
    return found


def _found(folder: Path, tokenizer: str | None, sentinels: str | None, rows: int) -> Vocabulary:
    settings = json_object_of(folder / CONFIG)
    if tokenizer == BYTES:
        return _of_bytes(settings, sentinels)
    if tokenizer is not None:
        return vocabulary_of_file(Path(tokenizer))
    if str(settings.get("tokenizer_class", "")).startswith(BYTE_CLASS):
        return _of_bytes(settings, sentinels)
    if (folder / PIECES).is_file() and not _adds_tokens(folder, settings):
        return _of_pieces(folder / PIECES, folder, settings)
    if (folder / DEFINITION).is_file():
        found = vocabulary_of_file(folder / DEFINITION)
        # ids behind the tokens are sentinels only where the model has rows for them
        return found if found.size <= rows or found.sentinels == OWN else dataclasses.replace(found, extra_ids=0)
    raise UserError(
        f"{folder} has no tokenizer: expected {DEFINITION}, {PIECES}, or a {CONFIG} of {BYTE_CLASS}. Name one: "
        "TOKENIZER=path, or TOKENIZER=bytes."
    )


def _of_bytes(settings: Mapping[str, Any], sentinels: str | None) -> Vocabulary:
    """See above; what was exported here says its convention."""
    said = sentinels or settings.get(CONVENTION)
    numbered = {text: token for token, text in _added_tokens(settings)}
    names = tuple(text for text, _ in sorted(numbered.items(), key=lambda one: one[1]) if _is_name(text))
    count = sum(bool(SENTINEL.fullmatch(text)) for text in numbered)
    candidates = [
        Vocabulary(BYTES, (count or _EXTRA_IDS) + len(names), SEQIO, named_tokens=names),
        Vocabulary(BYTES, (count or _EXTRA_IDS) + len(names), TRANSFORMERS, named_tokens=names[::-1]),
        Vocabulary(BYTES, 0, BYT5_GOOGLE),
    ]
    if said is not None:
        return next((one for one in candidates if one.sentinels == said), candidates[-1])
    if "<extra_id_0>" not in numbered or numbered["<extra_id_0>"] == candidates[1].sentinel_id(0):
        return candidates[-1]
    for one in candidates:
        if one.sentinel_id(0) == numbered["<extra_id_0>"]:
            return one
    raise UserError(
        f"The tokenizer's files give <extra_id_0> the id {numbered['<extra_id_0>']}, as no convention does: name one, "
        f"SENTINELS={', '.join(CONVENTIONS)}."
    )


def _of_pieces(file: Path, folder: Path, settings: Mapping[str, Any]) -> Vocabulary:
    """A SentencePiece model with as many sentinels behind its pieces as the files say."""
    extra = settings.get("extra_ids")
    texts = {text for _, text in _added_tokens(settings)}
    for name in ("additional_special_tokens", "extra_special_tokens"):  # of transformers 4 and of 5
        texts |= set(_strings(settings.get(name)))
    names = tuple(name for name in NAMED_TOKENS if name in texts)
    if not isinstance(extra, int):
        extra = sum(bool(SENTINEL.fullmatch(text)) for text in texts) or None
    found = vocabulary_of_file(file, None if extra is None else extra + len(names))
    return dataclasses.replace(found, named_tokens=names) if names and found.extra_ids else found


def _adds_tokens(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Whether someone has added tokens of text to the pieces: then tokenizer.json alone has all of them."""
    if not (folder / DEFINITION).is_file():
        return False
    added = json_object_of(folder / DEFINITION).get("added_tokens")
    texts = [one.get("content") for one in added if isinstance(one, Mapping)] if isinstance(added, list) else []
    return not all(isinstance(text, str) and _is_special(text) for text in texts)


def _is_special(text: str) -> bool:
    return bool(SENTINEL.fullmatch(text) or _SPECIAL.fullmatch(text))


def _is_name(text: str) -> bool:
    return text not in ("<pad>", "</s>", "<unk>") and not SENTINEL.fullmatch(text)


def _added_tokens(settings: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Ids and texts that tokenizer_config.json adds."""
    added = settings.get("added_tokens_decoder")
    for token, one in (added if isinstance(added, Mapping) else {}).items():
        text = one.get("content") if isinstance(one, Mapping) else one
        if isinstance(text, str) and str(token).isdecimal():
            yield int(token), text


def _strings(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
