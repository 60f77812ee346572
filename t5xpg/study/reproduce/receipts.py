"""Receipts of `make verify-claim`: the outcome of repeating a published run, as a JSON object."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError, nearest, printable
from t5xpg.base.files import sha256_of_file
from t5xpg.run.provenance import commit_of
from t5xpg.run.report import RESULTS_FILE
from t5xpg.run.results import read_results
from t5xpg.study.reproduce.comparison import DIFFERENT, NOT_COMPARED, SAME, WITHIN

FORMAT = 1


def verdict(reproduction: Mapping[str, Any]) -> str:
    """The worst verdict of the numbers in a reproduction.json."""
    verdicts = {row["verdict"] for row in reproduction["numbers"]}
    return next((one for one in (DIFFERENT, WITHIN, SAME) if one in verdicts), NOT_COMPARED)


def check(file: Path) -> int:
    """Print the verdict of a receipt on the results that are published here.

    Returns 0, or 1 where the numbers were different. Raises UserError for a receipt of other results, or of an
    experiment that is not here.
    """
    receipt = read(file)
    claim, name, known = receipt["claim"], receipt["experiment"], paths.experiments()
    if name not in known:
        raise UserError(f"{file} is of the experiment {name!r}, which is not here.{nearest(name, known)}")
    published = known[name] / RESULTS_FILE
    results = read_results(published) if published.exists() else {}
    if not results or (claim["results"], claim["commit"]) != (sha256_of_file(published), commit_of(results)):
        raise UserError(
            f"{file} is of results of {name} that are not those published here: sha256 {claim['results'][:12]}…, of "
            f"commit {claim['commit'][:12]}. Check out a commit that has them: git log -- {published}"
        )
    steps = receipt["reproduction"]["steps"]
    if receipt["verdict"] == NOT_COMPARED or not 1 <= steps <= results["steps"]:
        raise UserError(
            f"{file} shows nothing: the verdict is {receipt['verdict']!r}, after {steps:,} of {results['steps']:,} "
            "steps. Expected numbers that were compared after at least one step."
        )
    lines = (
        f"verdict    {receipt['verdict']}: {name}, {steps} of {results['steps']} steps",
        f"claim      {paths.shown(published)} of commit {claim['commit'][:12]}",
        f"found by   {receipt['by']}, {receipt['ended']}",
    )
    print(printable("\n".join(lines)), flush=True)
    return 1 if receipt["verdict"] == DIFFERENT else 0


def read(file: Path) -> dict[str, Any]:
    """Read a receipt. Raises UserError for a file that is no receipt, or not as it was written."""
    text = file.read_bytes()
    try:
        receipt: dict[str, Any] = json.loads(text)
        # refuses also a name that stands twice: some readers would see its first value, others its last
        is_valid = text == (json.dumps(receipt, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
        claim, reproduction = receipt["claim"], receipt["reproduction"]
        texts = [claim["results"], claim["commit"], *(receipt[name] for name in ("experiment", "ended", "by"))]
        is_valid &= receipt["format"] == FORMAT and all(isinstance(text, str) for text in texts)
        is_valid &= type(reproduction["steps"]) is int
        is_valid &= receipt["verdict"] == verdict(reproduction) and reproduction["of"] == claim["results"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise UserError(f"{file} is not a receipt of make verify-claim, or was changed on its way.")
    return receipt
