"""A file of llama.cpp (GGUF) with a Gemma or a T5, parameters and tokenizer in one."""

from pathlib import Path

from t5xpg.base.errors import UserError
from t5xpg.base.files import write_json
from t5xpg.data.vocab.files import DEFAULT_EXTRA_IDS
from t5xpg.data.vocab.sentinels import SENTINEL
from t5xpg.data.vocab.tokenizers import SPACE
from t5xpg.exchange.formats.gguf_file import GgufFile
from t5xpg.exchange.from_transformers import model_of
from t5xpg.exchange.huggingface.tokenizer_files import CONFIG, PIECES
from t5xpg.exchange.huggingface.vocabulary import vocabulary_of_folder
from t5xpg.exchange.import_folders import ImportedCheckpoint, run_name


def read(path: Path, scratch: Path, *, tokenizer: str | None, sentinels: str | None) -> ImportedCheckpoint:
    """The checkpoint. scratch: a folder for the tokenizer's files, which the vocabulary names.

    Raises UserError where the file is not whole, or of a family that cannot be imported.
    """
    print(f"reading {path}", flush=True)
    file = GgufFile(path)
    settings = file.settings()
    if tokenizer is None:
        tokens = file.sentencepiece_model()
        (scratch / PIECES).write_bytes(tokens.SerializeToString())
        rows_behind = max(0, settings["vocab_size"] - len(tokens.pieces))
        # T5's sentinels are no pieces, unless the file lists them
        has_own = any(SENTINEL.fullmatch(one.piece.removeprefix(SPACE)) for one in tokens.pieces)
        extra_ids = min(DEFAULT_EXTRA_IDS, rows_behind) if file.is_t5 and not has_own else 0
        write_json(scratch / CONFIG, {"extra_ids": extra_ids})
    try:
        vocabulary = vocabulary_of_folder(scratch, settings, tokenizer=tokenizer, sentinels=sentinels)
        model, params = model_of(settings, file.tensors())
    except UserError as error:
        raise UserError(f"{path}, by transformers' names: {error}") from None
    return ImportedCheckpoint(
        source=str(path.resolve()),
        name=run_name(path.stem),
        format="gguf",
        family=settings["model_type"],
        model=model,
        params=params,
        vocabulary=vocabulary,
        files=(path,),
    )
