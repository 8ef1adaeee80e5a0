"""`groundup completion`: a script that lets a shell complete verbs, flags, runs and files."""

import importlib
import shlex
from typing import Literal

from groundup.cli.arguments import Positional, known_flags
from groundup.cli.verbs import GROUPS, VERBS, module_of
from groundup.config import Settings

# %(verbs)s and the like are filled in; zsh reads the same by its bashcompinit.
_BASH = """\
_groundup() {
  local word="${COMP_WORDS[COMP_CWORD]}" verb="${COMP_WORDS[1]}" words=""
  local at=1
  case "$verb:$COMP_CWORD" in
    *:1) ;;
    %(groups)s) verb="$verb ${COMP_WORDS[2]}"; at=2;;
  esac
  if [ "$COMP_CWORD" -le "$at" ]; then
    case "${COMP_WORDS[1]}:$at" in
%(second)s
      *) words="%(first)s";;
    esac
  elif [[ "$word" == -* ]]; then
    case "$verb" in
%(flags)s
    esac
  else
    [ -d runs ] && words="$(command ls runs)"
    COMPREPLY=($(compgen -f -- "$word"))
  fi
  COMPREPLY+=($(compgen -W "$words" -- "$word"))
}
complete -o filenames -F _groundup groundup
"""


class Arguments(Settings):
    """Print what makes a shell complete groundup's words.

    bash: groundup completion bash >> ~/.bashrc; zsh: groundup completion zsh >> ~/.zshrc; fish:
    groundup completion fish > ~/.config/fish/completions/groundup.fish
    """

    shell: Positional[Literal["bash", "zsh", "fish"]]
    """bash, zsh or fish."""


def run(arguments: Arguments) -> None:
    """Write the script to standard output."""
    flags = {
        verb: known_flags(importlib.import_module(module_of(verb)).Arguments) for verb in VERBS
    }
    print(_fish(flags) if arguments.shell == "fish" else _bash(flags, arguments.shell), end="")


def _bash(flags: dict[str, list[str]], shell: str) -> str:
    def cases(words: dict[str, list[str]]) -> str:
        return "\n".join(f'      "{key}") words="{" ".join(words[key])}";;' for key in words)

    seconds = {f"{group}:2": _seconds(group) for group in GROUPS}
    first = " ".join(dict.fromkeys(verb.split()[0] for verb in VERBS))
    parts = {"groups": "|".join(f"{group}:*" for group in GROUPS), "first": first}
    head = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
    script = _BASH % {**parts, "second": cases(seconds), "flags": cases(flags)}
    return head + script if shell == "zsh" else script


def _fish(flags: dict[str, list[str]]) -> str:
    lines = [
        "complete -c groundup -n 'not __fish_use_subcommand' -a '(command ls runs 2>/dev/null)'"
    ]
    for verb, summary in [*VERBS.items(), *GROUPS.items()]:
        if " " not in verb:
            told = f"-a {verb} -d {shlex.quote(summary)}"
            lines.append(f"complete -c groundup -f -n __fish_use_subcommand {told}")
    for group in GROUPS:
        seen = f"__fish_seen_subcommand_from {group}"
        lines.append(f"complete -c groundup -n '{seen}' -a '{' '.join(_seconds(group))}'")
    for verb, names in flags.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in verb.split())
        lines += [f"complete -c groundup -n '{seen}' -l {name[2:]}" for name in names]
    return "\n".join(lines) + "\n"


def _seconds(group: str) -> list[str]:
    return [verb.split()[1] for verb in VERBS if verb.startswith(f"{group} ")]
