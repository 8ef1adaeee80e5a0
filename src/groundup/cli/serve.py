"""`groundup serve`: a model behind OpenAI's completions API, with pages to look at."""

from pathlib import Path

from groundup.cli.shared import ModelFlags, find_run
from groundup.serving.settings import ServerFlags, ServerSettings, read_tokens


class Arguments(ModelFlags, ServerFlags):
    """Serve a trained model on this machine: an API, a playground, the learning curves of all runs.

    Bearer tokens are read from --token-file or from the variable GROUNDUP_SERVE_TOKEN.
    """

    token_file: Path | None = None
    """A file of bearer tokens, one a line; each token counts as one client."""

    trusted_proxy: tuple[str, ...] = ()
    """Addresses of proxies whose X-Forwarded-For header is trusted."""

    runs_folder: Path | None = None
    """The runs whose curves the pages show; the folder that the run is in if not given."""


def run(arguments: Arguments) -> None:
    """Open the port, load the model, serve until told to stop."""
    from groundup.runs.folder import RunFolder

    folder = find_run(arguments.run).resolve()
    samples = RunFolder(folder).read_config().samples
    settings = ServerSettings(
        # Default prompts say nothing about the model.
        prompts=samples.prompts if samples.every_steps else (),
        trusted_proxies=arguments.trusted_proxy,
        runs_folder=arguments.runs_folder or folder.parent,
        tokens=read_tokens(arguments.token_file),
        **arguments.model_dump(include=set(ServerFlags.model_fields)),
    )
    # After the settings, so that a mistake is reported before torch is loaded.
    from groundup.serving.launch import address_to_open, open_socket, serve

    with open_socket(settings) as listener:
        language_model = arguments.load(folder)

        def announce() -> None:
            where = f"{folder.name}, step {language_model.step:,}, at {address_to_open(listener)}"
            print(f"serving {where}", flush=True)

        serve({folder.name: language_model}, settings, listener, announce)
