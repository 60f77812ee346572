"""A plan from end to end: a step compiled for devices that are not there, beside what is known of it otherwise."""

import json
from pathlib import Path

import pytest

from t5xpg.check import plan as planning
from t5xpg.check.plan import memory
from t5xpg.check.plan.operations import Operation
from t5xpg.experiment import config
from tests.refusals import assert_named, refused
from tests.workplace import EXPERIMENT, Workplace

pytestmark = pytest.mark.process

MADE_SMALL = ["DROPOUT_RATE=0.0", "BATCH_SIZE=16", "NUM_MICROBATCHES=2", "EMA_DECAY=0.99"]
GIVEN = [*(f"--gin.{one}" for one in MADE_SMALL), "--mesh=data=4,model=2"]


def run_plan(folder: Path, *arguments: str, code: int = 0, **variables: str) -> str:
    """What `t5xpg plan` prints, in a process of its own: this one's JAX has its devices."""
    return Workplace(folder, fast_compilation=False, variables=variables).run("plan", *arguments, code=code)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict]:
    """The experiment, and its plan on 4 x 2 devices as it is written, with a module that makes an array on its own."""
    folder = tmp_path_factory.mktemp("a plan")
    gin, output = folder / "small.gin", folder / "plan.json"
    (folder / "mine.py").write_text("import jax.numpy as jnp\nONE = jnp.float32(1)\n")
    gin.write_text(EXPERIMENT.replace("from t5xpg", "import mine\nfrom t5xpg", 1))
    run_plan(folder, str(gin), *GIVEN, "--device=v5e", f"--output={output}")
    gin.write_text(EXPERIMENT)
    return str(gin), json.loads(output.read_text())


def test_state_on_each_device(planned) -> None:
    """Split over the model's axis: embedding, output, attention and MLP; on every device: norms and position biases."""
    gin, plan = planned
    model = config.load(gin, MADE_SMALL).experiment.model
    whole = 7 * 32 + 2 * (2 * 32)  # scales of RMS norms; relative positions, whose 2 heads are split
    split = model.num_params - whole + 2 * (2 * 32)
    parameters = 4 * (7 * 32 + split // 2)
    kinds = ("parameters", "optimizer", "gradients", "activations", "batch")
    assert sum(plan["memory"][kind] for kind in kinds) == pytest.approx(plan["memory"]["total"], abs=16)
    assert plan["memory"]["parameters"] == 2 * parameters  # their average, too
    assert plan["memory"]["optimizer"] == pytest.approx(2 * parameters, abs=16)  # AdamW's two moments, and counts
    assert plan["memory"]["gradients"] == 2 * parameters  # added up over microbatches
    assert plan["step"]["mesh"] == {"data": 4, "model": 2}


def test_operations(planned) -> None:
    gin, plan = planned
    experiment = config.load(gin, MADE_SMALL).experiment
    flops = 16 * experiment.model.flops_per_example(experiment.lengths)
    assert plan["flops"]["model"] == flops
    # the program's own: what both halves of the model do twice, and biases by position, are little
    assert flops <= 8 * plan["flops"]["products"] < 1.1 * flops
    # which XLA's own analysis, counting a loop over two microbatches once, has but half of
    assert plan["flops"]["cost_analysis"] < 0.75 * plan["flops"]["products"]


def test_collectives(planned) -> None:
    _, plan = planned
    rows = {(row["kind"], *row["axes"]): row for row in plan["collectives"]}
    gradients = rows["all-reduce", "data"]
    assert gradients["group"] == 4
    assert gradients["bytes"] >= plan["memory"]["parameters"] / 2
    assert gradients["sent_near"] == pytest.approx(2 * 3 / 4 * gradients["bytes"])
    assert gradients["sent_far"] == 0
    assert rows["all-reduce", "model"]["times"] >= 2 * 2 * 3  # of both microbatches, forward and backward, three layers
    assert plan["step"]["unknown_loops"] == 0


def test_time(planned) -> None:
    _gin, plan = planned
    time, device = plan["time"], plan["device"]
    assert (device["name"], device["domain"]) == ("tpu-v5e", 8)
    assert time["step"] == pytest.approx(time["compute"] + time["memory"] + time["waiting"] + time["late"])
    assert time["waiting"] > 0
    assert time["mfu"] == pytest.approx(plan["flops"]["model"] / time["step"] / 8 / 197e12)
    assert time["rows_per_second"] == pytest.approx(16 / time["step"])
    assert plan["memory"]["verdict"] == "fits"


def test_what_does_not_fit_is_said_and_is_no_success(planned, monkeypatch, capsys) -> None:
    gin, plan = planned
    found = {
        **plan["step"], "model_flops": 1e12, "flops": plan["flops"], "bytes": 1, "collectives": {},
        "operations": {Operation(10**12, 10**6): 1}, "memory": {**plan["memory"], "total": 150e9},
    }  # fmt: skip
    seen = []
    monkeypatch.setattr(planning, "_simulate", lambda devices: None)
    monkeypatch.setattr(planning, "step_facts", lambda _, *, fuses: seen.append(fuses) or found)
    assert planning.plan(gin, [], [], device="h100") == 1
    printed = capsys.readouterr().out
    assert_named(printed, [memory.DOES_NOT_FIT, "NUM_MICROBATCHES"])
    assert planning.plan(gin, [], [], device="h200", as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["verdict"] == "may not fit"
    monkeypatch.setattr(planning.device_table, "measured_cpu", lambda *_: planning.device_table.find_device("h200"))
    planning.plan(gin, [], [], device="cpu")
    assert seen == [True, True, False]
    h100 = planning.device_table.find_device("h100")  # 8 are joined by links
    for mesh, domain in (({"data": 16}, 8), ({"slice": 4, "data": 4}, 4)):
        assert planning.make_plan({**found, "devices": 16, "mesh": mesh}, h100)["device"]["domain"] == domain


def test_this_machine_is_measured(planned, tmp_path: Path) -> None:
    """After the program was compiled for simulated devices, as for any others."""
    gin, plan = planned
    output = tmp_path / "plan.json"
    # a cache that knows no peak
    run_plan(Path(gin).parent, gin, *GIVEN, "--device=cpu", f"--output={output}", XDG_CACHE_HOME=str(tmp_path))
    found = json.loads(output.read_text())
    assert found["device"]["sources"] == ["measured"]
    assert (found["flops"], found["bytes"]) == (plan["flops"], plan["bytes"])


def test_mistakes(planned) -> None:
    gin, _ = planned
    for overrides, device, *named in (
        ([], "h10", "Did you mean h100"),
        (["DTYPE='float16'"], "v5e", "DTYPE", "float32"),
    ):
        with refused(*named):
            planning.plan(gin, overrides, [], device=device)
    assert "3 devices" in run_plan(Path(gin).parent, gin, "--gin.BATCH_SIZE=3", "--mesh=model=3", code=1)
