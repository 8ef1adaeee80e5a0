"""Settings: strictness, merge order, error messages with locations; and no value of any setting in
the package causes more than a one-line error."""

import importlib
import math
import os
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

import groundup
from groundup.config import Settings, flatten, kinds_of, load_settings, load_yaml, save_yaml
from groundup.errors import ConfigError
from groundup.model import ModelConfig, TransformerLM
from groundup.model.config import preset
from groundup.planner import check_model_memory
from groundup.runs.config import RunConfig


class ModelSettings(Settings):
    d_model: int = pydantic.Field(default=512, gt=0)
    d_ff: int = 1344
    name: str = "small"


class RunSettings(Settings):
    seed: int = 0
    learning_rate: float = 1e-3
    model: ModelSettings = ModelSettings()
    teacher: ModelSettings | None = None
    files: tuple[str, ...] = ()
    folder: Path = Path()


class Needs(Settings):
    out: str


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_file_overrides_defaults_and_overrides_the_file(tmp_path: Path) -> None:
    assert load_settings(RunSettings) == RunSettings()
    assert load_settings(RunSettings, write(tmp_path, "# nothing yet\n")) == RunSettings()
    assert load_settings(RunSettings, write(tmp_path, "learning_rate: 3e-4")).learning_rate == 3e-4
    settings = load_settings(RunSettings, None, {"teacher.d_model": 8})
    assert settings.teacher == ModelSettings(d_model=8)
    path = write(tmp_path, "seed: 1\nmodel:\n  d_model: 64\n  d_ff: 128\n")
    settings = load_settings(RunSettings, path, {"model.d_ff": 256, "model": {"name": "tiny"}})
    assert settings.seed == 1
    assert settings.learning_rate == 1e-3
    assert settings.model == ModelSettings(d_model=64, d_ff=256, name="tiny")
    assert settings.with_(model={"d_ff": 8}) == settings.with_(**{"model.d_ff": 8})
    assert settings.with_(**{"teacher.d_ff": 8}).teacher == ModelSettings(d_ff=8)
    changed = settings.with_(seed=2, model=ModelSettings(d_ff=8))
    assert (changed.seed, changed.learning_rate) == (2, 1e-3)
    assert changed.model == ModelSettings(d_ff=8) and settings.seed == 1
    with pytest.raises(ConfigError, match=r"unknown setting model\.d_fff: did you mean d_ff"):
        settings.with_(**{"model.d_fff": 8})
    with pytest.raises(ConfigError, match=r"model\.d_model is 0"):
        settings.with_(model={"d_model": 0})
    with pytest.raises(ConfigError, match="make a copy"):
        settings.seed = 3  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"lr: did you mean learning_rate"):
        settings.with_(lr=0.1)
    with pytest.raises(ConfigError, match=r"hidden_size: did you mean .*\.d_model"):
        settings.with_(hidden_size=64)


@pytest.mark.parametrize(
    ("values", "line", "complaint"),
    [
        ({"sede": 1}, 2, "unknown setting sede: did you mean seed?"),
        ({"s[ed": 1}, 2, "unknown setting s[ed: did you mean seed?"),
        ({"teacher": {"dff": 1}}, 3, "unknown setting teacher.dff: did you mean d_ff?"),
    ],
)
def test_unknown_keys_report_location_and_suggestion(
    tmp_path: Path, values: dict[str, Any], line: int, complaint: str
) -> None:
    path = write(tmp_path, "seed: 1\n" + yaml.safe_dump(values))
    for place, load in (
        (f" (in {path} line {line})", lambda: load_settings(RunSettings, path)),
        ("", lambda: load_settings(RunSettings, None, values)),
        ("", lambda: RunSettings(**values)),
    ):
        with pytest.raises(ConfigError) as caught:
            load()
        assert str(caught.value) == complaint + place


