"""An imported checkpoint is evaluated and asked as a run is, by its name."""

import json

import pytest

from tests.small_models import FAMILIES
from tests.workplace import Workplace
from tests.written_evaluations import newest

pytestmark = pytest.mark.process

BYT5 = FAMILIES / "byt5"
TASK = "--gin.MIXTURE_OR_TASK_NAME=small_span_corruption_byt5"
READ = ("--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 32}", "--gin.USE_CACHED_TASKS=False")


def test_it_is_used_by_its_name(workplace: Workplace) -> None:
    workplace.run("import", str(BYT5), "--name=taken")
    run = workplace.folder / "runs" / "taken"
    # its own task is another one: any that has its vocabulary can be measured
    workplace.run("eval", "taken", TASK, *READ)
    measured = newest(run)
    assert (measured.record["step"], measured.record["task"]) == (0, "small_span_corruption_byt5")
    samples = json.loads(measured.samples_json.read_text())
    assert all("<extra_id_0>" in sample["input"] for sample in samples)
    other = ("eval", "taken", "--gin.MIXTURE_OR_TASK_NAME=small_span_corruption", *READ)
    workplace.refused(*other, words=["vocabulary", "size 259", "384", "extra_ids 0"])
    for prompt in ("The <extra_id_0> sees", "without a blank"):
        assert "prediction" in workplace.run("infer", "taken", f"--prompt={prompt}")
