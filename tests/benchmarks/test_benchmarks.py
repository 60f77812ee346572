"""`make bench`: rows, contestants in turn, tables and pages; and that contestants do the same job."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from benchmarks import __main__ as program
from benchmarks import growth, machine, own_step, page, start, step, step_plain_jax, step_products
from benchmarks.harness import (
    PEERS,
    Found,
    Goal,
    NotMeasuredError,
    Row,
    alternate,
    chosen,
    number,
    output_of,
    report_of,
)
from benchmarks.interop import made
from benchmarks.interop_t5x import theirs
from benchmarks.jobs import BYTE_OFFSET, END, JOBS, SEGMENTS, TEXT, Z_LOSS, Job
from t5xpg.base import environment
from t5xpg.data.batch import BatchSpec, validate
from t5xpg.exchange.huggingface.config import config_from_transformers
from t5xpg.exchange.huggingface.params import params_from_transformers
from t5xpg.experiment import assembly
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.losses import LossConfig, loss_and_metrics
from tests.refusals import assert_named, refused

FOUND = Found({"t5xpg": (3.0, 1.0, 2.0), "peer": (4.0, 4.0, 5.0)}, {"other": "not installed"})
ROW = Row(name="step", what="a step", unit="ms", fixed="float32", found=FOUND, goal=Goal(at_most=2.0))
PUBLISHED = page.read_machines()
DESCRIBED = {name: value for name, value in PUBLISHED[0].items() if name != "rows"}


def test_a_row_says_how_its_contestants_compare() -> None:
    assert ROW.contestants == ["t5xpg", "peer", "other"]
    assert [ROW.median(name) for name in ROW.contestants] == [2.0, 4.0, None]
    assert ROW.spread("t5xpg") == 1.0
    assert ROW.ratio("peer") == 2.0  # half the time is twice as good
    assert dataclasses.replace(ROW, better="higher").ratio("peer") == 0.5
    assert ROW.ratio("other") is None
    assert [number(value) for value in (12345.6, 99.96, 1.234, 0.01234)] == ["12,346", "100.0", "1.23", "0.0123"]
    assert dataclasses.replace(ROW, found=Found({"t5xpg": (1.0,)})).spread("t5xpg") is None
    assert_named(page.text([ROW]), ["reached", "2.00 x", "not installed"])


def test_goals() -> None:
    for goal, reached in (
        (Goal(at_most=2.0), True),
        (Goal(at_most=1.9), False),
        (Goal(at_least=2.0, against="peer"), True),
        (Goal(at_least=2.1, against="peer"), False),
        (Goal(at_least=2.0, against="other"), None),
        (None, None),
    ):
        assert dataclasses.replace(ROW, goal=goal).reached() is reached


def test_contestants_take_turns_and_one_that_fails_is_left_out() -> None:
    order: list[str] = []

    def contestant(name: str, fails_at: int = 9) -> Any:
        def once() -> float:
            order.append(name)
            if order.count(name) == fails_at:
                raise NotMeasuredError("it broke")
            return float(order.count(name))

        return once

    found = alternate({"a": contestant("a"), "b": contestant("b", 1), "c": contestant("c", 2)}, 3)
    assert order == ["a", "b", "c", "a", "c", "a"]
    assert found.values == {"a": (1.0, 2.0, 3.0), "c": (1.0,)}
    assert found.missing == {"b": "it broke", "c": "it broke"}


@pytest.mark.process
def test_a_contestant_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    code = 'import os; print("words"); print(\'{"x": "%s"}\' % os.environ.get("X"))'
    assert report_of(["-c", code], environment={"X": "1"}) == {"x": "1"}
    ended = "a.InductorError: C++ compile error\n\ng++ -I a b/c.h\ng++: error: b/c.h: No such file\n\nSet TORCH_LOGS=1"
    for text, options, named in (
        ("raise ValueError('broken')", {}, "failed: ValueError: broken"),
        (
            f"import sys; sys.exit({ended!r})",
            {},
            r"InductorError: C\+\+ compile error; g\+\+: error: b/c\.h: No such file$",
        ),
        ("import time; time.sleep(60)", {"seconds": 0.1}, "more than"),
        ("", {"python": tmp_path / "python"}, "bench-peers"),
    ):
        with pytest.raises(NotMeasuredError, match=named):
            output_of(["-c", text], **options)


def test_t5x_has_to_be_where_its_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "report_of", Mock(side_effect=NotMeasuredError(PEERS)))
    monkeypatch.setenv(step.T5X_PYTHON, "/no/such/python")
    with pytest.raises(NotMeasuredError, match="in no package registry"):
        step.report(step.T5X, [])


def test_the_python_of_another_program_may_be_older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(step.T5X_PYTHON, "python")
    run = Mock(return_value=Mock(returncode=0))
    monkeypatch.setattr(subprocess, "run", run)
    made("byt5-small", Path("python"), Path("scratch"))
    theirs("answer", "folder")
    programs = [Path(call.args[0][1]).name for call in run.call_args_list]
    assert programs == ["interop_transformers.py", "in_t5x.py"], "without options that it may lack"


def test_a_start_that_fails_leaves_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("measure_start", "measure_memory"):
        monkeypatch.setattr(start, name, Mock(side_effect=NotMeasuredError("it broke")))
    monkeypatch.setattr(start, "measure_command", lambda *words: 1.0)
    found = [row.found for row in start.rows(1)]
    assert [[*one.missing.values()] for one in found] == [["it broke"]] + [[]] * 2 + [["it broke"]] * 2


def test_results_are_the_rows_again_and_the_pages_show_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme, full, file = tmp_path / "README.md", tmp_path / "benchmarks.md", tmp_path / "bench" / "results.json"
    for name, value in {"REPOSITORY": tmp_path, "RESULTS": file, "README": readme, "PAGE": full}.items():
        monkeypatch.setattr(page, name, value)
    row = dataclasses.replace(ROW, what="caching a task")
    for where in (readme, full):
        where.write_text("before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n")
    for _ in range(2):  # the second time nothing changes
        page.publish([row, ROW], DESCRIBED)
        (written,) = page.read_machines(file)
        assert [page.from_json(one) for one in written["rows"]] == [row, ROW]
        for where, block in ((readme, page.main_block([written])), (full, page.full_block([written]))):
            assert where.read_text() == f"before\n{block}\nafter\n"
    assert "a step" not in readme.read_text(), "it is none of the main rows"
    other_kind = DESCRIBED | {"kind": "Intel | Xeon"}
    for described in (other_kind, DESCRIBED):  # the newest comes first
        page.publish([row], described)
        assert page.read_machines(file)[0]["kind"] == described["kind"]
        assert page.escape("Intel | Xeon") in full.read_text()
    assert len(page.read_machines(file)) == 2
    full.write_text("a page without markers")
    before = file.read_bytes(), readme.read_bytes()
    with refused("bench:begin"):
        page.publish([ROW], DESCRIBED)
    assert (file.read_bytes(), readme.read_bytes()) == before


def test_kinds_of_processors_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("model name : AMD EPYC\ncpu family : 25\nmodel : 17\nflags : fpu avx2 avx512f avx512_bf16\n" * 2)
    facts = environment.cpu_facts(file)
    assert machine.instructions(facts) == " (AVX2, AVX-512, bf16)"
    assert machine.instructions(environment.cpu_facts(tmp_path / "none")) == ""
    monkeypatch.setattr(environment, "cpu_facts", lambda: facts)
    here = environment.cpu_model()
    assert here == "AMD EPYC, family 25, model 17"
    # published before families were named: any of that name, as then
    published = (here, "AMD EPYC", "AMD EPYC, family 26, model 2", "AMD")
    assert [environment.is_same_cpu(one, here) for one in published] == [True, True, False, False]


def test_the_pages_show_what_was_published() -> None:
    blocks = {page.README: page.main_block(PUBLISHED), page.PAGE: page.full_block(PUBLISHED)}
    for file, block in blocks.items():
        assert f"\n{block}\n" in file.read_text(encoding="utf-8")
    rows = [line for line in blocks[page.README].splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(page.MAIN_ROWS) <= 2 + 8


def test_rows_are_chosen_by_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen([], program.MODULES, "ROWS") == list(program.MODULES)
    assert chosen(["loop", "step"], program.MODULES, "ROWS") == ["step", "loop"]
    assert all((Path(program.__file__).parent / f"{name}.py").is_file() for name in program.MODULES)
    for arguments, message in (["stepp"], "Did you mean step?"), (["--repeats=0"], "REPEATS=0"):
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        assert program.main() == 1
        assert message in capsys.readouterr().err


TINY = Job(emb=8, mlp=12, inputs=24, targets=12, heads=2, head_dim=3, encoder_layers=1, decoder_layers=2, batch=3)


@pytest.mark.parametrize("job", [TINY, JOBS["small"]], ids=["tiny", "small"])
def test_batches_are_packed_text(job: Job) -> None:
    batch = job.batches()[0]
    validate(batch, BatchSpec(job.batch, {"inputs": job.inputs, "targets": job.targets}, True, job.vocabulary))
    text = TEXT.read_bytes()
    for row in range(job.batch):
        for segment in range(1, SEGMENTS + 1):
            ids = [
                batch[f"{name}_tokens"][row][batch[f"{side}_segment_ids"][row] == segment]
                for name, side in (("encoder_input", "encoder"), ("decoder_target", "decoder"))
            ]
            assert all(part[-1] == END for part in ids)
            joined = np.concatenate([part[:-1] for part in ids]) - BYTE_OFFSET
            assert bytes(joined.astype(np.uint8)) in text  # the targets go on where the inputs end
            inputs = batch["decoder_input_tokens"][row][batch["decoder_segment_ids"][row] == segment]
            np.testing.assert_array_equal(inputs, [0, *ids[1][:-1]])
    assert all(np.array_equal(again[name], batch[name]) for again in job.batches()[:1] for name in batch)


def test_plain_jax_has_the_loss_that_we_have() -> None:
    config = config_from_transformers(TINY.settings())
    weights, batch = TINY.weights(), TINY.batches()[0]
    token_bytes = np.ones(TINY.vocabulary, np.int32)

    @jax.jit
    def ours(params: Any, batch: Any) -> jax.Array:
        logits = EncoderDecoderModel(config).logits(params, batch)
        return loss_and_metrics(logits, batch, LossConfig(z_loss=Z_LOSS), token_bytes)[0]

    theirs = jax.jit(lambda weights, batch: step_plain_jax.loss_of(weights, batch, TINY))
    expected = float(ours(params_from_transformers(weights, config), batch))
    np.testing.assert_allclose(float(theirs(weights, batch)), expected, rtol=1e-5)


def test_jobs_count_the_operations_that_the_model_counts() -> None:
    for job in [*JOBS.values(), *growth.LENGTHS, *growth.VOCABULARIES]:
        model = EncoderDecoderModel(config_from_transformers(job.settings()))
        assert job.flops() == job.batch * model.flops_per_example({"inputs": job.inputs, "targets": job.targets})
        assert job.tokens == job.batch * (job.inputs + job.targets)
        assert job.inputs + job.targets < len(TEXT.read_bytes())


def test_the_floor_has_the_products_of_the_step() -> None:
    traced = assembly.assemble(own_step.experiment(TINY)).traced_train_step()
    found = list(step_products.products(traced.jaxpr))
    assert TINY.flops() <= sum(one.flops for one in found) < 1.1 * TINY.flops()
    factors = step_products.factors_of(found)
    compiled = jax.jit(step_products.program(found)).lower(factors).compile()
    assert compiled.as_text().count(" dot(") == len(found), "none is left out, and none is computed once for two"
    assert np.isfinite(compiled(factors)).all()


def test_products_in_loops_count_as_often_as_they_run() -> None:
    def looped(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda y, _: (y @ x, None), x, None, length=3)[0]

    (one, *others) = step_products.products(jax.make_jaxpr(looped)(np.ones((4, 4), np.float32)).jaxpr)
    assert [one, one] == others
    assert one.flops == 2 * 4**3


def test_growth_is_computed_from_the_sizes_that_could_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(arguments: list[str], **_: object) -> dict[str, float]:
        job, settings = map(json.loads, arguments[3:])
        if job["inputs"] == 8192 and "global_block" in settings:
            raise NotMeasuredError("no memory")
        tokens = job["inputs"] + job["targets"]
        return {"seconds": 2e-3 * tokens, "memory": 1e9, "flops": 3.0 * job["vocabulary"], "tokens": tokens}

    monkeypatch.setattr(growth, "report_of", measure)
    time, memory, vocabulary = growth.rows(2)
    assert time.found.values == {"windows": (1.0, 1.0)}
    assert list(time.found.missing) == list(memory.found.missing) == ["windows and global tokens (LongT5)"]
    assert memory.found.values["windows"] == pytest.approx([1280 / 8448] * 2)
    assert vocabulary.found.values["t5xpg"] == pytest.approx([384 / 32768] * 2)
    assert all(row.reached() for row in (time, memory, vocabulary))
