"""The records of files: JSON lines with a text each, read before and written after."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.data.lines import bounded_lines, json_object, string_in, text_of_line
from t5xpg.errors import UserError

# Characters that JSON does not escape and terminals act on.
_CONTROLS = re.compile("[\x7f-\x9f]")
_RECORD = '{"inputs": "a text with <extra_id_0>"}'


@dataclass(frozen=True)
class Record:
    """A line of an input file: its number, all that it holds, and the text with blanks."""

    number: int
    content: dict[str, Any]
    text: str


def read_records(source: Path) -> Iterator[Record]:
    """The records of a JSONL file. Raises UserError naming file and line for what is no record."""
    if not source.is_file():
        kind = "no regular file" if source.exists() else "not there"
        raise UserError(f"INPUT: {source} is {kind}. Expected a file of JSON lines: {_RECORD}.")
    with source.open("rb") as file:
        for number, line in enumerate(bounded_lines(file), start=1):
            where = f"{source}:{number}"
            text = text_of_line(line, where)
            if text.strip():
                content = json_object(text, where, _RECORD)
                yield Record(number, content, string_in(content, _field(content), where))


def _field(content: dict[str, Any]) -> str:
    return "text" if "text" in content and "inputs" not in content else "inputs"


def json_line(value: dict[str, Any]) -> bytes:
    """JSON in UTF-8. Half characters, which JSON may hold and UTF-8 may not, stay escapes, as control characters do."""
    text = _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
    return (text + "\n").encode("utf-8", errors="backslashreplace")
