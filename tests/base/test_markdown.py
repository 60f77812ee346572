from pathlib import Path

from t5xpg.base.markdown import with_block


def test_a_new_block_stands_under_one_heading() -> None:
    for page, kept in (
        ("# a\n", "# a"),
        ("# a\n\n## Results\n", "# a"),
        ("# a\n\n### Results\n", "# a\n\n### Results"),
    ):
        assert with_block(page, "<b>1<e>", "<b>", "<e>", Path("README.md")) == f"{kept}\n\n## Results\n\n<b>1<e>\n"
