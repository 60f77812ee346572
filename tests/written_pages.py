"""Whether a page is as `make report` writes it from its board."""

from pathlib import Path

from t5xpg.base.files import read_json
from t5xpg.run.report import PAGE, README_FILE, Page
from t5xpg.run.results_page import CURVE_FILE


def wrong_files(home: Path, page: Page = PAGE) -> list[Path]:
    """The files in an experiment's folder that differ from what the page writes there. Without a board, a README with
    results and a curve are wrong, too."""
    if (home / page.board_file).exists():
        texts = page.texts(home, read_json(home / page.board_file))
        return [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    readme, curve = home / README_FILE, home / CURVE_FILE
    begin, end = page.markers
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    shows_results = bool(text.partition(begin)[2].partition(end)[0].strip())
    return [path for path, wrong in ((readme, shows_results), (curve, curve.exists())) if wrong]
