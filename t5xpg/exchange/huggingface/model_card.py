"""The README.md of an export: the model, its use, and its results, from results.json alone."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from t5xpg.base.markdown import escape
from t5xpg.data.vocab.sentinels import blanks_of
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange.huggingface.architectures import SEQ2SEQ, Exported
from t5xpg.exchange.huggingface.tokenizer_files import tokenizer_type
from t5xpg.exchange.huggingface.transformers_check import LogitComparison
from t5xpg.models.config import T5Config
from t5xpg.run import results_page

MARK = "<!-- written by t5xpg export -->"  # tells an export, which may be replaced, from other folders

_USE = """\
```python
{torch}from transformers import {auto_class}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder"{tokenizer_type})
model = {auto_class}.from_pretrained("path/to/this/folder")
{use}
```"""
_SEQ2SEQ_USE = """\
inputs = tokenizer({text!r}, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs)[0]{decoded}))"""
_PROMPTED_USE = """\
prompt = torch.tensor([[0, *tokenizer({text!r}, add_special_tokens=False).input_ids]])
print(tokenizer.decode(model.generate(torch.ones(1, 1, dtype=int), decoder_input_ids=prompt)[0]))"""
_TOKENS_USE = """\
inputs = tokenizer({text!r}, return_tensors="pt")
print(tokenizer.decode(model(**inputs).logits[0].argmax(-1)))"""


def model_card(
    name: str,
    *,
    exported: Exported,
    config: T5Config,
    num_params: int,
    vocabulary: Vocabulary,
    step: int,
    results: Mapping[str, Any] | None,
    imported: Mapping[str, Any] | None,
    notes: Sequence[str] = (),
    comparison: LogitComparison | None = None,
) -> str:
    """The card. results: those of results.json, or None; imported: where the run was imported from, or None."""
    (architecture,) = exported.config["architectures"]
    what = (
        f"{architecture} of {num_params:,} parameters: {config.emb_dim} wide, {config.num_heads} heads of "
        f"{config.head_dim}, MLP of {config.mlp_dim}, {config.vocab_size:,} embeddings"
    )
    from_where = f"after {step:,} updates"
    if imported is not None and step == 0:
        from_where = f"as it was imported from {imported.get('source')}"
    sentinels = ""
    if (last := vocabulary.num_sentinels - 1) > 0:
        sentinels = (
            f" `<extra_id_0>` is {vocabulary.sentinel_id(0)} and `<extra_id_{last}>` {vocabulary.sentinel_id(last)}: "
            "the tokenizer's files say so, whatever its class does by itself."
        )
    parts = [
        _front_matter(name, exported, results),
        f"# {escape(name)}",
        MARK,
        f"{escape(what)}, {escape(from_where)}. The vocabulary has {vocabulary.size:,} ids.{sentinels}",
        *(_with_code(note) for note in (*exported.notes, *notes)),
        _example(exported, vocabulary, results),
        *([f"Compared when it was exported: {escape(comparison.text)}."] if comparison else []),
    ]
    if results is None:
        parts.append("Nothing was measured in the run that this was exported from.")
    else:
        parts += ["## Results", "All numbers are those of `results.json`, which lies beside this file."]
        parts.append(results_page.text(results))
    return "\n\n".join(part for part in parts if part) + "\n"


def _example(exported: Exported, vocabulary: Vocabulary, results: Mapping[str, Any] | None) -> str:
    """Python that loads the folder and uses the model, as Markdown."""
    use, text = _SEQ2SEQ_USE, "The <extra_id_0> ruined my sleep" if vocabulary.num_sentinels else "The owl"
    inputs = [sample["input"] for sample in (results or {}).get("samples") or []]
    if inputs and not any(map(blanks_of, inputs)):  # a task with inputs of its own
        text = min(inputs, key=len)
    if exported.prompted:
        use, text = _PROMPTED_USE, "The owl"
    elif exported.auto_class != SEQ2SEQ:
        use, text = _TOKENS_USE, "[CLS]The [MASK]wl"
    tokenizer = tokenizer_type(exported.config["model_type"], vocabulary)
    return _USE.format(
        torch="import torch\n" if exported.prompted else "",
        auto_class=exported.auto_class,
        tokenizer_type="" if tokenizer is None else f', tokenizer_type="{tokenizer}"',
        use=use.format(text=text, decoded="" if blanks_of(text) else ", skip_special_tokens=True"),
    )


def _with_code(text: str) -> str:
    """A sentence as Markdown; what stands between backticks in it is code."""
    parts = re.split(r"(\s*`[^`]+`\s*)", text)
    return "".join(part if number % 2 else escape(part) for number, part in enumerate(parts))


def _front_matter(name: str, exported: Exported, results: Mapping[str, Any] | None) -> str:
    """The YAML that the hub reads, with values in JSON: numbers of the evaluation, or else of the last validation."""
    values: dict[str, Any] = {"library_name": "transformers", "tags": ["t5xpg", exported.config["model_type"]]}
    measured = (results["evaluation"] or results["final"]["validation"] or {}) if results else {}
    names = {"loss": "loss", "bits_per_byte": "bits_per_byte", "token_accuracy": "accuracy"}
    numbers = {kind: measured.get(name) for kind, name in names.items()}
    metrics = [{"type": kind, "value": value} for kind, value in numbers.items() if isinstance(value, float)]
    for task_name, values_of_task in measured.get("metrics", {}).items():
        arguments = {"task": task_name, **measured.get("predicted", {}).get(task_name, {})}
        numbers = {one: value for one, value in values_of_task.items() if isinstance(value, int | float)}
        metrics += [{"type": one, "value": value, "args": arguments} for one, value in numbers.items()]
    if results and metrics:
        data = results.get("identity", {}).get("data")
        task = str(data.get("task", "unknown")) if isinstance(data, Mapping) else "unknown"
        kind = "text2text-generation" if exported.auto_class == SEQ2SEQ else "token-classification"
        dataset = {"name": task, "type": task, "split": measured.get("split", "validation")}
        result = {"task": {"type": kind}, "dataset": dataset, "metrics": metrics}
        values["model-index"] = [{"name": name, "results": [result]}]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---"])
