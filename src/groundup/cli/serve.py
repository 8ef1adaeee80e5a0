"""`groundup serve`: an OpenAI-compatible API and web pages for trained models."""

import webbrowser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from groundup.cli.arguments import Positional
from groundup.cli.shared import LoadingFlags, find_run
from groundup.errors import ConfigError
from groundup.runs.folder import RunFolder
from groundup.serving.settings import ServerFlags, ServerSettings, read_tokens

if TYPE_CHECKING:
    from groundup.generation import LanguageModel


class Arguments(LoadingFlags, ServerFlags):
    """Serve trained models: an OpenAI-compatible API, a playground, chat, and learning curves of
    all runs.

    Bearer tokens come from --token-file or the environment variable GROUNDUP_SERVE_TOKEN."""

    runs: Positional[tuple[str, ...]]
    """Run folders, names of runs in runs/, or folders of runs. The first run (for a folder, its
    newest) answers requests that name no model; others are loaded on request."""

    token_file: Path | None = None
    """File of bearer tokens, one per line; each token counts as one client."""

    trusted_proxy: tuple[str, ...] = ()
    """Addresses of proxies whose X-Forwarded-For header is trusted."""

    open_: bool = False
    """Open the pages in a browser."""

    runs_folder: Path | None = None
    """Folder of the runs whose curves the pages show. Default: the first run's folder."""


def run(arguments: Arguments) -> None:
    folders = find_runs(arguments.runs)
    settings = ServerSettings(
        trusted_proxies=arguments.trusted_proxy,
        runs_folder=arguments.runs_folder or next(iter(folders.values())).parent,
        tokens=read_tokens(arguments.token_file),
        **arguments.model_dump(include=set(ServerFlags.model_fields)),
    )
    # Late, so that mistakes in the settings are reported before torch is loaded.
    from groundup.serving.launch import address_to_open, open_socket, serve
    from groundup.serving.models import Source

    sources = {
        name: Source(partial(arguments.load, folder), RunFolder(folder))
        for name, folder in folders.items()
    }
    with open_socket(settings) as listener:

        def announce(first: "LanguageModel") -> None:
            more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
            where = f"{next(iter(sources))}, step {first.step:,},{more} at"
            print(f"serving {where} {address_to_open(listener)}", flush=True)
            if arguments.open_:
                webbrowser.open(address_to_open(listener))

        serve(sources, settings, listener, announce)


def find_runs(wanted: tuple[str, ...]) -> dict[str, Path]:
    """The runs to serve, by name; from a folder, those with a checkpoint, newest first."""
    folders: dict[str, Path] = {}
    for one in wanted:
        found = []
        if Path(one).is_dir() and not RunFolder(one).has_run():
            runs = [RunFolder(path) for path in Path(one).iterdir()]
            found = [run for run in runs if run.has_run() and any(run.checkpoints.glob("step_*"))]
            found.sort(key=lambda run: run.config_file.stat().st_mtime, reverse=True)
        for path in [run.path for run in found] or [find_run(one)]:
            folder = path.resolve()
            if folders.setdefault(folder.name, folder) != folder:
                raise ConfigError(
                    f"{folder} and {folders[folder.name]} have the same name: rename one of them"
                )
    return folders
