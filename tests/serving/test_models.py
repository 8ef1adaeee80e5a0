"""Several models on one server: which one answers, and which are in memory."""

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.serve import find_runs
from groundup.errors import CheckpointError, ConfigError
from groundup.generation import LanguageModel
from groundup.runs.folder import RunFolder
from groundup.serving import models as served_models
from groundup.serving.models import Source

from .conftest import LONG, wait_for

BODY = {"prompt": "the cat", "max_tokens": 9, "temperature": 0}


def ask(running: Any, name: str) -> Any:
    answer = running.complete({**BODY, "model": name})
    assert answer.status_code == 200 and answer.json()["model"] == name, answer.text
    return answer.json()["choices"]


def loaded(running: Any) -> list[str]:
    cards = running.get("/v1/models").json()["data"]
    return [card["id"] for card in cards if card["is_loaded"]]


def test_models_are_loaded_on_use_and_the_least_recently_used_unloaded(
    start: Any, language_model: LanguageModel, chat_model: LanguageModel, tmp_path: Path
) -> None:
    chat_model.save(tmp_path / "chatty")
    alive: list[weakref.ref[LanguageModel]] = []

    def load(name: str = "chatty") -> LanguageModel:
        found = LanguageModel.load(tmp_path / name)
        alive.append(weakref.ref(found))
        return found

    chatty = Source(load, RunFolder(tmp_path / "chatty"))
    more = {"chatty": chatty, "again": chatty, "broken": Source(lambda: load("nowhere"))}
    with start(language_model, more=more, max_models=2) as running:
        cards = {card["id"]: card for card in running.get("/v1/models").json()["data"]}
        assert list(cards) == ["tiny", *more]
        assert [card.get("has_chat_template") for card in cards.values()] == [
            *(False, True, True),
            None,
        ]
        assert cards["chatty"]["context_length"] == 64 and not alive
        first = running.complete(BODY).json()
        assert first["model"] == "tiny"
        assert ask(running, "chatty") == first["choices"]
        assert running.get("/v1/models/chatty").json() == cards["chatty"] | {
            "is_loaded": True,
            "step": 7,
        }
        assert loaded(running) == ["tiny", "chatty"]
        ask(running, "tiny")
        assert ask(running, "again") == first["choices"]
        assert loaded(running) == ["tiny", "again"]
        # An unloaded model is freed once its requests are garbage collected.
        wait_for(lambda: [one() is None for one in alive] == [True, False])
        ask(running, "chatty")
        assert loaded(running) == ["chatty", "again"] and len(alive) == 3
        missing = running.complete({**BODY, "model": "other"})
        assert missing.status_code == 404 and "tiny, chatty, again" in missing.text
        broken = running.complete({**BODY, "model": "broken"})
        assert broken.status_code == 503 and "nowhere" in broken.json()["error"]["message"]
        assert ask(running, "chatty") == first["choices"]
        tokens = running.get("/metrics").text.partition('generated_tokens_total{model="chatty"} ')
        assert tokens[2].startswith("27.0\n")
        assert running.get("/health").json()["models"] == ["tiny", *more]


def test_running_requests_keep_their_model(start: Any, long_model: LanguageModel) -> None:
    more = {name: Source(lambda: long_model) for name in ("second", "third")}
    with start(long_model, more=more, max_models=1) as running, ThreadPoolExecutor(4) as pool:
        long = pool.submit(running.complete, {**LONG, "max_tokens": 100})
        wait_for(lambda: running.get("/health").json()["running"] == 1)
        others = [pool.submit(ask, running, name) for name in ("second", "third", "tiny")]
        assert long.result().json()["usage"]["completion_tokens"] == 100
        assert len({str(one.result()) for one in others}) == 1
        assert len(loaded(running)) == 1


def test_models_are_unloaded_if_memory_is_needed(
    start: Any, language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"large": Source(lambda: language_model)}
    with start(language_model, more=more) as running:
        free = iter([0, 10**12, 0])
        monkeypatch.setattr(served_models, "free_memory_bytes", lambda: next(free))
        ask(running, "large")
        assert loaded(running) == ["large"]
        # A model that does not even fit alone is rejected; the server continues.
        free = iter([0, 0])
        refused = running.complete({**BODY, "model": "tiny"})
        assert refused.status_code == 503 and "--max-rows" in refused.text
        free = iter([10**12])
        ask(running, "tiny")


def test_a_model_is_loaded_once_while_others_answer(
    start: Any, language_model: LanguageModel
) -> None:
    begun, hold = threading.Event(), threading.Event()

    def load() -> LanguageModel:
        begun.set()
        assert hold.wait(60)
        return language_model

    with start(language_model, more={"slow": Source(load)}) as running:
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(ask, running, "slow")
            assert begun.wait(60)
            # Other models are served meanwhile, and it is not loaded twice.
            assert ask(running, "tiny")
            second = pool.submit(ask, running, "slow")
            hold.set()
            assert first.result() == second.result()
        assert loaded(running) == ["tiny", "slow"]


def test_a_folder_of_runs_serves_those_with_a_checkpoint(
    language_model: LanguageModel, tmp_path: Path
) -> None:
    for name in ("a", "b", "empty"):
        language_model.save(tmp_path / "runs" / name)
    for path in (tmp_path / "runs" / "empty" / "checkpoints").iterdir():
        path.rename(tmp_path / "moved")
    (tmp_path / "runs" / "notes").mkdir()
    folder = tmp_path / "runs"
    assert set(find_runs((str(folder),))) == {"a", "b"}
    assert list(find_runs((str(folder / "b"), str(folder)))) == ["b", "a"]
    language_model.save(tmp_path / "elsewhere" / "a")
    with pytest.raises(ConfigError, match="same name"):
        find_runs((str(folder), str(tmp_path / "elsewhere" / "a")))
    with pytest.raises(ConfigError, match="notes"):
        find_runs((str(folder / "notes"),))
    with pytest.raises(CheckpointError):
        LanguageModel.load(folder / "empty")
