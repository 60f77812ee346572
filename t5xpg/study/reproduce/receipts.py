"""Receipts of `make verify-claim`: the outcome of repeating a published run, signed as git signs, with an SSH key.

A receipt is a JSON object. Its "signature" is made by ssh-keygen in the namespace `NAMESPACE`, over `canonical` of it.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5xpg.base import environment, paths
from t5xpg.base.errors import UserError, nearest, printable
from t5xpg.base.files import sha256_of_file, write_json
from t5xpg.run.provenance import commit_of
from t5xpg.run.report import RESULTS_FILE
from t5xpg.run.results import read_results
from t5xpg.study.reproduce.comparison import DIFFERENT, NOT_COMPARED, SAME, WITHIN

NAMESPACE, FORMAT = "t5xpg-receipt", 1


def canonical(receipt: Mapping[str, Any]) -> bytes:
    """A receipt without its signature as ASCII JSON, keys sorted, no white space. Raises ValueError for NaN."""
    rest = {name: value for name, value in receipt.items() if name != "signature"}
    return json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def verdict(reproduction: Mapping[str, Any]) -> str:
    """The worst verdict of the numbers in a reproduction.json."""
    verdicts = {row["verdict"] for row in reproduction["numbers"]}
    return next((one for one in (DIFFERENT, WITHIN, SAME) if one in verdicts), NOT_COMPARED)


def signing_key(requested: str | None) -> str | None:
    """The file of the SSH key to sign with: `requested`, or the one that git signs with; None without either."""
    key_name = requested
    if not requested and environment.output_of(["git", "config", "gpg.format"]) == "ssh":
        key_name = environment.output_of(["git", "config", "user.signingkey"])
    file = os.path.expanduser(key_name or "")
    if requested and not Path(file).is_file():
        raise UserError(f"There is no SSH key {file} to sign with. Name a file: KEY=~/.ssh/id_ed25519")
    return file if Path(file).is_file() else None  # git also takes a public key itself


def sign(file: Path, key: str) -> None:
    """Put a signature into a receipt. Raises UserError where it has one, and where ssh-keygen does not sign."""
    receipt = read(file)
    if "signature" in receipt:
        raise UserError(f"{file} is signed already.")
    code, output = _ssh_keygen("sign", "-n", NAMESPACE, "-f", key, data=canonical(receipt))
    if code:
        raise UserError(f"ssh-keygen did not sign {file} with {key}: {output}")
    write_json(file, {**receipt, "signature": output + "\n"})


def check(file: Path, signers: Path | None = None) -> int:
    """Print the verdict of a receipt on the results that are published here, and its signer.

    signers: a file of names and keys, as git's allowed signers; one of them must have signed. Returns 0, or 1 where the
    numbers were different. Raises UserError for a receipt that was changed, is not so signed, or is of other results or
    of an experiment that is not here.
    """
    receipt = read(file)
    signature = _signature(file, receipt, signers)
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
    lines = (
        f"verdict    {receipt['verdict']}: {name}, {receipt['reproduction']['steps']} of {results['steps']} steps",
        f"claim      {paths.shown(published)} of commit {claim['commit'][:12]}",
        f"found by   {receipt['by']}, {receipt['ended']}",
        f"signature  {signature}",
    )
    print(printable("\n".join(lines)), flush=True)
    return 1 if receipt["verdict"] == DIFFERENT else 0


def _signature(file: Path, receipt: Mapping[str, Any], signers: Path | None) -> str:
    """The output of ssh-keygen about a receipt's signature. Raises UserError if the signature is not valid."""
    if "signature" not in receipt and signers is None:
        return "none: anyone can have written this"
    if signers is not None and not signers.is_file():
        raise UserError(f"SIGNERS={signers}: there is no such file.")
    with tempfile.TemporaryDirectory() as folder:
        armored = Path(folder) / "signature"
        armored.write_text(str(receipt.get("signature")), encoding="utf-8", errors="replace")
        action = ["check-novalidate"]
        if signers is not None:
            code, names = _ssh_keygen("find-principals", "-s", str(armored), "-f", str(signers))
            if code:
                raise UserError(f"{file} is not signed with a key of {signers}.")
            action = ["verify", "-f", str(signers), "-I", names.splitlines()[0]]
        code, output = _ssh_keygen(*action, "-n", NAMESPACE, "-s", str(armored), data=canonical(receipt))
    if code:
        raise UserError(f"{file} was changed after it was signed, or its signature was.")
    return output


def read(file: Path) -> dict[str, Any]:
    """Read a receipt. Raises UserError for a file that is no receipt, or not as it was written."""
    text = file.read_bytes()
    try:
        receipt: dict[str, Any] = json.loads(text)
        # refuses also a name that stands twice: some readers would see its first value, others its last
        is_valid = text == (json.dumps(receipt, indent=2, ensure_ascii=False) + "\n").encode()
        claim, reproduction = receipt["claim"], receipt["reproduction"]
        texts = [claim["results"], claim["commit"], *(receipt[name] for name in ("experiment", "ended", "by"))]
        is_valid &= receipt["format"] == FORMAT and all(isinstance(text, str) for text in texts)
        is_valid &= isinstance(reproduction["steps"], int)
        is_valid &= receipt["verdict"] == verdict(reproduction) and reproduction["of"] == claim["results"]
        canonical(receipt)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise UserError(f"{file} is not a receipt of make verify-claim, or was changed on its way.")
    return receipt


def _ssh_keygen(action: str, *arguments: str, data: bytes = b"") -> tuple[int, str]:
    """The exit code of `ssh-keygen -Y`, and what it printed; where it failed, the end of its error messages."""
    try:
        process = subprocess.run(["ssh-keygen", "-Y", action, *arguments], input=data, capture_output=True)
    except FileNotFoundError:
        raise UserError("Signatures need ssh-keygen, of OpenSSH 8.2 or later, which is not here.") from None
    if process.returncode:
        return process.returncode, process.stderr.decode(errors="replace").strip()[-300:]
    return 0, process.stdout.decode(errors="replace").strip()
