"""`make verify-claim`: a published run, repeated by a stranger: clone, install, reproduce, compare, and a receipt.

The clone is of the commit that the results name. So the code that made them runs, through its own `make install` and
`make reproduce`.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5xpg.base import digests, environment, paths
from t5xpg.base.errors import UserError, nearest, printable
from t5xpg.base.files import copy_file, directory_atomically, json_object_if_any, remove, sha256_of_file, write_json
from t5xpg.base.paths import shown
from t5xpg.experiment.config import find_experiment
from t5xpg.run.directory import RunDirectory
from t5xpg.run.provenance import commit_of, counting_starts
from t5xpg.run.report import RESULTS_FILE
from t5xpg.run.results import read_results
from t5xpg.study import kinds
from t5xpg.study.reproduce.comparison import DIFFERENT, NOT_COMPARED, SAME, WITHIN
from t5xpg.study.reproduce.reproduce import OUTCOME_FILE

RECEIPT_FILE, FORMAT = "receipt.json", 1
# Variables of this Make and this program, which would mislead Make and the program in the clone.
_DROPPED = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "T5XPG_REVISION"}


def verify(name: str, folder: Path, *, steps: int | None = None) -> int:
    """Repeat the published run of an experiment in a clone below `folder`, and write a receipt there.

    steps: how many updates to train; None for all. An interrupted verification continues, a finished one starts anew.
    Returns 0, or 1 where the numbers are different or `make reproduce` wrote no outcome. Raises UserError where the
    results are not of a single commit without changes, and where that commit is not in this checkout.
    """
    name, gin_file = find_experiment(name)
    kinds.require_one_run(gin_file.parent)
    published = gin_file.parent / RESULTS_FILE
    commit = commit_of(read_results(published))
    if commit is None:
        raise UserError(f"{shown(published)} is not of one commit without changes: there is nothing to clone.")
    start = _now()
    checkout, receipt = folder.absolute() / "checkout", folder / RECEIPT_FILE
    run = RunDirectory(checkout / "runs" / f"{name}_reproduced")
    _clone(commit, checkout)
    if (run.path / OUTCOME_FILE).exists():
        remove(run.path)
    remove(receipt)
    copy_file(published, checkout / "experiments" / name / RESULTS_FILE)  # committed later than the code that made it
    variables = [f"EXP={name}", f"RUN={run.path}", *([] if steps is None else [f"STEPS={steps}"])]
    _ = _make(checkout, "install") or _make(checkout, "reproduce", *variables)
    outcome = json_object_if_any(run.path / OUTCOME_FILE)  # Make's exit code is 2 for every error
    if outcome.get("of") != (digest := sha256_of_file(published)):
        print(
            "no receipt, as nothing was compared. Your own files that the experiment needs belong in "
            f"{shown(checkout)}. The same command goes on.",
            flush=True,
        )
        return 1
    record = run.read()
    begun = counting_starts(record)[-1]
    files = digests.digests(run.path, [run.metrics_jsonl.name, run.batches.name])
    content = {
        "format": FORMAT,
        "experiment": name,
        "verdict": verdict(outcome),
        "claim": {"results": digest, "commit": commit, "repository": _repository()},
        "reproduction": outcome,
        "sha256": {**files, "data": record["identity"].get("data")},
        "versions": begun["versions"],
        "hardware": {**begun["host"], "devices": begun["devices"]},
        "started": start,
        "ended": _now(),
        "by": f"{environment.git('config', 'user.name') or ''} <{environment.git('config', 'user.email') or ''}>",
    }
    write_json(receipt, content)
    print(f"{content['verdict']}; receipt: {shown(receipt)}", flush=True)
    return 1 if content["verdict"] == DIFFERENT else 0


def _clone(commit: str, checkout: Path) -> None:
    if checkout.exists():
        if environment.git_state(checkout) != {"commit": commit, "clean": True}:
            raise UserError(f"{shown(checkout)} is not commit {commit[:12]} as it was: delete it, or name an OUTPUT=…")
        return
    print(f"cloning commit {commit[:12]} into {shown(checkout)}", flush=True)
    with directory_atomically(checkout) as new:
        output = environment.git("clone", "--quiet", "--no-checkout", str(paths.REPOSITORY), str(new))
        if output is None or environment.git("checkout", "--quiet", commit, folder=new) is None:
            shallow = environment.git("rev-parse", "--is-shallow-repository") == "true"
            raise UserError(
                f"Commit {commit}, of which the results are, is not in this checkout. "
                f"Type: git fetch {'--unshallow' if shallow else f'origin {commit}'}"
            )
        # git ignores there, too, the files that today's experiments ask their users for
        copy_file(paths.REPOSITORY / ".gitignore", new / ".git" / "info" / "exclude")


def _make(checkout: Path, *arguments: str) -> int:
    """The exit code of Make in the clone; its output is ours."""
    print(f"make {arguments[0]}, in {shown(checkout)}", flush=True)
    env = {name: value for name, value in os.environ.items() if name not in _DROPPED and not name.startswith("GIT_")}
    with subprocess.Popen(["make", *arguments], cwd=checkout, env=env) as process:
        try:
            return process.wait()
        except BaseException:  # asked to stop: training is asked too, and saves its step
            process.terminate()
            process.wait()
            raise


def _repository() -> str | None:
    """The address that the repository was cloned from, without name and password; None for a folder."""
    address = environment.git("remote", "get-url", "origin") or ""
    return re.sub(r"//[^/@]*@", "//", address) if re.match(r"(?!file:)[\w.@+-]+:", address) else None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


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
