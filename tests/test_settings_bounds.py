"""No value of any setting causes worse than a ConfigError. Covers every field of every Settings
class automatically, so that a new one without bounds fails here."""

import importlib
import math
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml

import groundup
from groundup.config import Settings, kinds_of, load_settings
from groundup.errors import ConfigError
from groundup.model import ModelConfig, TransformerLM
from groundup.planner import check_model_memory

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


TYPES = list(settings_types())
FIELDS = [(kind, name) for kind in TYPES for name in kind.model_fields]


def test_all_known_settings_are_found() -> None:
    names = {kind.__name__ for kind in TYPES}
    assert {"ModelConfig", "RunConfig", "OptimizerConfig", "SweepConfig", "ServerSettings"} <= names
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
