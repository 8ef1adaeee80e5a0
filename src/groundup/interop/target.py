"""Where an export goes: a folder that is whole or absent, and never one with other things in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from groundup.checkpoint.folder_swap import atomic_folder, remove_leftovers
from groundup.errors import ConfigError

CARD_NAME = "README.md"

# What an export may hold, and so what another may replace.
_OUR_SUFFIXES = (".json", ".safetensors", ".gguf", ".md")


@contextlib.contextmanager
def export_folder(folder: str | os.PathLike[str], *, force: bool) -> Iterator[Path]:
    """Yield a folder to fill beside `folder`; it takes that place if the block succeeds.

    A folder that is not empty needs `force`, which replaces an earlier export and nothing else.
    """
    destination = Path(os.path.realpath(folder))
    if destination.exists():
        _check_replaceable(destination, Path(folder), force=force)
    destination.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(destination.parent)
    with atomic_folder(destination) as temporary:
        yield temporary


def check_file_is_free(file: Path, *, force: bool) -> None:
    """Refuse a file that is there, unless it may be replaced; folders are never replaced."""
    if file.is_dir():
        raise ConfigError(f"{file} is a folder: choose another name")
    if file.exists() and not force:
        raise ConfigError(f"{file} exists: choose another name, or replace it with --force")


def _check_replaceable(destination: Path, shown: Path, *, force: bool) -> None:
    if not destination.is_dir():
        raise ConfigError(f"{shown} is a file, and an export is a folder: choose another name")
    if Path.cwd().is_relative_to(destination):
        raise ConfigError(
            f"{shown} holds the folder you are in, and an export replaces its folder as a whole: "
            f"name a new one"
        )
    entries = sorted(destination.iterdir())
    if not entries:
        return
    foreign = [one.name for one in entries if one.is_dir() or one.suffix not in _OUR_SUFFIXES]
    if foreign:
        raise ConfigError(
            f"{shown} holds {foreign[0]}, which is no part of an export: choose another folder"
        )
    if not force:
        raise ConfigError(
            f"{shown} is not empty: choose another folder, or replace the export in it with --force"
        )
