"""How fast a device is: the compiled update, beside torch.compile and beside its plan; and decoding.

Parts of `make gpu`: generators of rows. A row that comes again takes the place of the earlier one.
"""

import functools
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import decoding as search
from benchmarks.gpu_device import Conditions, row
from benchmarks.harness import PEERS_PYTHON, Found, Goal, NotMeasuredError, Row, alternate_reports, output_of, say
from benchmarks.jobs import JOBS
from benchmarks.step import COMPILED, OURS, described
from t5xpg.base.files import read_json
from t5xpg.check.plan.devices import DEVICES, THIS_CPU

DTYPE = "bfloat16"
BASE, SMALL = "t5_1_1_base", "small"  # the jobs that are measured beside torch.compile
STEPS, SMALL_STEPS = 20, 2
FIRST_MICROBATCHES = {BASE: 1, "t5_1_1_small": 1, "t5_1_1_large": 4}  # twice as many where these do not fit
SECONDS, MFU, TIMES_AS_GOOD = 0.11, 50.0, 1.4  # goals of base: on an H100; of a device's peak; against torch.compile
OUT_OF_MEMORY = re.compile("RESOURCE_EXHAUSTED|OUT_OF_MEMORY|out of memory", re.IGNORECASE)
# The experiment that has the step of a job, with the packing, dtype and optimiser of PLAN_GIN.
PLANNED = {BASE: "t5_1_1_base_c4", SMALL: "optimizers_tiny"}
PLAN_GIN = ["--gin.PACK=True", f"--gin.DTYPE='{DTYPE}'", "--gin_file=gin/optimizers/adamw.gin"]
OFF = 15.0  # goal: the largest error of a plan, in %


def step(given: Conditions) -> Iterator[Row]:
    """The compiled update: seconds, share of the peak, tokens a second, memory; beside torch.compile's."""
    for job, microbatches in ({SMALL: 1} if given.small else FIRST_MICROBATCHES).items():
        say(f"  {job}: {given.left:.0f} s left")  # raises where none are left: the job is not begun and has no rows
        steps = SMALL_STEPS if given.small else STEPS
        options = ["step", "--job", job, "--dtype", DTYPE, "--repeats", str(steps)]
        contestants = {OURS: ["benchmarks.ours", *options]}
        if job in (BASE, SMALL):
            cuda = ["--device", "cpu" if given.small else "cuda", "--option", "default"]
            contestants[COMPILED] = ["benchmarks.in_transformers", *options, *cuda]
        reports: dict[str, dict[str, Any]] = {}
        missing: dict[str, str] = {}
        for number, (name, arguments) in enumerate(contestants.items()):
            say(f"  {job}, {name}: compiling, then {steps} steps, in ms a step")
            fitting = functools.partial(_fitting, given, len(contestants) - number, arguments, microbatches)
            found, report = alternate_reports({name: fitting}, "ms", 1)
            reports, missing = reports | report, {**missing, **found.missing}
            yield from _step_rows(given, job, reports, missing)


def _fitting(given: Conditions, share: int, arguments: list[str], microbatches: int) -> dict[str, Any]:
    """What a contestant reports; the microbatches are doubled until they fit the memory. share: see `share`."""
    given = given.share(share)
    module, _, _, job, *_ = arguments
    python = PEERS_PYTHON if module.endswith("transformers") and PEERS_PYTHON.exists() else sys.executable
    while True:
        try:
            report = given.run(*arguments, "--microbatches", str(microbatches), python=python)
            return report | {"microbatches": microbatches}
        except NotMeasuredError as reason:
            microbatches *= 2
            if not OUT_OF_MEMORY.search(str(reason)) or microbatches > JOBS[job].batch:
                raise
            say(f"  does not fit: now {microbatches} microbatches")


