"""The tokenizer of a vocabulary as files that transformers loads, with the ids that training used, sentinels included.

Byte vocabularies have tokenizer_config.json alone, all others also tokenizer.json, SentencePiece models also
spiece.model. Whatever the convention, each sentinel is written with its id, and `<extra_id_0>` in a text becomes it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from t5xpg.base.errors import UserError
from t5xpg.base.files import write_json
from t5xpg.data.vocab.tokenizers import HUGGING_FACE
from t5xpg.data.vocab.vocabulary import BYTES, Vocabulary

CONFIG, DEFINITION, PIECES = "tokenizer_config.json", "tokenizer.json", "spiece.model"
CONVENTION = "t5xpg_sentinels"  # in tokenizer_config.json: the name of the sentinels' convention, for an import
BYTE_CLASS, OTHER_CLASS = "ByT5Tokenizer", "PreTrainedTokenizerFast"
_BYTE_SPECIAL = {0: "<pad>", 1: "</s>", 2: "<unk>"}
# Names for the padding of a tokenizer that has none: the first one that is not yet one of its tokens.
_PADDINGS = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")
# The ids of these texts are compared before a folder is finished.
SAMPLES = (
    "The <extra_id_0> sat on <extra_id_1>.",
    "<extra_id_0> cat <extra_id_1> the mat",
    "Studies have shown that 3.5% of owls, at least, like good wine!",
    "  two  spaces,\ta tab\nand a line end ",
    "Tie\u0302\u0301ng Vie\u0323\u0302t, cafe\u0301, \u1112\u1161\u11ab, か\u3099, \u3000\u0301 \x85",
    "naïve café, Ærøskøbing, 東京, Übermut und ½ Pfund 🙂",
    "def f(x):\n    return [x, *y]  # code",
)


def tokenizer_type(model_type: str, vocabulary: Vocabulary) -> str | None:
    """The argument `tokenizer_type` that `AutoTokenizer` needs for the folder; None where it needs none.

    For umT5 `AutoTokenizer` takes the class that reads tokenizer.json, whatever class is named (transformers 5.23).
    """
    return "byt5" if model_type == "umt5" and vocabulary.kind == BYTES else None


def write_tokenizer(folder: Path, vocabulary: Vocabulary, *, longest: int) -> None:
    """Write the tokenizer's files. longest: most tokens of an input. The end token is put behind a text, as in T5's.

    Raises UserError where transformers has no tokenizer with these ids.
    """
    if vocabulary.kind == BYTES:
        write_json(folder / CONFIG, _byte_config(vocabulary, longest))
        return
    if vocabulary.model_file is None:
        raise UserError("transformers has no tokenizer for ids that stand for no text. FORMAT=t5x needs none.")
    names = _own_names(vocabulary)
    if vocabulary.kind == HUGGING_FACE:
        definition = _tokenizer_with_ids(vocabulary)
    else:
        from t5xpg.exchange.formats.sentencepiece_json import definition_of  # late: the others do without SentencePiece

        definition = definition_of(Path(vocabulary.model_file), names, vocabulary.size)
    definition["added_tokens"] = _added_tokens(definition, vocabulary, names)
    end = definition_piece(definition, vocabulary.eos_id)
    definition["post_processor"] = _with_end(end, vocabulary.eos_id)
    write_json(folder / DEFINITION, definition)
    config = {
        # not T5Tokenizer, which makes steps of its own for pieces and loses accents in NFD
        "tokenizer_class": OTHER_CLASS,
        "model_max_length": longest,
        "pad_token": definition_piece(definition, vocabulary.pad_id),
        "eos_token": end,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": list(names.values()),
    }
    if vocabulary.unk_id is not None:
        config["unk_token"] = definition_piece(definition, vocabulary.unk_id)
    if vocabulary.kind != HUGGING_FACE:
        config["extra_ids"] = vocabulary.num_sentinels
        (folder / PIECES).write_bytes(Path(vocabulary.model_file).read_bytes())
    write_json(folder / CONFIG, config)


def _own_names(vocabulary: Vocabulary) -> dict[int, str]:
    sentinels = {vocabulary.sentinel_id(index): f"<extra_id_{index}>" for index in range(vocabulary.num_sentinels)}
    return sentinels | {vocabulary.named_id(name): name for name in vocabulary.named_tokens}


def _byte_config(vocabulary: Vocabulary, longest: int) -> dict[str, Any]:
    names = _own_names(vocabulary)
    return {
        "tokenizer_class": BYTE_CLASS,
        "model_max_length": longest,
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        CONVENTION: vocabulary.sentinels,
        "extra_ids": 0,  # it would number them itself; here each has the id that it was trained with
        "additional_special_tokens": list(names.values()),
        "added_tokens_decoder": {
            str(token): _added_token(text) for token, text in sorted((_BYTE_SPECIAL | names).items())
        },
    }


def _added_token(text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": text, **flags, "special": True}


def _tokenizer_with_ids(vocabulary: Vocabulary) -> dict[str, Any]:
    """The tokenizer's own definition, with the ids that training used: see `vocabulary.Vocabulary`."""
    assert vocabulary.model_file is not None
    tokenizer = tokenizers.Tokenizer.from_file(vocabulary.model_file)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    definition: dict[str, Any] = json.loads(tokenizer.to_str())
    model = definition["model"]
    swap = {0: vocabulary.tokenizer_pad_id, vocabulary.tokenizer_pad_id: 0}
    texts = {token: piece for token in range(vocabulary.size) if (piece := vocabulary.piece(token))}
    texts.setdefault(0, next(name for name in _PADDINGS if name not in texts.values()))
    for one in definition["added_tokens"]:
        one["id"] = swap.get(one["id"], one["id"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {text: token for token, text in sorted(texts.items())}
    else:
        scores = dict.fromkeys(texts.values(), 0.0) | dict(map(tuple, model["vocab"]))
        lowest = min(scores.values())
        unknown = model.get("unk_id")
        # an id that nothing uses has to be there, too: the list is the numbering
        listed = (texts.get(token, f"<unused_{token}>") for token in range(max(texts) + 1))
        model["vocab"] = [[text, scores.get(text, lowest)] for text in listed]
        model["unk_id"] = None if unknown is None else swap.get(unknown, unknown)
    return definition


def _added_tokens(
    definition: Mapping[str, Any], vocabulary: Vocabulary, names: Mapping[int, str]
) -> list[dict[str, Any]]:
    """The added tokens: the tokenizer's own, then padding, end and unknown, and the names; in the order of ids."""
    tokens: dict[int, dict[str, Any]] = {one["id"]: one for one in definition["added_tokens"]}
    special = [token for token in (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) if token is not None]
    for token, text in ({token: definition_piece(definition, token) for token in special} | dict(names)).items():
        if token not in tokens or tokens[token]["content"] != text:
            tokens[token] = _added_token(text)
    return [{**one, "id": token} for token, one in sorted(tokens.items())]


def definition_piece(definition: Mapping[str, Any], token: int) -> str:
    """The text of an id in a tokenizer.json."""
    vocab = definition["model"]["vocab"]
    if isinstance(vocab, list):
        return str(vocab[token][0])
    return next(text for text, one in vocab.items() if one == token)


def _with_end(end: str, token: int) -> dict[str, Any]:
    """The post-processor that puts the end token behind a text, or behind both of two."""
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    last = {"SpecialToken": {"id": end, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, last],
        "pair": [first, last, second, last],
        "special_tokens": {end: {"id": end, "ids": [token], "tokens": [end]}},
    }


def check_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    """Raise UserError where the written tokenizer.json gives `sample_texts` other ids. Byte vocabularies have none."""
    if not (folder / DEFINITION).is_file():
        return
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / DEFINITION))
    for text in sample_texts(vocabulary):
        expected, ids = expected_ids(vocabulary, text), tokenizer.encode(text).ids
        if ids != expected:
            raise UserError(
                f"The tokenizer.json that was made of {vocabulary.model_file} reads {text!r} as {ids}, and the "
                f"vocabulary as {expected}: this model cannot be exported for transformers."
            )


def expected_ids(vocabulary: Vocabulary, text: str) -> list[int]:
    """The ids that a tokenizer has to give for a text."""
    return [*vocabulary.encode(text), vocabulary.eos_id]


def sample_texts(vocabulary: Vocabulary) -> list[str]:
    """The samples whose sentinels a vocabulary has, and a text with its named tokens."""
    texts = list(SAMPLES) if vocabulary.num_sentinels > 1 else [text for text in SAMPLES if "<extra_id_" not in text]
    return [*texts, " ".join([*vocabulary.named_tokens, "at the end"])]
