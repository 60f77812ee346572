"""Tokenizers of Hugging Face and SentencePiece models of some hundred tokens, as files."""

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

_WORDS = [a + b + c for a in "bdgklmnprst" for b in "aeiou" for c in "bdgklmnprst"]
LINES = [" ".join(_WORDS[i : i + 9]) for i in range(len(_WORDS) - 9)]


def sentencepiece_model(path: Path, **options: Any) -> str:
    """A model of 64 pieces with T5's special ids, unless told otherwise."""
    usual = {"vocab_size": 64, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "minloglevel": 2, "num_threads": 1}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, **{**usual, "hard_vocab_limit": False, **options}
    )
    path.write_bytes(model.getvalue())
    return str(path)


def pieces_beside(checkpoint: Path) -> None:
    """The 48 ids of a checkpoint that does not say what they mean: 40 pieces and 8 sentinels."""
    sentencepiece_model(checkpoint / "spiece.model", vocab_size=40)
    (checkpoint / "tokenizer_config.json").write_text('{"extra_ids": 8}')


def byte_level(folder: Path, special: tuple[str, ...] = ("<pad>", "</s>"), **roles: str) -> Path:
    """Byte-level BPE, as GPT-2's: every text has tokens. `special` come first; roles go to tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(LINES, trainer)
    return _saved(tokenizer, folder, roles)


def with_spaces_in_pieces(folder: Path, sentinels: int = 0) -> Path:
    """As Llama's and T5's: "▁" for a space, one before the first word, bytes for what has no piece.

    sentinels: so many tokens <extra_id_N>, the last ids counting down.
    """
    alphabet = ["▁", *"abcdefghijklmnopqrstuvwxyz"]
    pieces = ["<pad>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *alphabet, "▁b", "▁ba"]
    merges = [("▁", "b"), ("▁b", "a")]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", *(f"<extra_id_{i}>" for i in reversed(range(sentinels)))])
    return _saved(tokenizer, folder, {})


def word_pieces(folder: Path) -> Path:
    """As BERT's: no token says where spaces are, and there is no token for the end."""
    pieces = ["[PAD]", "[UNK]", "bad", "bag", "##ger", "is"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]"])
    return _saved(tokenizer, folder, {})


def _saved(tokenizer: Tokenizer, folder: Path, roles: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if roles:
        (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    return folder / "tokenizer.json"
