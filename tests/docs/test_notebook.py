"""The notebook runs from the first cell to the last."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from t5xpg.experiment import prepare
from tests.workplace import REPOSITORY

# The value of a cell's last line is printed, as a notebook shows it.
RUN = """
import ast, json, sys
names = {}
for source in json.loads(sys.stdin.read()):
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        print("shown:", repr(eval(compile(ast.Expression(last.value), "cell", "eval"), names)), flush=True)
"""


@pytest.mark.process
def test_its_cells_run(own_place: Path) -> None:
    notebook = json.loads((REPOSITORY / "docs" / "python.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    prepare.export_dataset("pydocs", limit=200)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "STEPS": "12"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(sources), env=environment, cwd=own_place, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    frame, answers, losses, shapes = done.stdout.split("shown: ")[1:]
    assert "nats_per_byte" in frame
    assert answers.startswith("['")
    assert losses.startswith("array([")
    assert shapes.strip() == "[(32, 128)]"  # 31 bytes and the end