def _step_rows(
    given: Conditions, name: str, reports: Mapping[str, Mapping[str, Any]], missing: Mapping[str, str]
) -> Iterator[Row]:
    """What has been found so far: ours, then torch.compile."""
    job, is_base = JOBS[name], name == BASE
    peak = given.device["published_flops"][DTYPE] or given.device["measured_flops"][DTYPE]

    def found(quantity: Callable[[float], float]) -> Found:
        """A quantity of each step, from its milliseconds."""
        return Found({one: [*map(quantity, report["each_ms"])] for one, report in reports.items()}, missing)

    kept = {
        one: {fact: value for fact, value in report.items() if fact not in ("each_ms", "gradient_norms")}
        for one, report in reports.items()
    }
    limit = Goal(at_most=SECONDS) if is_base and "H100" in given.device["kind"] else None
    alone, is_compared = {OURS: OURS}, is_base and COMPILED in {*reports, *missing}
    what = f"training step, {name}, {described(job)}"
    fixed = f"{DTYPE}, parameters in float32; AdamW; z-loss; packed masks; dropout 0; the same weights and batches"
    yield row(
        "step", what, "s", found(lambda ms: ms / 1000).renamed(alone), fixed=fixed, goal=limit,
        facts={"note": _note(reports), "job": name, "reports": kept},
    )  # fmt: skip
    yield row(
        "step", f"MFU of {what}", "%", found(lambda ms: 1e5 * job.flops() / ms / peak).renamed(alone),
        fixed=fixed, better="higher", goal=Goal(at_least=MFU) if is_base else None,
    )  # fmt: skip
    yield row(
        "step", f"padded tokens of {what}", "tokens/s", found(lambda ms: 1000 * job.tokens / ms),
        fixed=fixed, better="higher", goal=Goal(at_least=TIMES_AS_GOOD, against=COMPILED) if is_compared else None,
    )  # fmt: skip


def _note(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Microbatches, memory and time to compile of each contestant, as far as it tells."""
    notes = []
    for name, report in reports.items():
        facts = [f"{report['microbatches']} microbatch{'es' if report['microbatches'] > 1 else ''}"]
        if memory := report.get("device_memory"):
            facts.append(f"{memory / 1e9:.1f} GB of the device at most")
        if seconds := report.get("compile_seconds"):
            facts.append(f"compiled in {seconds:.0f} s")
        notes.append(f"{name}: {', '.join(facts)}")
    return "; ".join(notes)


def plan(given: Conditions) -> Iterator[Row]:
    """What `make plan` predicts of time and memory, beside what the part `step` has measured."""
    job = SMALL if given.small else BASE
    rows = [one for one in given.found.get("step", ()) if one.facts.get("job") == job]
    measured = rows[0].facts["reports"].get(OURS) if rows else None
    if measured is None:
        raise NotMeasuredError(f"there is nothing to compare with: `make gpu PARTS=step` has not measured {job} yet")
    say(f"  {PLANNED[job]}: planning")
    planned = _planned(given, PLANNED[job], measured["microbatches"])
    pairs = {"time of a step (s)": (planned["time"]["step"], measured["ms"] / 1000)}
    if measured["device_memory"]:
        pairs["memory (GB)"] = (planned["memory"]["total"] / 1e9, measured["device_memory"] / 1e9)
    for what, (predicted, found) in pairs.items():
        error = 100 * (predicted / found - 1)
        note = f"predicted {predicted:.3g}, measured {found:.3g}: {error:+.0f}%"
        say(f"  {what}: {note}")
        yield row(
            "plan", f"`make plan` against the measured step of {job}: {what}", "% off", abs(error),
            fixed=f"{measured['microbatches']} microbatches", goal=Goal(at_most=OFF),
            facts={"note": note, "plan": planned},
        )  # fmt: skip


def _planned(given: Conditions, experiment: str, microbatches: int) -> dict[str, Any]:
    """The plan of `make plan` for the device, even if the job does not fit the device."""
    words = set(re.split("[^a-z0-9]+", given.device["kind"].lower()))
    names = [THIS_CPU] if given.small else [one.name for one in DEVICES if words.issuperset(one.name.split("-"))]
    if not names:
        raise NotMeasuredError(f"`make plan` has no figures of a {given.device['kind']}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        arguments = [experiment, *PLAN_GIN, f"--gin.NUM_MICROBATCHES={microbatches}"]
        try:
            output_of(
                ["-m", "t5xpg", "plan", *arguments, f"--device={names[0]}", "--devices=1", f"--output={file}"],
                seconds=given.left,
            )
        except NotMeasuredError:
            if not file.exists():
                raise
        return dict(read_json(file))


def decoding(given: Conditions) -> Iterator[Row]:
    """Greedy decoding and beam search, tokens a second."""
    name = search.TINY if given.small else f"decoding, {BASE}"
    calls = 1 if given.small else 5
    for beams in (1, search.BEAMS):
        options = ["decoding", "--job", name, "--repeats", str(calls), "--beams", str(beams), "--dtype", DTYPE]
        what = "greedy decoding" if beams == 1 else f"beam search with {beams} beams"
        say(f"  {what}: compiling, then {calls} batches, in tokens a second")
        decoded = functools.partial(given.run, "benchmarks.ours", *options)
        found, _ = alternate_reports({"t5xpg": decoded}, "tokens_per_second", 1)
        yield row(
            "decoding", f"{what}, {search.described(JOBS[name])}", "tokens/s", found, better="higher",
            fixed=f"{DTYPE}; random weights; encoding counted",
        )  # fmt: skip
