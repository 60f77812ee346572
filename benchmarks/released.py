"""Compares a released checkpoint with transformers, and adds its row to docs/released_weights.md.

    python -m benchmarks.released CHECKPOINT SOURCE

CHECKPOINT: what `make import` takes. SOURCE: where it is published, for readers of the table. Both programs read the
same files and compute in float32 (`make bench-peers`, or T5XPG_TORCH_PYTHON): the logits of 20 texts and a greedy
continuation of 32 tokens of each. The texts are the beginnings of documents of the test split of `pydocs`; those of an
encoder-decoder have one word removed.
"""

import functools
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks import page
from benchmarks.interop import logits_of
from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.blanks import draw_blanks
from t5xpg.evaluate.predictor import pad_rows
from t5xpg.evaluate.trained_model import parameters_and_vocabulary
from t5xpg.exchange.huggingface.transformers_check import python_with_torch, run_with
from t5xpg.exchange.import_folders import find
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.experiment import assembly, config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.decoding import greedy, score
from t5xpg.models.model import Model
from t5xpg.run.directory import RunDirectory

THEIRS = Path(__file__).with_name("released_transformers.py")
RESULTS = paths.REPOSITORY / "benchmarks" / "results" / "released.json"
PAGE = paths.REPOSITORY / "docs" / "released_weights.md"
TEXTS, TEXT_TOKENS, CONTINUATION = 20, 48, 32
SCORED, CHARACTERS = 100, 800  # documents of which the task's score is, and characters of each


def documents(characters: int) -> list[str]:
    """The beginnings of the documents of the test split of `pydocs`."""
    file = paths.data_directory() / "pydocs" / "test.jsonl"
    if not file.is_file():
        raise UserError(f"{file} is not there. Make it: make data DATASET=pydocs")
    lines = file.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"][:characters] for line in lines]


def bits_per_byte(model: Model, params: Any, vocabulary: Vocabulary) -> float:
    """Of the documents, without their ends, by a decoder alone."""
    compute = jax.jit(functools.partial(score, model))
    nats, length = 0.0, 0
    for text in documents(CHARACTERS)[:SCORED]:
        ids = np.array([vocabulary.encode(text)], np.int32)
        padded = np.pad(ids, ((0, 0), (0, -ids.shape[1] % 256)))  # few lengths are compiled
        batch = {"decoder_target_tokens": padded, "decoder_input_tokens": np.pad(padded[:, :-1], ((0, 0), (1, 0)))}
        nats -= float(compute(params, batch)[0])
        length += len(text.encode())
    return nats / length / math.log(2)


def filled_words(model: Any, params: Any, vocabulary: Vocabulary) -> float:
    """The share, in %, of words removed from documents that an encoder-decoder's greedy answer names."""
    blanks = draw_blanks(documents(CHARACTERS)[:SCORED], (1,))
    decode = jax.jit(functools.partial(greedy, model, max_decode_length=12, eos_id=vocabulary.eos_id))
    hits = 0
    for text, word in blanks:
        ids = pad_rows([[*vocabulary.encode(text), vocabulary.eos_id]], vocabulary.pad_id)
        answer = vocabulary.decode(np.asarray(decode(params, ids))[0]).removeprefix("<extra_id_0>")
        hits += answer.partition("<extra_id_")[0].strip() == word
    return 100 * hits / len(blanks)


