"""Hugging Face's tokenizer.json, for byte-level BPE.

An unsupported setting that affects the ids raises an error that names it. Padding, truncation and
the tokens added by a post-processor apply after encoding and are ignored: they are the caller's
concern.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from groundup.errors import TokenizerError
from groundup.files import write_json_atomic, write_text_atomic
from groundup.tokenizer.definition import TokenizerDefinition, add_to_vocab
from groundup.tokenizer.formats.json_files import excerpt, parse_json, read_file, require
from groundup.tokenizer.formats.spelling import read_merges, read_vocab, spell_merges, spell_vocab
from groundup.tokenizer.patterns import GPT2, Pattern, find_staged_pattern

# Syntax that Hugging Face's engine (Oniguruma) interprets differently from ours: anchors match at
# lines, `{1,3}+` repeats, `\w` is another set. Only published patterns may contain it.
_DIALECT = re.compile(r"\}\+|\\[zZ]|(?<!\\)\$|(?<!\\)\^|\\[wW]")
_CLASS = re.compile(r"(?<!\\)\[\^?\]?(?:\\.|[^\]\\])*\]")

# (behavior, invert) of a Split to our behaviour; `invert` swaps matches with the text between them.
_BEHAVIOURS = {
    ("Isolated", False): "isolated",
    ("Removed", False): "removed",
    ("Removed", True): "kept",
    ("MergedWithPrevious", False): "merged with previous",
    ("MergedWithNext", False): "merged with next",
    ("Contiguous", False): "contiguous",
}
# With `invert`, merging goes to the other side, provided no two matches are adjacent.
_INVERTED = {
    "Isolated": "isolated",
    "Contiguous": "contiguous",
    "MergedWithPrevious": "merged with next",
    "MergedWithNext": "merged with previous",
}
_PUNCTUATION = r"[\p{P}$+<=>\^`|~]"
_SETTINGS_NAME = "tokenizer_config.json"
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")
_STRIPPING = ("single_word", "lstrip", "rstrip")


def read(value: dict[str, Any], path: Path) -> TokenizerDefinition:
    """Read a tokenizer.json."""
    model = value["model"]
    _check(model, value.get("normalizer"), path)
    special_tokens = _read_added_tokens(value.get("added_tokens") or [], path)
    vocabulary = require(model, "vocab", dict, path)
    for text, id in special_tokens.items():
        if vocabulary.get(text, id) != id:
            raise TokenizerError(
                f"the added token {text!r} in {path} has id {id}, but "
                f"{excerpt(vocabulary[text])} in the vocabulary"
            )
    vocab, token_of = read_vocab(vocabulary, path, plain_texts=special_tokens)
    return TokenizerDefinition(
        vocab=add_to_vocab(vocab, special_tokens),
        merges=read_merges(require(model, "merges", list, path), token_of, path),
        special_tokens=special_tokens,
        pattern=_read_pattern(value.get("pre_tokenizer"), path),
        whole_words=bool(model.get("ignore_merges", False)),
        lineage={"source": {"format": "huggingface", "file": path.name}},
        chat_template=_read_chat_template(path.parent),
    ).validate()


def write(definition: TokenizerDefinition, path: Path) -> list[Path]:
    """Write a tokenizer.json, and the chat template to the tokenizer_config.json next to it."""
    vocabulary = spell_vocab(definition, "Hugging Face")
    flags = dict.fromkeys((*_STRIPPING, "normalized"), False)
    added_tokens = [
        {"id": id, "content": text, **flags, "special": True}
        for text, id in sorted(definition.special_tokens.items(), key=lambda item: item[1])
    ]
    value = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": None,
        "pre_tokenizer": _express_pattern(definition.pattern),
        "post_processor": None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            **dict.fromkeys(("dropout", "unk_token", *_AFFIXES), None),
            **dict.fromkeys(("fuse_unk", "byte_fallback"), False),
            "ignore_merges": definition.whole_words,
            "vocab": vocabulary,
            "merges": spell_merges(definition, vocabulary),
        },
    }
    write_text_atomic(path, json.dumps(value, ensure_ascii=False, separators=(",\n", ": ")))
    if definition.chat_template is None:
        return [path]
    settings_path = path.parent / _SETTINGS_NAME
    settings = _read_settings(settings_path) or {"tokenizer_class": "PreTrainedTokenizerFast"}
    write_json_atomic(settings_path, {**settings, "chat_template": definition.chat_template})
    return [path, settings_path]


def _read_settings(path: Path) -> dict[str, Any]:
    return parse_json(read_file(path, path.parent), path) if path.is_file() else {}


def _read_chat_template(folder: Path) -> str | None:
    """Read the template next to a tokenizer.json: chat_template.jinja or tokenizer_config.json."""
    settings = _read_settings(folder / _SETTINGS_NAME)
    found = settings.get("chat_template")
    if (path := folder / "chat_template.jinja").is_file():
        found = read_file(path, folder).decode("utf-8", "replace")
    elif isinstance(found, list):
        # Named templates, some for tools or retrieval; the plain one is called "default".
        by_name = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = by_name.get("default")
    if found is None:
        return None
    value = {"chat_template": found}
    return _with_roles(require(value, "chat_template", str, folder / _SETTINGS_NAME), settings)


def _with_roles(template: str, settings: dict[str, Any]) -> str:
    """Prefix the template with definitions of `bos_token` etc., if it uses them undefined."""
    lines = ""
    for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
        text = settings.get(role)
        text = text.get("content") if isinstance(text, dict) else text
        named = re.search(rf"\b{role}\b", template) and not re.search(rf"set {role} ?=", template)
        if named and isinstance(text, str):
            lines += f"{{% set {role} = {json.dumps(text, ensure_ascii=False)} %}}\n"
    return lines + template


def _refuse(what: str, path: Path) -> TokenizerError:
    return TokenizerError(
        f"the tokenizer file {path} has {what}, which groundup does not support: the ids would "
        f"differ; only plain byte-level BPE can be read"
    )


def _check(model: dict[str, Any], normalizer: Any, path: Path) -> None:
    # Early files have no type; merges identify BPE.
    kind = model.get("type") or ("BPE" if "merges" in model else "unknown")
    if kind != "BPE":
        raise _refuse(f"a model of type {kind}", path)
    for key in ("dropout", *_AFFIXES):
        if model.get(key):
            raise _refuse(f"{key} {model[key]!r}", path)
    if normalizer not in (None, {"type": "Sequence", "normalizers": []}):
        raise _refuse(f"a normalizer, {excerpt(normalizer)}", path)


def _read_added_tokens(added_tokens: list[Any], path: Path) -> dict[str, int]:
    special_tokens: dict[str, int] = {}
    for token in added_tokens:
        require({"added_tokens": token}, "added_tokens", dict, path)
        text, id = require(token, "content", str, path), require(token, "id", int, path)
        if flags := [flag for flag in _STRIPPING if token.get(flag)]:
            raise _refuse(f"{flags[0]} set for the added token {text!r}", path)
        special_tokens[text] = id
    return special_tokens


def _read_pattern(pre_tokenizer: Any, path: Path) -> Pattern:
    """Convert a pre-tokenizer to a pattern; its last step must be ByteLevel."""
    steps = [pre_tokenizer]
    if isinstance(pre_tokenizer, dict) and pre_tokenizer.get("type") == "Sequence":
        steps = require(pre_tokenizer, "pretokenizers", list, path)
    kinds = [
        require({"pre_tokenizer": one}, "pre_tokenizer", dict, path).get("type") for one in steps
    ]
    if kinds.count("ByteLevel") != 1 or kinds[-1] != "ByteLevel":
        raise _refuse("no ByteLevel pre-tokenizer at the end", path)
    stages: list[str] = []
    behaviours: list[str] = []
    for kind, step in zip(kinds, steps, strict=True):
        if kind == "Split":
            stages.append(_read_split(step, path))
        elif kind == "Digits":
            stages.append(r"\p{N}" if step.get("individual_digits") else r"\p{N}+")
        elif kind == "Punctuation":
            stages.append(_PUNCTUATION)
        elif kind != "ByteLevel":
            raise _refuse(f"the pre-tokenizer {kind}", path)
        behaviours += [_read_behaviour(step, path)] * (len(stages) - len(behaviours))
    if steps[-1].get("add_prefix_space", True):
        raise _refuse("add_prefix_space in its ByteLevel pre-tokenizer", path)
    if steps[-1].get("use_regex", True):
        stages.extend(GPT2.stages)
        behaviours.append("isolated")
    if not stages:
        # Without a pattern, the whole text is one pre-token.
        return Pattern("custom", (r"(?s:.+)",))
    # The matches of published patterns cover the text, so "kept" removes nothing.
    if behaviours == ["kept"] and (known := find_staged_pattern(tuple(stages))).name != "custom":
        return known
    pattern = find_staged_pattern(tuple(stages), tuple(behaviours))
    if (found := _find_dialect(pattern)) is not None:
        raise _refuse(f"{found!r} in its split pattern, with another meaning there", path)
    return pattern


def _read_split(step: dict[str, Any], path: Path) -> str:
    pattern = require(step, "pattern", dict, path)
    if "Regex" in pattern:
        return str(require(pattern, "Regex", str, path))
    return re.escape(str(require(pattern, "String", str, path)))


def _read_behaviour(step: dict[str, Any], path: Path) -> str:
    name, inverted = str(step.get("behavior", "Isolated")), bool(step.get("invert", False))
    found = _BEHAVIOURS.get((name, inverted)) or (_INVERTED.get(name) if inverted else None)
    if found is None:
        raise _refuse(f"a {step['type']} with behavior {excerpt(name)}", path)
    return found


def _find_dialect(pattern: Pattern) -> str | None:
    for stage in pattern.stages if pattern.name == "custom" else ():
        # Inside a class, $ and ^ are literals in both engines.
        outside = _CLASS.sub(lambda found: "".join(re.findall(r"\\[wW]", found.group())), stage)
        if stage not in GPT2.stages and (found := _DIALECT.search(outside)):
            return found.group()
    return None


def _express_pattern(pattern: Pattern) -> dict[str, Any]:
    if pattern == GPT2:
        return _byte_level(use_regex=True)
    if (found := _find_dialect(pattern)) is not None:
        raise TokenizerError(
            f"Hugging Face interprets {found!r} in a split pattern differently; convert to "
            f"groundup instead"
        )
    names = {behaviour: name for name, behaviour in _BEHAVIOURS.items()}
    behaviours = pattern.behaviours or ("isolated",) * len(pattern.stages)
    splits = [
        {"type": "Split", "pattern": {"Regex": stage}, "behavior": name, "invert": invert}
        for stage, behaviour in zip(pattern.stages, behaviours, strict=True)
        for name, invert in [names[behaviour]]
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, _byte_level(use_regex=False)]}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    options = {"add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "ByteLevel", **options}
