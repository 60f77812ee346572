"""`make site SERVE=1` and `make watch`: the site at an address of this machine, with the present state of runs."""

import functools
import json
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from t5xpg.base import paths
from t5xpg.base.digests import is_inside
from t5xpg.base.errors import UserError, first_line
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import GrowingRecords
from t5xpg.run.results import collect
from t5xpg.site.build import build
from t5xpg.site.records import LOCAL, UNREADABLE, SiteRun

ADDRESS = "127.0.0.1"  # reachable from this machine only
PORT = 8765
_PATIENCE = 5.0  # seconds


def serve(folder: Path, page: str = "index.html") -> int:
    """Serve a site until Ctrl-C; returns 0. page: the one whose address is shown. Another port if `PORT` is in use."""
    handler = functools.partial(Pages, directory=str(folder))
    try:
        server = ThreadingHTTPServer((ADDRESS, PORT), handler)
    except OSError:
        server = ThreadingHTTPServer((ADDRESS, 0), handler)
    with server:
        print(f"http://{ADDRESS}:{server.server_port}/{page}  (Ctrl-C ends)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def watch(experiment: str, run: Path, folder: Path) -> int:
    """Serve the page of an experiment, or the comparison if it has none, from the first validation of `run` on.

    The site is made anew. Returns 0. Raises UserError for a run that the site would not show: one elsewhere than in the
    folder of runs.
    """
    if run.resolve().parent != paths.runs_directory().resolve():
        raise UserError(f"The site shows the runs in {paths.shown(paths.runs_directory())}, and {run} is elsewhere.")
    try:
        printed = ""
        while reason := _why_missing(run):
            if reason != printed:
                print(f"waiting for the first validation of {paths.shown(run)}: {reason}", flush=True)
            printed = reason
            time.sleep(_PATIENCE)
    except KeyboardInterrupt:
        return 0
    build(folder)
    page = f"experiments/{experiment}/index.html"
    return serve(folder, page if (folder / page).exists() else "compare.html")


def _why_missing(run: Path) -> str | None:
    """The reason why a run cannot be shown, or not yet; None if it can."""
    directory = RunDirectory(run)
    try:
        collect(directory)
    except UNREADABLE as error:
        return "it trains" if directory.is_locked() else first_line(error)
    return None


class Pages(SimpleHTTPRequestHandler):
    """The files of a site; the data of a local run is that of its records at the moment.

    Answers requests of its own pages and of a user who types its address, not those of other sites: neither by another
    name that leads to this machine (DNS rebinding) nor as a script in their pages.
    """

    records = GrowingRecords()  # a run's records are read once, then only their new lines

    def do_GET(self) -> None:
        """A file, or the data of a run."""
        if self._is_answered():
            name = Path(unquote(urlsplit(self.path).path))
            run = name.stem.removeprefix(LOCAL)
            if name.parent.name == "data" and name.suffix == ".js" and run != name.stem and is_inside(run):
                self._run(paths.runs_directory() / run)
            else:
                super().do_GET()

    def do_HEAD(self) -> None:
        """The headers of a file."""
        if self._is_answered():
            super().do_HEAD()

    def _is_answered(self) -> bool:
        """False, after the answer of an error, for a request that is another site's or names no file."""
        hosts = [f"{name}:{self.connection.getsockname()[1]}" for name in (ADDRESS, "localhost")]
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        is_page = self.headers.get("Sec-Fetch-Mode", "navigate") == "navigate"
        is_of_here = self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        if host not in hosts or origin not in (None, f"http://{host}") or not (is_page or is_of_here):
            self.send_error(403, "Another site asks")
            return False
        if "\0" in unquote(self.path):
            self.send_error(400, "No name of a file")
            return False
        return True

    def _run(self, path: Path) -> None:
        try:
            results = collect(RunDirectory(path), read=self.records.read)
            data = SiteRun(LOCAL + path.name, results, published=False).browser_data()
            text = f"t5xpg.add({json.dumps(data, allow_nan=False)});\n".encode()
        except UNREADABLE:  # gone, or being written
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def end_headers(self) -> None:
        """Forbid caching, as every page may have changed, and the use by other sites' pages."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Nothing is printed for each request."""
