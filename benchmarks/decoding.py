"""Decoding, greedily and with four beams: ours beside `generate` of transformers, on the same weights."""

import functools
from typing import Any

from benchmarks.harness import PEERS_PYTHON, Goal, Row, alternate_reports, report_of
from benchmarks.jobs import JOBS, Job

OURS, EAGER, COMPILED = "t5xpg", "transformers", "transformers, torch.compile"
BEAMS = 4
TINY, SMALL, FEW_ROWS = "decoding, tiny", "decoding, small", "decoding, small, 8 rows"
CALLS = {TINY: 5, SMALL: 1, FEW_ROWS: 1}
REPEATS = {TINY: 2, SMALL: 1, FEW_ROWS: 1}
SEARCHES = ((TINY, 1), (SMALL, 1), (TINY, BEAMS), (FEW_ROWS, BEAMS))


def rows(repeats: int | None) -> list[Row]:
    """Tokens a second, encoding included; with beams, only tokens of the best beam count."""
    return [row(name, beams, repeats) for name, beams in SEARCHES]


def row(name: str, beams: int, repeats: int | None) -> Row:
    job = JOBS[name]
    options = ["decoding", "--job", name, "--repeats", str(CALLS[name]), "--beams", str(beams)]
    contestants = {OURS: functools.partial(report_of, ["-m", "benchmarks.ours", *options])}
    for contestant, option in ((EAGER, "eager"), (COMPILED, "compiled"))[: 2 if beams == 1 else 1]:
        arguments = ["-m", "benchmarks.in_transformers", *options, "--option", option]
        contestants[contestant] = functools.partial(report_of, arguments, python=PEERS_PYTHON)
    found, reports = alternate_reports(contestants, "tokens_per_second", repeats or REPEATS[name])
    search = "greedy decoding" if beams == 1 else f"beam search with {beams} beams"
    return Row(
        name="decoding", what=f"{search}, {described(job)}", unit="tokens/s", better="higher", found=found,
        fixed=fixed(job, beams), facts=facts(reports),
        goal=Goal(at_least=2.0, against=COMPILED if COMPILED in contestants else EAGER),
    )  # fmt: skip


def facts(reports: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Versions, and how many rows of a peer's answer equal ours, token for token."""
    answers = {name: found["answer"] for name, found in reports.items()}
    ours = answers.get(OURS, [])
    same = {
        name: sum(mine == other for mine, other in zip(ours, theirs, strict=True))
        for name, theirs in answers.items()
        if name != OURS and ours
    }
    return {
        "rows": len(ours),
        "rows_equal_to_ours": same,
        "tokens": {name: found["tokens"] for name, found in reports.items()},
        "versions": {name: found["versions"] for name, found in reports.items() if "versions" in found},
    }


def described(job: Job) -> str:
    layers = f"{job.encoder_layers}+{job.decoder_layers} layers"
    return f"emb {job.emb}, {layers}, batch {job.batch} x {job.inputs} inputs, {job.targets} new tokens"


def fixed(job: Job, beams: int) -> str:
    penalty = "; transformers' length penalty of 1.0 and its rule for stopping" if beams > 1 else ""
    return (
        f"mlp {job.mlp}, {job.heads} heads of {job.head_dim}, {job.vocabulary} ids; float32; same weights and inputs; "
        f"encoding counted; all cores{penalty}"
    )
