from __future__ import annotations

from t5xpg.base.page import aligned


def test_columns_have_one_width() -> None:
    rows = [["a_task", "9", "0.5"], ["b", "1,000", "12.25"]]
    assert aligned(["task", "examples", "bleu"], rows, numbers_from=1) == [
        "task    examples   bleu",
        "a_task         9    0.5",
        "b          1,000  12.25",
    ]
    assert aligned(["task", "metric"], [["a", "x"]]) == ["task  metric", "a     x"]
    assert aligned(["task"], []) == []


def test_cells_stay_on_their_line() -> None:
    (_, line) = aligned(["text"], [["two\nlines " + "x" * 100]])
    assert "\n" not in line
    assert len(line) == 60
    assert line.endswith("…")
