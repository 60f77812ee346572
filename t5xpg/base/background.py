"""Work in a thread beside the main one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def in_background(*functions: Callable[[], Any]) -> list[Future[Any]]:
    """Call `functions` in order in one new thread; returns a future for each. An error also fails all later futures."""
    futures: list[Future[Any]] = [Future() for _ in functions]

    def work() -> None:
        failure: BaseException | None = None
        for function, future in zip(functions, futures, strict=True):
            if failure is None:
                try:
                    future.set_result(function())
                    continue
                except BaseException as error:
                    failure = error
            future.set_exception(failure)

    threading.Thread(target=work, name="background", daemon=True).start()
    return futures