def test_invalid_values_report_key_value_and_location(tmp_path: Path) -> None:
    path = write(tmp_path, 'model:\n  d_model: -4\nfiles: [a, 7]\nfolder: "a\\0b"\n')
    # Overrides are not attributed to the file.
    with pytest.raises(ConfigError) as caught:
        load_settings(RunSettings, path, {"seed": "many", "model.d_ff": 1.5})
    message = str(caught.value)
    assert "\n" not in message
    assert f"model.d_model is -4, but input should be greater than 0 (in {path} line 2)" in message
    assert f"files.1 is 7, but input should be a valid string (in {path} line 3)" in message
    assert (
        f"folder is 'a\\x00b', but a path cannot contain a NUL character (in {path} line 4)"
        in message
    )
    assert message.count("(in ") == 3
    for typed in ("seed is 'many', but", "model.d_ff is 1.5, but"):
        assert typed in message
    for values, complaint in (
        ({"model": {"d_model": -4}}, r"model\.d_model is -4, but"),
        ({"seed": True}, "seed is True, but must be a number"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            RunSettings(**values)
    with pytest.raises(ConfigError, match=r"out is missing .* \(in .*run\.yaml\)"):
        load_settings(Needs, write(tmp_path, ""))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("seed: 1\nmodel: [1, 2\n", r"line 3 is not plain YAML"),
        ("- a\n- b\n", "must contain"),
        ("seed: 1\nseed: 2\n", "sets seed twice, on lines 1 and 2"),
        ("model:\n  d_ff: 1\n  d_ff: 2\n", r"sets model\.d_ff twice, on lines 2 and 3"),
        ("seed: " + "[" * 3000, "nested too deep"),
        ("seed: !!python/object/apply:os.getcwd []\n", "line 1 is not plain YAML"),
        *(
            (one, "run.yaml")
            for one in ("model: " + "[" * 600, "model: " + "{a: " * 600, "- " * 600)
        ),
        *(
            (one, "run.yaml")
            for one in ("model: &model {teacher: *model}", "files: &files [*files]")
        ),
        *(
            (f"seed: {one}", "run.yaml")
            for one in ("9" * 5_000, "2001-99-99", "1" + ":59" * 500 + ".5")
        ),
        *((f"seed: !!{one}", "run.yaml") for one in ("bool perhaps", "timestamp today")),
        *((one, "run.yaml") for one in ("x" * (1 << 18), "\0")),
    ],
    ids=lambda text: text[:20],
)
def test_invalid_yaml_reports_the_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_settings(RunSettings, write(tmp_path, text))
    assert "run.yaml" in str(caught.value) and len(str(caught.value)) < 500 + len(str(tmp_path))
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff\n")
    os.mkfifo(tmp_path / "pipe")
    wrong = {"none.yaml": "cannot be read", "": "cannot", "latin.yaml": "utf-8", "pipe": "regular"}
    for name, reason in wrong.items():
        with pytest.raises(ConfigError, match=reason):
            load_yaml(tmp_path / name)


@given(
    seed=st.integers(),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    name=st.text(),
    names=st.lists(st.text(), max_size=3),
)
@example(0, 0.0, "", ["\x85", "a\u2028b", "a\r\nb\n", "  x ", "no", "1e3", "\ufeff"])
def test_saved_settings_round_trip(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rate: float, name: str, names: list[str]
) -> None:
    settings = RunSettings(
        seed=seed, learning_rate=rate, model=ModelSettings(name=name), files=tuple(names)
    )
    path = tmp_path_factory.mktemp("settings") / "run.yaml"
    save_yaml(path, settings)
    assert load_settings(RunSettings, path) == settings


def test_flatten_yields_leaves_by_dotted_names() -> None:
    tree = {"a": {"b": {"c": 1}, "d.e": [2]}, "f": {}, 3: None}
    assert dict(flatten(tree)) == {"a.b.c": 1, "a.d.e": [2], "f": {}, "3": None}


