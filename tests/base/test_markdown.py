from t5xpg.base.markdown import aligned


def test_cells_stay_on_their_line() -> None:
    (_, line) = aligned(["text"], [["two\nlines " + "x" * 100]])
    assert "\n" not in line
    assert len(line) == 60
    assert line.endswith("…")