def compared(checkpoint: Path, model: Model, params: Any, vocabulary: Vocabulary, python: Path) -> dict[str, Any]:
    """The largest difference of a logit, the largest logit, and how many continuations are the same."""
    is_decoder = isinstance(model, DecoderOnlyModel)
    texts = documents(CHARACTERS)
    texts = texts if is_decoder else [text for text, _ in draw_blanks(texts, (1,))]
    ends = [] if is_decoder else [vocabulary.eos_id]
    cut = [[*vocabulary.encode(text)[: TEXT_TOKENS - len(ends)], *ends] for text in texts]
    tokens = np.array([ids for ids in cut if len(ids) == TEXT_TOKENS][:TEXTS], np.int32)
    with tempfile.TemporaryDirectory() as scratch:
        given, found = Path(scratch) / "given.safetensors", Path(scratch) / "found.safetensors"
        kind = "causal" if is_decoder else "seq2seq"
        start = model.config.decoder_start_token_id
        metadata = {"kind": kind, "start": str(start), "length": str(CONTINUATION), "end": str(vocabulary.eos_id)}
        save_file({"tokens": tokens.astype(np.int64)}, given, metadata=metadata)
        process = run_with(python, THEIRS, checkpoint, given, found)
        if process.returncode != 0:
            raise UserError(f"transformers cannot answer with {checkpoint}: {process.stderr.strip()[-300:]}")
        theirs = load_file(found)
    decodable: Any = model.for_decoding("LMFeatureConverter") if is_decoder else model
    decode = functools.partial(greedy, decodable, max_decode_length=CONTINUATION, eos_id=vocabulary.eos_id)
    with jax.default_matmul_precision("highest"):
        generated = np.asarray(jax.jit(decode)(params, jnp.asarray(tokens)))
        logits = logits_of(model, params, {"targets": tokens} | ({} if is_decoder else {"inputs": tokens}))
    return {
        "difference": float(np.abs(logits - theirs["logits"]).max()),
        "largest": float(np.abs(logits).max()),
        "same": int((generated == theirs["generated"]).all(axis=1).sum()),
        "texts": len(tokens),
    }


def measured(checkpoint: str, source: str, python: Path) -> dict[str, Any]:
    """The record of a checkpoint."""
    with tempfile.TemporaryDirectory() as scratch:
        run = RunDirectory(import_checkpoint(checkpoint, Path(scratch), name="released"))
        loaded = config.load(str(run.path / "released.gin"))
        built = assembly.assemble(loaded.experiment)
        experiment = built.experiment
        params, vocabulary, _ = parameters_and_vocabulary(run, experiment, built)
        model, record = experiment.model, run.imported()
        assert record is not None
        is_decoder = isinstance(model, DecoderOnlyModel)
        task = {"bits per byte": bits_per_byte} if is_decoder else {"% of words filled in": filled_words}
        place = Path(checkpoint).expanduser()
        return {
            "name": Path(checkpoint).name,
            "source": source,
            "sha256": record["sha256"],
            "parameters": model.num_params,
            **compared(place if place.is_file() else find(checkpoint).path, model, params, vocabulary, python),
            "scores": {name: measure(model, params, vocabulary) for name, measure in task.items()},
        }


def row(one: dict[str, Any]) -> str:
    """A row of the table."""
    digests = ", ".join(f"`{name}` {digest[:12]}…" for name, digest in one["sha256"].items())
    scores = ", ".join(f"{value:.3g} {name}" for name, value in one["scores"].items())
    logits = f"{one['difference']:.1e} of {one['largest']:.3g}"
    cells = (one["name"], one["source"], digests, f"{one['parameters']:,}", logits, f"{one['same']} of {one['texts']}")
    return f"| {' | '.join(cells)} | {scores} |"


def write(records: list[dict[str, Any]]) -> None:
    """Write the results and the table."""
    names = ("checkpoint", "published", "SHA-256", "parameters", "largest difference of a logit", "same continuations")
    head = f"| {' | '.join(names)} | score on `pydocs` |"
    table = "\n".join([head, "|---|---|---|---:|---:|---:|---|", *map(row, records)])
    note = "<!-- Written by `python -m benchmarks.released` from benchmarks/results/released.json. Do not edit. -->"
    block = "\n\n".join(["<!-- released:begin -->", note, table, "<!-- released:end -->"])
    page.write(RESULTS, {"checkpoints": records}, {PAGE: block})


def main(arguments: list[str]) -> None:
    """Measure a checkpoint, and write its row in place of an earlier one of the same name."""
    if len(arguments) != 2:
        sys.exit(__doc__)
    python = python_with_torch()
    if python is None:
        sys.exit("transformers is not installed: `make bench-peers` installs it")
    record = measured(arguments[0], arguments[1], python)
    known = read_json(RESULTS)["checkpoints"] if RESULTS.is_file() else []
    write(sorted([*(one for one in known if one["name"] != record["name"]), record], key=lambda one: one["name"]))
    print(row(record))


if __name__ == "__main__":
    main(sys.argv[1:])
