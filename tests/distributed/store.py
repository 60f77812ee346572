"""A store like that of JAX's coordination service, for processes that are threads of a test."""

import threading


class Store:
    """Its clients share one. Times run out at once where nothing can come any more: `gone`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.arrived: dict[str, int] = {}
        self.gone = False

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        with self.changed:
            assert key not in self.values, f"{key} was set before"
            self.values[key] = value
            self.changed.notify_all()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        if allow_overwrite:
            self.values.pop(key, None)
        self.key_value_set_bytes(key, value.encode())

    def blocking_key_value_get_bytes(self, key: str, timeout: int) -> bytes:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, timeout=60), key
            return self.values[key]

    def blocking_key_value_get(self, key: str, timeout: int) -> str:
        return self.blocking_key_value_get_bytes(key, timeout).decode()

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        with self.changed:
            return [(key, value.decode()) for key, value in self.values.items() if key.startswith(folder)]

    def key_value_delete(self, key: str) -> None:
        with self.changed:
            self.values = {name: value for name, value in self.values.items() if not f"{name}/".startswith(f"{key}/")}

    def wait_at_barrier(self, name: str, timeout: int) -> None:
        with self.changed:
            if self.gone:
                raise RuntimeError("Barrier failed")
            self.arrived[name] = self.arrived.get(name, 0) + 1
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: self.arrived[name] >= self.count, timeout=min(60, timeout / 1000)):
                raise RuntimeError(f"Barrier timed out: {name}")
