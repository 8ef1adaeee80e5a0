"""`groundup completion`: shell completion of verbs, flags, runs and files."""

from collections.abc import Iterable
from typing import Literal

from groundup.cli.arguments import Positional, known_flags
from groundup.cli.verbs import GROUPS, VERBS, find_verb
from groundup.config import Settings

_BASH = """\
_groundup() {
  local word="${COMP_WORDS[COMP_CWORD]}" words="" flags=""
  COMPREPLY=()
  case "${COMP_WORDS[*]:1:COMP_CWORD-1}" in
%s
  esac
  if [[ "$word" == -* ]]; then
    words="$flags"
  elif [ -n "$flags" ]; then
    words="$(command ls runs 2>/dev/null)"
    COMPREPLY=($(compgen -f -- "$word"))
  fi
  COMPREPLY+=($(compgen -W "$words" -- "$word"))
}
complete -o filenames -F _groundup groundup
"""
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


class Arguments(Settings):
    """Print a shell completion script.

    bash: groundup completion bash >> ~/.bashrc; zsh: groundup completion zsh >> ~/.zshrc; fish:
    groundup completion fish > ~/.config/fish/completions/groundup.fish
    """

    shell: Positional[Literal["bash", "zsh", "fish"]]
    """bash, zsh or fish."""


def run(arguments: Arguments) -> None:
    words: dict[str, Iterable[str]]
    words = {"": dict.fromkeys(verb.split()[0] for verb in VERBS)}
    for group in GROUPS:
        words[group] = dict.fromkeys(verb.split()[1] for verb in VERBS if verb.startswith(group))
    flags = {verb: known_flags(find_verb(verb)[0]) for verb in VERBS}
    if arguments.shell == "fish":
        files = "(command ls runs 2>/dev/null)"
        print(f"complete -c groundup -n 'not __fish_use_subcommand' -a '{files}'")
        for typed, found in words.items():
            print(_fish(f"{typed} ".lstrip() + r"[^ ]*\z", found))
        for typed, found in flags.items():
            print(_fish(f"{typed} ", found))
        return
    cases = [f'    "{key}") words="{" ".join(words[key])}";;' for key in words]
    cases += [f'    "{verb}"*) flags="{" ".join(flags[verb])}";;' for verb in flags]
    script = _BASH % "\n".join(cases)
    print(_ZSH + script if arguments.shell == "zsh" else script, end="")


def _fish(typed: str, words: Iterable[str]) -> str:
    """A fish rule: the words that may follow what was typed."""
    is_typed = f'string match -qr "^groundup {typed}" -- (commandline -cp)'
    return f"complete -c groundup -n '{is_typed}' -a '{' '.join(words)}'"
