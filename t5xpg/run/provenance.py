"""The state of the code that a run was made with, and the check that it is one commit, which others can run again."""

from collections.abc import Mapping, Sequence
from typing import Any

from t5xpg.base.environment import is_commit
from t5xpg.base.errors import UserError

Git = Mapping[str, Any] | None  # as of `environment.git_state`


def counting_starts(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The starts in a run.json that its records are from: a start from step 0 drops all earlier records."""
    starts: list[dict[str, Any]] = record["starts"]
    return starts[max((index for index, start in enumerate(starts) if start["step"] == 0), default=0) :]


def git_states(results: Mapping[str, Any]) -> tuple[list[Git], list[Git]]:
    """The states of the code in training and in evaluation, of results and of their further seeds."""
    training: list[Git] = []
    evaluation: list[Git] = []
    for run_results in (results, *results.get("seeds", ())):
        training += run_results["sources"]["training"]
        evaluation += run_results["sources"]["evaluation"]
    return training, evaluation


def objections(training: Sequence[Git], evaluation: Sequence[Git] = ()) -> list[str]:
    """The reasons why numbers were not made with the code of one commit; empty if they were.

    An evaluation may be of a later commit than the training, as it can be repeated at any time.
    """
    commits = list(dict.fromkeys(git["commit"][:12] for git in training if git is not None))
    reasons = [f"was trained with several commits ({', '.join(commits)})"] if len(commits) > 1 else []
    for stage, states in (("trained", training), ("evaluated", evaluation)):
        for git in states:
            if git is None:
                reasons.append(f"was {stage} with code of which no commit is known")
            elif not git["clean"]:
                reasons.append(f"was {stage} with changes that are not in commit {git['commit'][:12]}")
    return list(dict.fromkeys(reasons))


def require_commit(runs: str, training: Sequence[Git], evaluation: Sequence[Git] = ()) -> None:
    """Raise UserError if there are `objections` to publishing. runs: their names, for the message."""
    if reasons := objections(training, evaluation):
        raise UserError(
            f"{runs} is not published: it {', and '.join(reasons)}. Published is what was run with the code of one "
            "commit. Commit what changed, then train or evaluate again. To publish it as it is, with this said on its "
            "page: ALLOW_CHANGED=1"
        )


def format_commit(git: Git) -> str:
    """The text for a state of the code on a page."""
    if git is None:
        return "no git checkout"
    return f"commit {git['commit'][:12]}{'' if git['clean'] else ', with changes that are not committed'}"


def commit_of(results: Mapping[str, Any]) -> str | None:
    """The full hash of the commit that the first run was trained with; None if there were several, or changes."""
    training, _ = git_states({**results, "seeds": ()})
    commit = str(training[0]["commit"]) if training and training[0] and not objections(training) else ""
    return commit if is_commit(commit) else None
