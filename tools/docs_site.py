"""Generated pages of the docs site: references of the API, the command line, the settings and the
errors, the changelog, and lists of pages in the navigation. MkDocs calls the `on_…` hooks.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from groundup.cli.arguments import Flag, flags_of
from groundup.cli.verbs import VERBS, find_verb
from groundup.config import Settings
from groundup.runs.config import RunConfig

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src" / "groundup"
API = "tokenizer nn model optim data training generation runs checkpoint planner interop".split()
# Pages outside docs/, with their paths on the site.
SHOWN = {"CHANGELOG.md": "reference/changelog.md"}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {place: (REPOSITORY / name).read_text("utf-8") for name, place in SHOWN.items()}
    pages["reference/cli.md"] = describe_commands()
    pages["reference/settings.md"] = describe_settings()
    pages["reference/errors.md"] = describe_errors()
    pages |= {f"reference/api/{package}.md": describe_package(package) for package in API}
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    config.nav = [_listed(entry, files) for entry in config.nav or []]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links to files that are not pages by their path in the repository."""
    folder = (REPOSITORY / "docs" / page.file.src_uri).parent

    def replace(link: re.Match[str]) -> str:
        text, target, _anchor = link.groups()
        path = (folder / target).resolve()
        is_page = path.is_relative_to(REPOSITORY / "docs") and not path.is_dir()
        if "://" in target or is_page or not path.exists():
            return link[0]
        name = path.relative_to(REPOSITORY).as_posix()
        if name in SHOWN:
            up = "../" * page.file.src_uri.count("/")
            return f"[{text}]({up}{SHOWN[name]})"
        return text if name in text else f"{text} (`{name}`)"

    return _LINK.sub(replace, markdown)


def describe_package(package: str) -> str:
    """List the public names of a package; mkdocstrings inserts their docstrings."""
    tree = ast.parse((PACKAGE / package / "__init__.py").read_text("utf-8"))
    homes = [
        f"{node.module}.{name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "groundup.lazy_exports"
        for name in node.names
        if node.module is not None and node.module.startswith("groundup.")
    ]
    shown = "\n\n".join(f"::: {home}" for home in homes)
    return f"# groundup.{package}\n\n{ast.get_docstring(tree) or ''}\n\n{shown}\n"


def describe_commands() -> str:
    parts = [
        "# Command line\n\nGenerated from the program. Flags with a dot, such as `--model.d-ff`, "
        "are [settings](settings.md). Exit status: 0 success, 2 an error in the command or its "
        "input (one `error:` line), 1 a failure of groundup, 130 interrupted."
    ]
    for verb in VERBS:
        arguments: type[Settings] = find_verb(verb)[0]
        flags = [flag for flag in flags_of(arguments) if "." not in flag.setting]
        usage = " ".join(["groundup", verb, *(one.name for one in flags if one.is_positional)])
        about = inspect.cleandoc(arguments.__doc__ or "")
        parts.append(f"## {verb}\n\n    {usage} [OPTIONS]")
        parts.append("\n".join(_escaped(line) for line in about.splitlines()))
        parts.append(_table(flags))
    return "\n\n".join(parts) + "\n"


def describe_settings() -> str:
    parts = [
        "# Settings\n\nThe keys of `config.yaml` and `groundup train --config FILE`, and flags of "
        "`train`, `tune` and `plan`: `optimizer.learning_rate` is `--optimizer.learning-rate`."
    ]
    sections: dict[str, list[Flag]] = {}
    for flag in flags_of(RunConfig):
        sections.setdefault(flag.setting.rpartition(".")[0] or "run", []).append(flag)
    for section, flags in sections.items():
        parts += [f"## {section}", _table(flags)]
    return "\n\n".join(parts) + "\n"


def describe_errors() -> str:
    parts = [
        "# Errors\n\nAll error messages, with `…` in place of values. Search it for words "
        "of your message; [troubleshooting](../troubleshooting.md) explains the common ones."
    ]
    for path in sorted(PACKAGE.rglob("*.py")):
        raised = (
            node.exc
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        )
        errors = [(ast.unparse(one.func), one.args[0]) for one in raised if one.args]
        shown = [
            f"- {kind}: {_escaped(_message(text))}"
            for kind, text in errors
            if _message(text) and kind[0].isupper()
        ]
        if shown:
            parts += [f"## {path.relative_to(PACKAGE).as_posix()}", "\n".join(shown)]
    return "\n\n".join(parts) + "\n"


def _message(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_message(one) or "…" for one in node.values)
    return ""


def _table(flags: list[Flag]) -> str:
    rows = [f"| `{flag.name}` | {_default(flag)} | {_help(flag)} |" for flag in flags]
    return "\n".join(["| flag | default | meaning |", "| --- | --- | --- |", *rows])


def _default(flag: Flag) -> str:
    if flag.field.is_required():
        return "required"
    value = flag.field.get_default(call_default_factory=True)
    if isinstance(value, tuple | list):
        value = " ".join(map(str, value)) or None
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _help(flag: Flag) -> str:
    # A backslash before | would show inside code.
    kind = "" if flag.is_switch or flag.is_positional else f" `{flag.metavar}`"
    kind = kind.replace("|", "` or `")
    return _escaped(" ".join((flag.field.description or "").split())) + kind


def _escaped(text: str) -> str:
    return re.sub(r"([<>|*_])", r"\\\1", text)


def _listed(entry: Any, files: Files) -> Any:
    """Replace a folder in the navigation by its pages, its README first."""
    if isinstance(entry, dict):
        return {
            name: [_listed(one, files) for one in inner] if isinstance(inner, list) else inner
            for name, inner in entry.items()
        }
    if entry.endswith(".md"):
        return entry
    found = sorted(_pages_in(entry, files), key=lambda uri: (not uri.endswith("README.md"), uri))
    folder = entry.rpartition("/")[2]
    return {"Python API" if folder == "api" else folder.capitalize(): found}


def _pages_in(folder: str, files: Files) -> Iterator[str]:
    for file in files.documentation_pages():
        if file.src_uri.startswith(f"{folder}/"):
            yield file.src_uri
