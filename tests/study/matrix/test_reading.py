"""Reading matrix.toml: what it trains, and every mistake in it with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.study.matrix import making, plan, reading

PLAN = """dataset = "some_text"

[architectures.encoder_decoder]
title = "encoder-decoder"

[architectures.decoder_lm]
title = "decoder-only"
gin_files = ["gin/architectures/decoder_only.gin"]
bindings = ["PACK=True"]

[objectives.span_corruption]
title = "span corruption"

[objectives.lm]
title = "LM"
gin_files = ["gin/objectives/lm.gin"]
bindings = ["TASK_FEATURE_LENGTHS={'targets': 32}"]

[vocabularies.bytes]
title = "bytes"

[vocabularies.bpe]
title = "BPE"
train = { model = "bpe", size = 80, byte_fallback = true }

[trained]
encoder_decoder = ["span_corruption"]
decoder_lm = ["lm"]

[[left_out]]
architectures = ["encoder_decoder"]
objectives = ["lm"]
reason = "Nothing to encode."

[[left_out]]
architectures = ["decoder_lm"]
objectives = ["span_corruption"]
reason = "No inputs."
"""


def read(folder: Path, text: str) -> plan.Plan:
    (folder / plan.FILE_NAME).write_text(text, encoding="utf-8")
    return reading.read(folder / plan.FILE_NAME)


def test_a_plan_is_its_cells(tmp_path: Path) -> None:
    found = read(tmp_path, PLAN)
    cells = found.cells()
    assert [cell.name for cell in cells] == [
        "encoder_decoder,span_corruption,bytes",
        "decoder_lm,lm,bytes",
        "encoder_decoder,span_corruption,bpe",
        "decoder_lm,lm,bpe",
    ]
    assert [cell.task for cell in cells] == [
        "some_text_span_corruption",
        "some_text_lm",
        "some_text_span_corruption_some_text_bpe_80",
        "some_text_lm_some_text_bpe_80",
    ]
    assert cells[1].gin_files == ["gin/architectures/decoder_only.gin", "gin/objectives/lm.gin"]
    assert cells[1].bindings == [
        "MIXTURE_OR_TASK_NAME=some_text_lm",
        "PACK=True",
        "TASK_FEATURE_LENGTHS={'targets': 32}",
    ]
    assert found.reason("encoder_decoder", "lm") == "Nothing to encode."
    assert found.reason("decoder_lm", "lm") is None


def test_a_vocabulary_is_made_with_its_settings(tmp_path: Path) -> None:
    found = read(tmp_path, PLAN)
    of_bytes, bpe = found.vocabularies
    assert making.command(found, of_bytes) is None
    assert (bpe.trained_as, bpe.settings) == ("bpe_80", VocabularySettings(size=80, model="bpe", byte_fallback=True))
    assert making.command(found, bpe) == "make vocab DATASET=some_text SIZE=80 MODEL=bpe BYTE_FALLBACK=1"
    (named,) = read(tmp_path, PLAN.replace("size = 80", 'size = 80, name = "mine"')).vocabularies[1:]
    assert making.command(found, named).endswith(" VOCAB=mine")
    assert named.trained_as == "mine"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("decoder_lm = [", "decoder_ml = [", "there is no architecture decoder_ml. Did you mean decoder_lm?"),
        ('["decoder_lm"]', '["decodr_lm"]', "there is no architecture decodr_lm. Did you mean decoder_lm?"),
        ('decoder_lm = ["lm"]', 'decoder_lm = ["lmm"]', "there is no objective lmm. Did you mean lm?"),
        ("objectives.lm]", "objectives.lmm]", "there is no objective lmm. Did you mean lm or mlm?"),
        ("decoder_only.gin", "decoder_olny.gin", "Did you mean gin/architectures/decoder_only.gin"),
        ('"PACK=True"', '"PACK True"', "'PACK True' binds nothing: NAME=value is needed."),
        ('title = "LM"', 'titel = "LM"', "[objectives.lm] titel is not known. Did you mean title?"),
        ('model = "bpe"', 'model = "bqe"', "[vocabularies.bpe] train: MODEL=bqe is not known. Did you mean bpe?"),
        ("size = 80", 'size = "80"', "[vocabularies.bpe] train:"),
        ("size = 80", "sise = 80", "[vocabularies.bpe] train.sise is not known. Did you mean size?"),
        ("[vocabularies.bytes]", "[vocabularies.Bytes]", "a name of small letters, digits and _ is needed."),
        ("[trained]", "[traind]", "'traind' is not known. Did you mean trained?"),
        ('reason = "No inputs."', 'reason = ""', "[[left_out]] reason: a sentence is needed."),
        ('objectives = ["lm"]', "objectives = []", "[left_out] objectives: a list of texts is needed"),
        ('dataset = "some_text"', "dataset = 3", "dataset: the name of a dataset is needed, and it is 3."),
    ],
)
def test_mistakes_are_said_with_their_lines(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert PLAN.count(old) == 1
    with pytest.raises(UserError) as error:
        read(tmp_path, PLAN.replace(old, new))
    line = PLAN[: PLAN.index(old)].count("\n") + 1
    assert said in str(error.value)
    assert f"{tmp_path / plan.FILE_NAME}, line {line}: " in str(error.value)


@pytest.mark.parametrize(
    ("objectives", "said"),
    [
        ('["lm"]', "decoder_lm with span_corruption is neither trained nor left out with a reason."),
        ('["span_corruption", "lm"]', "decoder_lm with lm is said more than once."),
    ],
)
def test_every_pair_is_said_once(tmp_path: Path, objectives: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path, PLAN.replace('objectives = ["span_corruption"]', f"objectives = {objectives}"))
    line = PLAN[: PLAN.index("decoder_lm = [")].count("\n") + 1
    assert f"line {line}: {said}" in str(error.value)


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path, PLAN.replace("decoder_lm = [", "decoder_ml = [").replace('title = "BPE"', "title = 1"))
    assert "2 mistakes" in str(error.value)
    assert "there is no architecture decoder_ml." in str(error.value)
    assert "[vocabularies.bpe] title: a text is needed, and it is 1." in str(error.value)


def test_what_is_no_toml_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"matrix\.toml: .*line \d+"):
        read(tmp_path, PLAN.replace("[trained]", "[trained"))
    with pytest.raises(UserError, match=r"is no matrix: it has no matrix\.toml"):
        reading.read(tmp_path / "elsewhere" / plan.FILE_NAME)


def test_the_plans_of_this_repository_can_be_read() -> None:
    files = sorted(paths.EXPERIMENTS.glob(f"*/{plan.FILE_NAME}"))
    assert files
    for file in files:
        assert len(reading.read(file).cells()) >= 20
