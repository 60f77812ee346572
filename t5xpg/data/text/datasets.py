"""The datasets that are known by name, with the sources of their text."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from t5xpg.data.text import package_documents
from t5xpg.data.text.labelled import LABELLED, TEXT
from t5xpg.data.text.sources import BUILT_IN_MIN_CHARACTERS, HuggingFace, PackageText, Source
from t5xpg.data.text.wheels import CODE_WHEELS, DOCUMENTATION_WHEELS


@dataclass(frozen=True)
class Dataset:
    """A named dataset. fields: those of its rows (TEXT for plain texts). sha256: the hash of each split of its full
    export, where it is the same on all machines."""

    source: Source
    sha256: Mapping[str, str] = field(default_factory=dict)
    fields: tuple[str, ...] = TEXT
    min_characters: int = BUILT_IN_MIN_CHARACTERS


def built_in() -> dict[str, Dataset]:
    """The datasets known by name."""
    return {
        "pydocs": Dataset(
            PackageText(DOCUMENTATION_WHEELS, package_documents.documentation_documents, extraction=2),
            sha256={
                "train": "33c174e3192786a0969431c6248ac335c6425f2ebcd33a35cfd91448abf6eee6",
                "validation": "474545accdfa55528668a27598e3a212457e1dda9f7c88915fc78139c2deb1fb",
                "test": "a343e96b3098c3a4e6e5b805a3591e698bba8deb9a62e8fb93e548cddf0017d1",
            },
        ),
        "pycode": Dataset(
            PackageText(CODE_WHEELS, package_documents.code_documents, extraction=1),
            sha256={
                "train": "6f88052d2a28cffa310f84fce9ed1956f7a38042f09bf64245064e6341e7e930",
                "validation": "5135dcfeff3567614178e3e62efb9757db1d6f9f4d9c6ad1f65e46450fd6f683",
                "test": "f2ab8db0100719dc0ade26d3846b2d3070088aec2ab50a94f658bef3dc14c04d",
            },
        ),
        # the task: which package is this docstring of?
        "pypackages": Dataset(
            PackageText(DOCUMENTATION_WHEELS, package_documents.texts_and_packages, extraction=1),
            sha256={
                "train": "9537bc3d58d0eb32983ba5ac6dad21c84766d6a0d7362dc913e603199b165ae2",
                "validation": "27fa7a2a6bafb097086d906e7de6a4ea94e12ec2f2e8be2bd67127f488241215",
                "test": "f4a421fe7c0212c603e9e3c6484e80cabbdd10105ab4da05b400e58f76feff94",
            },
            fields=LABELLED,
        ),
        "wikitext": Dataset(
            HuggingFace("Salesforce/wikitext", "wikitext-103-raw-v1", "b08601e04326c79dfdd32d625aee71d232d685c3")
        ),
        # FineWeb2's Bokmål (ODC-By 1.0), because `datasets` no longer runs the script of OSCAR
        "norwegian": Dataset(
            HuggingFace(
                "HuggingFaceFW/fineweb-2", "nob_Latn", "af9c13333eb981300149d5ca60a8e9d659b276b9", streamed=True
            )
        ),
        # T5's training text, as reproduced by the Allen Institute (ODC-By 1.0)
        "c4": Dataset(HuggingFace("allenai/c4", "en", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2", streamed=True)),
    }
