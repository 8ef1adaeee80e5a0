"""`groundup serve`: a model behind OpenAI's completions API, with pages to look at."""

from pathlib import Path

from pydantic import Field

from groundup.cli.shared import ModelFlags, find_run


class Arguments(ModelFlags):
    """Serve a trained model on this machine: an API, a playground, the learning curves of all runs.

    Bearer tokens are read from --token-file or from the variable GROUNDUP_SERVE_TOKEN.
    """

    host: str = "127.0.0.1"
    """The address to listen on; any but this machine's own needs a token."""

    port: int = Field(8000, ge=0, le=65535)
    """The port to listen on; 0 takes any that is free."""

    max_rows: int = Field(64, ge=1, le=10_000)
    """Sequences generated at once: the rows of the batch."""

    max_queue: int = Field(256, ge=0, le=10**6)
    """Sequences that may wait for a row; beyond that, requests are answered with 429."""

    max_client_rows: int | None = Field(None, ge=1, le=10_000)
    """Rows that one client may hold; 7/8 of --max-rows if not given."""

    drain_seconds: float = Field(30.0, gt=0, le=1e6)
    """Seconds to finish running requests after SIGTERM or Ctrl-C; the process ends by then."""

    token_file: Path | None = None
    """A file of bearer tokens, one a line; each token counts as one client."""

    trusted_proxy: tuple[str, ...] = ()
    """Addresses of proxies whose X-Forwarded-For header is trusted."""

    runs_folder: Path | None = None
    """The runs whose curves the pages show; the folder that the run is in if not given."""


def run(arguments: Arguments) -> None:
    """Open the port, load the model, serve until told to stop."""
    from groundup.runs.folder import RunFolder
    from groundup.serving.settings import ServerSettings, read_tokens

    folder = find_run(arguments.run).resolve()
    samples = RunFolder(folder).read_config().samples
    names = ("host", "port", "max_rows", "max_queue", "max_client_rows", "drain_seconds")
    settings = ServerSettings(
        # Default prompts say nothing about the model.
        prompts=samples.prompts if samples.every_steps else (),
        trusted_proxies=arguments.trusted_proxy,
        runs_folder=arguments.runs_folder or folder.parent,
        tokens=read_tokens(arguments.token_file),
        **{name: getattr(arguments, name) for name in names},
    )
    # After the settings, so that a mistake is reported before torch is loaded.
    from groundup.serving.launch import address_to_open, open_socket, serve

    with open_socket(settings) as listener:
        language_model = arguments.load(folder)

        def announce() -> None:
            where = f"{folder.name}, step {language_model.step:,}, at {address_to_open(listener)}"
            print(f"serving {where}", flush=True)

        serve({folder.name: language_model}, settings, listener, announce)
