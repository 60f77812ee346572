"""CTranslate2's converter reads an export, and the converted model gives this program's greedy answers.

It runs where `make bench-peers` has installed CTranslate2, torch and transformers.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.evaluate.trained_model import parameters_and_vocabulary
from t5xpg.exchange import to_transformers
from t5xpg.exchange.huggingface.transformers_check import run_with
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.experiment import config
from t5xpg.experiment.assembly import assemble
from t5xpg.models.decoding import greedy
from t5xpg.run.directory import RunDirectory
from tests.small_models import FAMILIES

PEERS = Path(__file__).parents[2] / ".venv-bench" / "bin" / "python"
IDS = 40  # of the tokenizers of these two models
PROGRAM = """
import json, sys
import ctranslate2, transformers
folder, converted, inputs, length = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
ctranslate2.converters.TransformersConverter(folder).convert(converted)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
tokens = [tokenizer.convert_ids_to_tokens(row) for row in inputs]
answers = ctranslate2.Translator(converted).translate_batch(
    tokens, beam_size=1, min_decoding_length=0, max_decoding_length=length
)
print(json.dumps([tokenizer.convert_tokens_to_ids(answer.hypotheses[0]) for answer in answers]))
"""


@pytest.mark.process
@pytest.mark.skipif(not PEERS.is_file(), reason="make bench-peers installs CTranslate2")
@pytest.mark.parametrize("name", ["t5", "t5_1_1"])
def test_greedy_answers(runs: Path, tmp_path: Path, name: str) -> None:
    import_checkpoint(str(FAMILIES / name), runs)
    loaded = config.load(name)
    folder = to_transformers.export(loaded, runs / name, None)[0]
    built = assemble(loaded.experiment)
    params = parameters_and_vocabulary(RunDirectory(runs / name), loaded.experiment, built)[0]
    inputs, length = np.random.default_rng(0).integers(5, 30, (16, 7)), 6
    inputs[:, -1] = 1
    answers = jax.jit(lambda rows: greedy(loaded.experiment.model, params, rows, length))(
        jnp.asarray(inputs, jnp.int32)
    )
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_with(PEERS, program, folder, tmp_path / "converted", json.dumps(inputs.tolist()), str(length))
    assert done.returncode == 0, done.stderr
    pairs = zip(np.asarray(answers).tolist(), json.loads(done.stdout.splitlines()[-1]), strict=True)
    # the embedding has more rows than the tokenizer has ids, and CTranslate2 leaves these rows out
    compared = [pair for pair in pairs if max(pair[0]) < IDS]
    assert len(compared) > 4
    for ours, theirs in compared:
        assert [token for token in ours if token > 1] == theirs