def test_overrides_replace_lists_but_not_wrong_sections(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data:\n  mix: [a=0.7, b=0.3]\n", encoding="utf-8")
    mixed = load_settings(RunConfig, file, {"data.mix": {"a": 0.5, "b": 0.5}})
    assert mixed.data.mix == ("a=0.5", "b=0.5")
    file.write_text("model: small\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"model is 'small', but"):
        load_settings(RunConfig, file, {"model.d_model": 64})


# The settings files that come with groundup

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
TRAIN_CONFIGS = sorted((CONFIGS / "train").glob("*.yaml"))
# tests/experiments/test_spec.py loads and plans these.
SWEEP_CONFIGS = sorted((CONFIGS / "sweep").glob("*.yaml"))


@pytest.mark.parametrize("path", TRAIN_CONFIGS, ids=lambda path: path.stem)
def test_settings_files_round_trip_and_name_their_run(path: Path, tmp_path: Path) -> None:
    config = load_settings(RunConfig, path)
    save_yaml(tmp_path / "config.yaml", config)
    assert load_settings(RunConfig, tmp_path / "config.yaml") == config
    assert config.name == path.stem


def test_the_quickstart_settings_match_its_preset() -> None:
    config = load_settings(RunConfig, CONFIGS / "train" / "quickstart.yaml")
    model = preset("quickstart")
    of_text = {"vocab_size": model.vocab_size, "document_separator": None}
    assert config.model.document_separator == "auto"
    assert config.model.model_copy(update=of_text) == model
    # The quickstart chooses it for the machine, so it is only in the shards.
    assert "vocab_size" not in config.model.model_fields_set


SOURCE = Path(groundup.__file__).parent

STRANGE: list[Any] = [10**9, 10**18, 10**400, 1e9, 1e300, math.nan, math.inf, -math.inf, -1, 0]
STRANGE += ["abc", "", "1e400", "a\0b", None, True, [], [1] * 100, {}, {"a": {"b": 1}}]

# Values for settings without a default.
NEEDED: dict[str, dict[str, Any]] = {
    "RangeConfig": {"low": 1.0, "high": 2.0},
    "SweepConfig": {"name": "sweep"},
}
SMALL = {"vocab_size": 300, "context_length": 16, "d_model": 16, "num_layers": 1, "num_heads": 2}


def settings_types() -> Iterator[type[Settings]]:
    """Return all Settings subclasses in the package, except the flags of verbs, which are not in
    files."""
    for file in sorted(set(SOURCE.rglob("*.py")) - set(SOURCE.glob("cli/*.py"))):
        text = file.read_text("utf-8")
        for name in re.findall(r"^class (\w+)\((?:Settings|ServerFlags)\)", text, re.MULTILINE):
            parts = file.relative_to(SOURCE.parent).with_suffix("").parts
            found: type[Settings] = getattr(importlib.import_module(".".join(parts)), name)
            yield found


FIELDS = [(kind, name) for kind in settings_types() for name in kind.model_fields]
assert len(FIELDS) > 100


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda one: getattr(one, "__name__", one))
def test_extreme_values_are_accepted_or_raise_config_error(
    kind: type[Settings], name: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    annotation = kind.model_fields[name].annotation
    kinds = [] if typing.get_origin(annotation) is dict else kinds_of(annotation)
    has_numbers = int in kinds or float in kinds
    for value in STRANGE:
        file.write_text(yaml.safe_dump({**NEEDED.get(kind.__name__, {}), name: value}), "utf-8")
        try:
            load_settings(kind, file)
        except ConfigError as error:
            text = str(error).replace(str(file), "")
            assert len(text) < 1_000
            assert "\n" not in text
            assert name in text or isinstance(value, dict)
        else:
            # Values that no number may have.
            if has_numbers and isinstance(value, int | float):
                assert math.isfinite(value), f"{kind.__name__}.{name} takes {value}"
                assert value <= 10**18, f"{kind.__name__}.{name} takes {value}: bound it with le="
    if has_numbers:
        is_several = typing.get_origin(annotation) in (list, tuple)
        value = [10**30, 10**30] if is_several else 10**30
        with pytest.raises(pydantic.ValidationError, match=r"less than|finite"):
            kind.model_validate({**NEEDED.get(kind.__name__, {}), name: value})


def test_models_larger_than_memory_are_rejected_before_allocation() -> None:
    without_storage = ModelConfig(**{**SMALL, "context_length": 2**24})
    model = TransformerLM.from_config(without_storage, device="meta")
    assert all(tensor.is_meta for tensor in model.buffers())
    config = ModelConfig(**SMALL)
    check_model_memory(config, 10**6, num_sequences=1)
    # The second exceeds the memory with the caches of all layers, but not of one.
    for change in ({"num_layers": 10**4}, {"num_layers": 40, "context_length": 4_000}):
        with pytest.raises(ConfigError, match=r"takes .* context_length .* 10.0 MB"):
            check_model_memory(config.model_copy(update=change), 10**7, num_sequences=1)
