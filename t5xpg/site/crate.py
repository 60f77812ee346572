"""The site as a research object (RO-Crate 1.1, https://w3id.org/ro/crate/1.1): which run made which file of which data
with which software, as JSON-LD that archives and search engines read.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.files import sha256_of_file
from t5xpg.site.records import SiteExperiment, SiteRun

FILE = "ro-crate-metadata.json"
_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
_FORMATS = {".json": "application/json", ".csv": "text/csv", ".svg": "image/svg+xml"}
_LICENSE = "https://www.apache.org/licenses/LICENSE-2.0"

Entity = Mapping[str, Any]


def metadata(site: Path, experiments: Sequence[SiteExperiment], bills: Mapping[str, str]) -> dict[str, Any]:
    """The crate of a site whose files are written: published experiments as data sets, their runs as actions.

    bills: by experiment the file that lists the packages of its run (`base.sbom`), where there is one.
    """
    published = [(one, run) for one in experiments if (run := one.published)]
    entities: dict[str, Entity] = {  # by id, because runs share software and data
        entity["@id"]: entity for shown, run in published for entity in _experiment(site, shown, run, bills)
    }
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": "Experiments with T5-family models",
        "description": "Published runs of t5xpg: their questions, numbers, curves, data and settings.",
        "license": {"@id": _LICENSE},
        "hasPart": [{"@id": f"experiments/{shown.name}/"} for shown, _ in published],
    }
    about = {"@type": "CreativeWork", "about": {"@id": "./"}, "conformsTo": {"@id": _SPECIFICATION}}
    return {"@context": f"{_SPECIFICATION}/context", "@graph": [{"@id": FILE, **about}, root, *entities.values()]}


def _experiment(site: Path, shown: SiteExperiment, run: SiteRun, bills: Mapping[str, str]) -> Iterable[Entity]:
    results = run.results
    commit = (results.get("git") or {}).get("commit")
    files = [f"data/{run.id}{kind}" for kind in (".json", ".csv")]
    files += [f"experiments/{shown.name}/{picture.name}" for picture in sorted(shown.folder.glob("*.svg"))]
    bill = [bills[shown.name]] if shown.name in bills else []
    software = {"t5xpg": commit, **{name: version for name, version in results["versions"].items() if name != "t5xpg"}}
    tools = [_software(name, version) for name, version in software.items() if version]
    splits = (results["data"] or {}).get("splits") or {}
    data = [
        {"@id": f"#{results['data']['name']}-{one['sha256'][:12]}", "@type": "Dataset", "sha256": one["sha256"],
         "name": f"{results['data']['name']}, {split}"}
        for split, one in splits.items()
    ]  # fmt: skip
    action = {
        "@id": f"#run-{shown.name}",
        "@type": "CreateAction",
        "name": results["command"],
        "instrument": [*({"@id": tool["@id"]} for tool in tools), *({"@id": file} for file in bill)],
        "object": [{"@id": split["@id"]} for split in data],
        "result": [{"@id": file} for file in files],
    }
    yield {
        "@id": f"experiments/{shown.name}/",
        "@type": "Dataset",
        "name": shown.name,
        "description": f"{shown.question} {shown.answer}".strip(),
        "hasPart": [{"@id": file} for file in [*files, *bill]],
        "mentions": {"@id": action["@id"]},
    }
    yield action
    yield from tools
    yield from data
    for file in [*files, *bill]:
        path = site / file
        facts = {"sha256": sha256_of_file(path), "contentSize": str(path.stat().st_size)}
        yield {"@id": file, "@type": "File", "name": path.name, "encodingFormat": _FORMATS[path.suffix], **facts}


def _software(name: str, version: str) -> Entity:
    return {"@id": f"#{name}-{version}", "@type": "SoftwareApplication", "name": name, "softwareVersion": version}
