"""The sources of numbers: text, vocabulary, cache, run, checkpoint, export, each with its digest; and the history of
`make bench`."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t5xpg.base import paths
from t5xpg.base.environment import git
from t5xpg.base.files import json_object_if_any, sha256_of_file
from t5xpg.data.vocab.files import FILES
from t5xpg.data.vocab.record import find_vocabularies
from t5xpg.run.checkpoint.folders import DIGESTS, saved_steps
from t5xpg.run.directory import RunDirectory
from t5xpg.site.records import SiteExperiment

SAME, STALE, ABSENT = "same here", "changed here", "not here"
_BENCH = ("benchmarks/results/results.json", "bench/results.json")  # in git's history under both names


@dataclass(frozen=True)
class Link:
    """One source of a number. digest: hex, or "" if none is recorded. state: SAME, STALE or ABSENT, compared
    with what this machine has; "" if it is not compared. A link is stale if it changed, or one before it."""

    what: str
    name: str
    digest: str = ""
    state: str = ""


def chain_of(shown: SiteExperiment) -> Sequence[Link]:
    """From the text to the export of an experiment that has published a run."""
    assert shown.published is not None
    results = shown.published.results
    links = [*_text(results), *_vocabulary(results), *_cache(results)]
    git, run = results.get("git") or {}, RunDirectory(paths.runs_directory() / shown.name)
    batches = (results.get("batches") or {}).get("sha256") or [""]
    links.append(Link("run", f"{results['steps']:,} updates of commit {str(git.get('commit'))[:12]}", batches[-1]))
    return [*links, *_checkpoints(run), *_exports(run)]


def _text(results: Mapping[str, Any]) -> Iterator[Link]:
    data = results["identity"].get("data") or {}
    name = data.get("dataset")
    splits = json_object_if_any(paths.data_directory() / str(name) / "manifest.json").get("splits", {})
    for split, digest in (data.get("sha256") or {}).items():
        local_digest = splits.get(split, {}).get("sha256")
        state = ABSENT if local_digest is None else SAME if local_digest == digest else STALE
        yield Link("text", f"{name}, {split}", digest, state)


def _vocabulary(results: Mapping[str, Any]) -> Iterator[Link]:
    vocabulary = results["identity"].get("vocabulary") or {}
    digest = vocabulary.get("model_sha256", "")
    described = f"{vocabulary.get('kind')}, {vocabulary.get('size')} pieces"
    if not digest:
        yield Link("vocabulary", described)
        return
    task = str((results["identity"].get("data") or {}).get("task"))
    folders = [place for name, place in find_vocabularies(paths.data_directory()).items() if task.endswith(f"_{name}")]
    local_digests = {sha256_of_file(path) for place in folders for path in place.iterdir() if path.name in FILES}
    yield Link("vocabulary", described, digest, SAME if digest in local_digests else STALE if local_digests else ABSENT)


def _cache(results: Mapping[str, Any]) -> Iterator[Link]:
    if cache := results["identity"].get("cache"):
        text = json.dumps(cache, sort_keys=True)
        yield Link("cache", str(cache.get("task", "of several tasks")), hashlib.sha256(text.encode()).hexdigest())


def _checkpoints(run: RunDirectory) -> Iterator[Link]:
    """The checkpoints of this machine's run with the name of the experiment."""
    for step in saved_steps(run.checkpoints):
        if (sums := run.checkpoints / str(step) / DIGESTS).exists():
            yield Link("checkpoint", f"after {step:,} updates, runs/{run.path.name}", sha256_of_file(sums))


def _exports(run: RunDirectory) -> Iterator[Link]:
    for name in ("huggingface", "peft"):
        for file in sorted((run.path / name).glob("*.safetensors")):
            yield Link("export", f"{name}/{file.name}, runs/{run.path.name}", sha256_of_file(file))


def benchmarks() -> Mapping[str, list[dict[str, Any]]]:
    """The runs of `make bench` on each kind of processor, oldest first: from git's history and the current file.

    {"time", "commit", "rows": the median of this program for each quantity measured}
    """
    runs_of_kind: dict[str, dict[str, dict[str, Any]]] = {}
    commits = [(commit, file) for file in _BENCH for commit in (git("log", "--format=%H", "--", file) or "").split()]
    texts = [git("show", f"{commit}:{file}") for commit, file in commits]
    current_file = paths.REPOSITORY / _BENCH[0]
    for text in dict.fromkeys([current_file.read_text(encoding="utf-8") if current_file.exists() else None, *texts]):
        for record in json.loads(text or "{}").get("machines", ()):
            rows = {
                f"{row['what']} ({row['unit']})": median
                for row in record["rows"]
                for ours in list(row["contestants"].values())[:1]  # the first
                if (median := ours.get("median")) is not None
            }
            commit, time = (record.get("git") or {}).get("commit", "")[:12], record["time"]
            runs_of_kind.setdefault(record["kind"], {})[time] = {"time": time, "commit": commit, "rows": rows}
    return {kind: [runs[time] for time in sorted(runs)] for kind, runs in sorted(runs_of_kind.items())}
