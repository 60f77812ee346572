"""Text out of catalogues of messages, as gettext's tools write them."""

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.text import export as export_module
from t5xpg.data.text.datasets import Dataset, built_in
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.messages import InstalledMessages, catalog_documents, catalogs, translations

HEADER = "Language: nb\nContent-Type: text/plain; charset={}\n"


def catalog(messages: Mapping[str, str], charset: str = "UTF-8", order: str = "<") -> bytes:
    """A .mo file by gettext's manual: a header of seven numbers, two tables of lengths and places, the strings."""
    entries = sorted({"": HEADER.format(charset), **messages}.items())
    strings = [[pair[side].encode(charset) for pair in entries] for side in (0, 1)]
    count, start = len(entries), 28
    places, place = [], start + 16 * count
    for texts in strings:
        for text in texts:
            places += [len(text), place]
            place += len(text) + 1
    body = b"".join(text + b"\0" for texts in strings for text in texts)
    numbers = [0x950412DE, 0, count, start, start + 8 * count, 0, 0, *places]
    return struct.pack(f"{order}{len(numbers)}I", *numbers) + body


MESSAGES = {
    "File %s not found": "Fant ikke filen %s",
    "OK": "Greit",  # no text
    "%d file\0%d files": "%d fil ble lest\0%d filer ble lest",
    "Read from the standard input": "Les fra\n\t standard inn på nytt",
    "Same in both languages here": "Same in both languages here",
    "Norway": "Norge",
}


@pytest.mark.parametrize(("charset", "order"), [("UTF-8", "<"), ("ISO-8859-1", "<"), ("utf-8", ">")])
def test_reads_translations(tmp_path: Path, charset: str, order: str) -> None:
    path = tmp_path / "a.mo"
    path.write_bytes(catalog(MESSAGES, charset, order))
    files = ["%d fil ble lest", "%d filer ble lest"]
    assert sorted(translations(path)) == sorted(
        ["Fant ikke filen %s", "Greit", *files, MESSAGES["Read from the standard input"], "Norge"]
    )
    (document,) = catalog_documents([path, path])
    # what is in the order of the originals; names and single words are no text
    assert document.split("\n") == [*files, "Fant ikke filen %s", "Les fra standard inn på nytt"]


def test_joins_messages_to_documents_and_takes_none_twice(tmp_path: Path) -> None:
    names = [tmp_path / "a.mo", tmp_path / "b.mo"]
    one = {f"message {number}": f"Dette er melding nummer {number} av mange flere" for number in range(60)}
    names[0].write_bytes(catalog(one))
    names[1].write_bytes(catalog({**one, "one more": "Dette er bare én melding til"}))
    found = list(catalog_documents(names))
    assert [1500 <= len(text) < 1600 for text in found] == [True, False, False]
    assert sorted("\n".join(found).split("\n")) == sorted([*one.values(), "Dette er bare én melding til"])


def test_what_is_no_catalogue_is_named(tmp_path: Path) -> None:
    whole = catalog(MESSAGES)
    path = tmp_path / "a.mo"
    for data in (b"", b"no catalogue at all", whole[:40], whole[:-20]):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"a\.mo cannot be read as a catalogue of messages: "):
            list(translations(path))
    path.write_bytes(whole.replace(b"charset=UTF-8", b"charset=utf-0"))
    with pytest.raises(UserError, match="unknown encoding"):
        list(translations(path))
    # messages in another encoding than their catalogue are left out
    path.write_bytes(catalog({"a": "et ødelagt ord", "b": "to hele ord her"}).replace("ø".encode(), b"\xf8x"))
    assert list(translations(path)) == ["to hele ord her"]


def test_exports_the_messages_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = built_in()["norwegian_messages"].source
    assert isinstance(source, InstalledMessages)
    assert source.languages == ("nb", "no")
    for folder, language, name in (("usr", "nb", "a"), ("usr", "no", "b"), ("local", "nb", "a"), ("usr", "nn", "c")):
        path = tmp_path / folder / language / "LC_MESSAGES" / f"{name}.mo"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = {f"{n}": f"Melding nummer {n} av programmet {folder} {language} {name}" for n in range(300)}
        path.write_bytes(catalog(texts))
    folders = (tmp_path / "usr", tmp_path / "local", tmp_path / "none")
    assert [name for name, _ in catalogs(("nb", "no"), folders)] == ["nb/LC_MESSAGES/a.mo", "no/LC_MESSAGES/b.mo"]
    here = InstalledMessages(("nb", "no"), folders=folders)
    monkeypatch.setattr(export_module, "built_in", lambda: {"messages": Dataset(here)})
    said: list[str] = []
    manifest = export_dataset("messages", data_dir=tmp_path / "data", log=said.append)
    text = (tmp_path / "data" / "messages" / "train.jsonl").read_text()
    assert "usr nb a" in text
    assert "local" not in text
    path.unlink()  # of a language that is not asked for
    export_dataset("messages", data_dir=tmp_path / "data", log=said.append)
    assert "up to date" in said[-1]
    (tmp_path / "usr" / "no" / "LC_MESSAGES" / "b.mo").write_bytes(catalog({"1": "Bare denne ene meldingen nå"}))
    assert export_dataset("messages", data_dir=tmp_path / "data", force=True).identity != manifest.identity
    nowhere = InstalledMessages(("nb", "no"), folders=(tmp_path / "none",))
    monkeypatch.setattr(export_module, "built_in", lambda: {"messages": Dataset(nowhere)})
    with pytest.raises(UserError, match=r"no program here brings any: .*none/nb/LC_MESSAGES/\*\.mo\..* FILES="):
        export_dataset("messages", data_dir=tmp_path / "data", force=True)
