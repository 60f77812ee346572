"""The site in a browser (Chromium, driven by Playwright): from its files, at three widths, and without scripts."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from t5xpg.base.markdown import cell
from t5xpg.site.build import build
from tests.run.test_report import added_by
from tests.site.test_site import hostile_site

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (390, 820, 1400)
PAGES = ("index.html", "compare.html", "lineage.html", "benchmarks.html", "experiments/nb_nn/index.html",
         "experiments/optimizers_tiny/index.html", "docs/index.html", "docs/tasks.html")  # fmt: skip

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("built") / "site").parent


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture
def page(browser) -> Iterator:
    """A page that fails the test for a message of an error, and for anything that is fetched from elsewhere."""
    opened, said, asked = browser.new_page(), [], []
    opened.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else asked.append(request.url)
    )
    yield opened
    opened.close()
    assert (said, asked) == ([], [])


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit(page, site: Path, name: str) -> None:
    """No page is wider than the screen, and each has its heading."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto((site / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("h1").first.is_visible()


def test_runs_are_compared(page, site: Path) -> None:
    page.goto((site / "compare.html").as_uri() + "#run=optimizers_tiny-muon&run=optimizers_tiny-adamw&x=tokens")
    page.locator("#plot canvas").wait_for()
    assert page.locator("#plot .u-legend .u-label").all_inner_texts()[0] == "target tokens"
    page.locator("#why table").wait_for()
    assert "gin: candidate" in page.locator("#why").inner_text()
    for name in ("byt5_tiny", "nb_nn"):
        page.check(f'input[value="{name}"]')
        page.wait_for_function(f"location.hash.includes('run={name}')")
    assert "null" not in page.locator("#why td").all_inner_texts()  # a dash is
    page.select_option('select[name="x"]', "flops")  # which recipes of a sweep do not have
    page.get_by_text("Without this curve").wait_for()
    assert "optimizers_tiny-muon" in page.get_by_text("Without this curve").inner_text()
    row = page.locator("tr", has=page.locator('input[value="nb_nn"]')).inner_text()
    data = added_by((site / "data" / "nb_nn.js").read_text())
    assert cell(data["parameters"]) in row
    assert cell(data["curves"]["validation: nats per target byte"][1][-1]) in row


def test_pages_can_be_read_without_scripts(browser, site: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto((site / "index.html").as_uri())
    assert opened.locator(".card").count() > 10
    opened.goto((site / "experiments/nb_nn/index.html").as_uri())
    assert opened.locator('img[src="curve.svg"]').is_visible()
    opened.goto((site / "compare.html").as_uri())
    assert opened.locator("noscript p").is_visible()
    context.close()


def test_hostile_names_are_text(page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In titles, cards, tables and legends; a script would make a message, or an alert."""
    alerts: list[str] = []
    page.on("dialog", lambda dialog: alerts.append(dialog.message) or dialog.dismiss())
    site = hostile_site(tmp_path, monkeypatch)
    folder = next((site / "experiments").glob("x*"))
    for address in (site / "index.html", folder / "index.html", site / "compare.html"):
        page.goto(address.as_uri())
        assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
        assert "<img src=x" in page.locator("body").inner_text()
    for box in page.locator("input[type=checkbox]").all():
        box.check()
    page.locator("#plot .u-legend").wait_for()
    assert "onerror" in page.locator("#plot .u-legend").inner_text()
    page.locator("#why table").wait_for()
    assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
    assert alerts == []
