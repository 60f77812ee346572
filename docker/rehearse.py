"""Carry out the steps of the Dockerfile where no engine runs: as root, in a root file system and namespaces of its own.

    debootstrap --variant=minbase bookworm /somewhere/base
    python3 docker/rehearse.py --base /somewhere/base --work /somewhere/build --build-arg MACHINE=cpu -- --help

Each stage is a layer over the one that it begins with (overlayfs), steps run in it by chroot as the user, in the folder
and with the variables that the file says, and what stands behind `--` is given to the entry point of the last stage.
`--again` makes nothing anew: it calls the entry point of what an earlier call made. It is no engine: processes see this
machine's network and devices, and the name of the base image is not looked at: `--base` is in its place.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import dockerfile
from dockerfile import Ignored, Instruction, Stage, expand

REPOSITORY = Path(__file__).resolve().parents[1]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INSIDE = "T5XPG_REHEARSAL_INSIDE"  # set in the namespaces


@dataclass
class Image:
    """A stage as far as it has been carried out."""

    layers: list[Path]  # the uppermost first
    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    arguments: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    folder: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)

    def ids(self, user: str | None = None) -> tuple[int, int]:
        """The ids of a user, by its name in this file system or as numbers: "t5xpg", "1234:1234"."""
        name, _, group = (user or self.user).partition(":")
        for line in (self.root / "etc" / "passwd").read_text().splitlines():
            fields = line.split(":")
            if name in (fields[0], fields[2]):
                return int(fields[2]), int(group if group.isdigit() else fields[3])
        return int(name), int(group or 0)

    def run(self, command: list[str], user: str | None = None, **more: str) -> int:
        """Run a command in it; returns its exit code."""
        uid, gid = self.ids(user)
        home = "/root" if uid == 0 else f"/home/{self.user}"
        environment = {"HOME": home, **self.arguments, **self.environment, **more}
        # by its path: PATH is the image's
        inside = [
            shutil.which("chroot") or "/usr/sbin/chroot",
            f"--userspec={uid}:{gid}",
            "--groups=",
            str(self.root),
            "/bin/sh",
            "-c",
        ]
        script = f'cd "{self.folder}" && exec "$@"'
        return subprocess.run([*inside, script, "sh", *command], env=environment, stdin=subprocess.DEVNULL).returncode


class Rehearsal:
    """Carries out stages below a folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.base, self.work = Path(options.base).resolve(), Path(options.work).resolve()
        self.given = dict(one.partition("=")[::2] for one in options.build_arg)
        self.secrets = dict(one.partition("=")[::2] for one in options.secret)
        self.again: bool = options.again
        self.bind = [Path(one) for one in options.bind]
        self.ignored = Ignored.of((REPOSITORY / ".dockerignore").read_text())
        self.images: dict[str, Image] = {}

    def stage(self, stage: Stage) -> Image:
        """Carry out one stage."""
        parent = self.images.get(stage.base)
        here = self.work / stage.name
        for name in ("upper", "overlay", "root"):
            (here / name).mkdir(parents=True, exist_ok=self.again)
        below = [self.base] if parent is None else parent.layers
        image = Image([here / "upper", *below], here / "root")
        if parent is not None:
            image.environment, image.user, image.folder = dict(parent.environment), parent.user, parent.folder
        lower = ":".join(map(str, below))
        settings = f"lowerdir={lower},upperdir={here / 'upper'},workdir={here / 'overlay'}"
        mount("-t", "overlay", "overlay", "-o", settings, str(image.root))
        mount("-t", "proc", "proc", str(image.root / "proc"))
        for path in (Path("/dev"), Path("/etc/resolv.conf"), *self.bind):
            self.show(path, image.root / path.relative_to("/"))
        self.images[stage.name] = image
        for instruction in stage.instructions:
            if self.again and instruction.name in ("COPY", "RUN"):
                continue
            began = time.monotonic()
            print(f"[{stage.name}] {instruction.name} {instruction.value}"[:150], flush=True)
            self.step(image, instruction)
            if time.monotonic() - began > 1:
                print(f"[{stage.name}] took {time.monotonic() - began:.0f} s", flush=True)
        return image

    def step(self, image: Image, one: Instruction) -> None:
        """Carry out one instruction."""
        if one.name == "ARG":
            for name, value in one.pairs().items():
                image.arguments[name] = self.given.get(name, value)
        elif one.name == "ENV":
            known = image.arguments | image.environment
            image.environment |= {name: expand(value, known) for name, value in one.pairs().items()}
        elif one.name == "WORKDIR":
            image.folder = one.value
            (image.root / one.value.strip("/")).mkdir(parents=True, exist_ok=True)
        elif one.name == "USER":
            image.user = one.value
        elif one.name == "RUN":
            self.run(image, one)
        elif one.name == "COPY":
            self.copy(image, one)
        elif one.name == "HEALTHCHECK":
            image.healthcheck = Instruction("CMD", {}, one.value.removeprefix("CMD").strip(), one.line).words
        elif one.name in ("ENTRYPOINT", "CMD"):
            setattr(image, {"ENTRYPOINT": "entrypoint", "CMD": "command"}[one.name], one.words)
        elif one.name != "LABEL":
            raise SystemExit(f"rehearse: line {one.line}: {one.name} is not carried out")

    def run(self, image: Image, one: Instruction) -> None:
        for each in one.flags.get("mount", ()):
            settings = dict(part.partition("=")[::2] for part in each.split(","))
            assert settings["type"] == "secret", each
            if settings["id"] in self.secrets:
                self.show(Path(self.secrets[settings["id"]]), image.root / settings["target"].strip("/"))
        if status := image.run(one.words if one.is_json else ["/bin/sh", "-c", one.value]):
            raise SystemExit(f"rehearse: line {one.line} failed with exit code {status}")

    def copy(self, image: Image, one: Instruction) -> None:
        *sources, target = one.words
        owner = image.ids(one.flags["chown"][0].partition(":")[0]) if "chown" in one.flags else (0, 0)
        to = image.root / (image.folder.strip("/") if not target.startswith("/") else "") / target.strip("/")
        if "from" in one.flags:
            (source,) = sources
            subprocess.run(
                ["cp", "-a", f"{self.images[one.flags['from'][0]].root}/{source.strip('/')}", to], check=True
            )
            subprocess.run(["chown", "-hR", f"{owner[0]}:{owner[1]}", to], check=True)
            return
        for source in sources:
            for name in self.ignored.files(REPOSITORY, source):
                path = to / Path(name).relative_to(source)
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, path)
                for made in (path, path.parent):
                    os.chown(made, *owner)

    def show(self, path: Path, inside: Path) -> None:
        """A file or a folder of this machine, seen in an image."""
        if path.is_dir():
            inside.mkdir(parents=True, exist_ok=True)
        else:
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.touch()
        mount("--rbind", str(path), str(inside))


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def main() -> int:
    """Carry out the file, then the health check and the entry point of its last stage. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="a root file system in the place of the base image")
    parser.add_argument("--work", required=True, help="a folder for the layers")
    parser.add_argument("--target", default="training", help="the last stage to carry out")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--secret", action="append", default=[], metavar="ID=FILE")
    parser.add_argument("--bind", action="append", default=[], metavar="PATH", help="of this machine, seen there, too")
    parser.add_argument("--again", action="store_true", help="call what lies in --work")
    parser.add_argument("--user", help="in the place of the image's, as --user of docker run")
    parser.add_argument("arguments", nargs="*", help="of the entry point")
    options = parser.parse_args()
    if INSIDE not in os.environ:
        inside = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
        os.execvpe("unshare", [*inside, sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})
    rehearsal = Rehearsal(options)
    _, stages = dockerfile.parse((REPOSITORY / "docker" / "Dockerfile").read_text())
    named = {stage.name: stage for stage in stages}
    needed = [options.target]
    for name in needed:  # grows: what a stage begins with, and what it copies from
        copied = [flag for one in named[name].all("COPY") for flag in one.flags.get("from", ())]
        needed += [other for other in (named[name].base, *copied) if other in named and other not in needed]
    for stage in stages:
        if stage.name in needed:
            image = rehearsal.stage(stage)
    print(f"health check: {' '.join(image.healthcheck)}", flush=True)
    print(f"health check: exit code {image.run(image.healthcheck, options.user)}", flush=True)
    command = [*image.entrypoint, *(options.arguments or image.command)]
    print(f"run: {' '.join(command)}", flush=True)
    return image.run(command, options.user)


if __name__ == "__main__":
    sys.exit(main())
