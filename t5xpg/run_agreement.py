"""Whether all processes of a run were given the same: what differs would be waited for in vain, or go wrong unseen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from t5xpg import environment
from t5xpg.config import settings
from t5xpg.errors import UserError
from t5xpg.experiment import Experiment
from t5xpg.hosts import Group
from t5xpg.rundir import differing
from t5xpg.writers import to_json

_SHOWN = 20


def require_same(group: Group, experiment: Experiment, identity: Mapping[str, Any]) -> None:
    """Raise UserError, with what differs, where this process was given something else than the first one.

    identity: of the run, as this process sees it: its settings, and the text and caches that it reads.
    """
    own = to_json(
        {
            "settings": settings(experiment),
            "data": identity["data"],
            "cache": identity["cache"],
            "versions": environment.versions(),
        }
    )
    first = json.loads(group.told("identity", json.dumps(own).encode("utf-8")))
    differences = differing(first, json.loads(json.dumps(own)))
    if differences:
        listed = [f"  {name}  {old} in process 0, {new} here" for name, (old, new) in differences.items()]
        raise UserError(
            "\n".join(
                [
                    f"Process {group.process} was started with other settings, data or versions than process 0:",
                    *listed[:_SHOWN],
                    "Give the same command on every host, with the same checkout, packages, exports and caches.",
                ]
            )
        )
