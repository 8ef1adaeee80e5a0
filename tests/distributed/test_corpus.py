"""Corpora on a Ray cluster of several nodes: the same bytes as on one machine, even if nodes die.

The cluster is real; its nodes are processes on this machine.
"""

import contextlib
import gzip
import json
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groundup import __version__
from groundup.cli.main import main
from groundup.data.clean import clean
from groundup.data.prepare import prepare
from groundup.distributed import corpus
from groundup.distributed.corpus import RayEngine
from groundup.errors import ConfigError, DataError, MissingExtraError
from groundup.text_files import END_OF_TEXT
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.training import train_from_files

pytestmark = [
    pytest.mark.distributed,
    # Ray leaves closing sockets and pipes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

PACKAGE = Path(corpus.__file__).parent.parent
WORDS = "the fox and a kite saw rain then ran home naïve 日本 — 😀 its there 1984\n\n".split(" ")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Cluster:
    """A head node without work, and nodes with one core each, which tests may kill."""

    def __init__(self) -> None:
        cluster_utils = pytest.importorskip("ray.cluster_utils")
        # Detect a killed node after a second instead of half a minute.
        system = {"health_check_period_ms": 300, "health_check_failure_threshold": 3}
        system |= {"health_check_timeout_ms": 1000, "health_check_initial_delay_ms": 1000}
        arguments = {"num_cpus": 0, "object_store_memory": 100 << 20, "_system_config": system}
        self._cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=arguments)
        self.nodes: list[Any] = []
        for _ in range(2):
            self.add()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, **arguments: Any) -> Any:
        store = 100 << 20
        self.nodes.append(
            self._cluster.add_node(num_cpus=1, object_store_memory=store, **arguments)
        )
        return self.nodes[-1]

    def remove(self, node: Any) -> None:
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def kill(self) -> None:
        """Kill a node without warning, and start another."""
        self.remove(self.nodes[0])
        self.add()

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray")
    # Workers use the driver's import path.
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        found = Cluster()
        yield found
        found.close()


@pytest.fixture(scope="module")
def engine(cluster: Cluster) -> Iterator[RayEngine]:
    with contextlib.closing(RayEngine(cluster.address)) as engine:
        yield engine


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Plain text with and without separators, JSON lines, a compressed file, and small files."""
    folder = tmp_path_factory.mktemp("texts")
    random_ = random.Random(0)

    def write() -> str:
        return " ".join(random_.choices(WORDS, k=random_.randrange(1, 400)))

    documents = [write() for _ in range(2_000)]
    (folder / "a.txt").write_text(END_OF_TEXT.join(documents))
    (folder / "b.txt").write_text(" ".join(write() for _ in range(40)))
    lines = "".join(json.dumps({"text": write()}) + "\n" for _ in range(200))
    (folder / "c.jsonl").write_text(lines + json.dumps({"text": documents[0]}) + "\n")
    (folder / "d.txt.gz").write_bytes(gzip.compress((folder / "a.txt").read_bytes()[:90_000], 1))
    for number in range(20):
        (folder / f"e{number:02}.txt").write_text(f"small file {number}")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def tokenizer(texts: list[Path]) -> Tokenizer:
    return Tokenizer.train(texts, 400)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_results_match_one_machine_despite_dying_nodes(
    cluster: Cluster, engine: RayEngine, texts: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    # Results so large that they stay on the node that computed them, and are lost with it.
    parts: dict[str, Any] = {"engine": engine, "part_bytes": 300_000}
    learned, _ = train_from_files(texts, 400, [END_OF_TEXT], **parts)
    assert learned == tokenizer.definition

    calls = 0

    def kill(done: int, total: int | None) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            cluster.kill()

    options: dict[str, Any] = {"shard_bytes": 400_000, "validation_fraction": 0.1}
    prepare(texts, tokenizer, tmp_path / "here", **options)
    prepare(texts, tokenizer, tmp_path / "there", progress=kill, **parts, **options)
    assert calls > 5
    assert contents(tmp_path / "there") == contents(tmp_path / "here")

    clean(texts, tmp_path / "here.jsonl", validation=texts[:1])
    clean(texts, tmp_path / "there.jsonl", validation=texts[:1], **parts)
    assert (tmp_path / "there.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()


class Dying:
    """Kills its process at the second result, on the first attempt or always."""

    def __init__(self, marker: Path | None) -> None:
        self.marker = marker

    def __call__(self, task: int) -> Iterator[int]:
        yield 10 * task
        if task == 2 and (self.marker is None or not self.marker.exists()):
            if self.marker is not None:
                self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield 10 * task + 1


@pytest.fixture
def by_value(engine: RayEngine) -> Iterator[None]:
    """Pickle the classes of this file by value: workers cannot import it."""
    engine.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    engine.ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.usefixtures("by_value")
def test_tasks_of_dead_workers_are_retried(engine: RayEngine, tmp_path: Path) -> None:
    results = [list(items) for items in engine(Dying(tmp_path / "died"), range(5))]
    assert results == [[10 * task, 10 * task + 1] for task in range(5)]
    assert (tmp_path / "died").exists()


@pytest.mark.usefixtures("by_value")
def test_tasks_that_always_kill_their_worker_fail(
    engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_RETRIES", 1)
    frail = RayEngine()
    with pytest.raises(DataError, match="was lost 2 times"):
        for items in frail(Dying(None), range(5)):
            list(items)


def test_errors_and_warnings_match_one_machine(
    engine: RayEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"good text" + END_OF_TEXT.encode() + b"bad \xff byte")
    with pytest.raises(DataError, match=r"text\.txt, after .*: not UTF-8; name its encoding"):
        train_from_files(path, 300, [END_OF_TEXT], engine=engine)
    with caplog.at_level(logging.WARNING):
        train_from_files(path, 257, [END_OF_TEXT], errors="skip", engine=engine)
    assert "text.txt: skipped 1 document" in caplog.text


def test_another_version_on_a_node_raises(
    engine: RayEngine, texts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "__version__", "9.9.9")
    found = f"has groundup {__version__}; install 9.9.9"
    with pytest.raises(ConfigError, match=found):
        train_from_files(texts, 300, [END_OF_TEXT], engine=engine)


def test_a_node_without_groundup_or_its_core_raises(
    cluster: Cluster, engine: RayEngine, tmp_path: Path
) -> None:
    package = tmp_path / "groundup"
    package.mkdir()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    odd = {"resources": {"odd": 1}, "env_vars": {"PYTHONPATH": path}}
    node = cluster.add(**odd)
    try:
        elsewhere = RayEngine(resources={"odd": 0.1}, num_cpus=0)
        for code in ("raise ImportError", f"__version__ = {__version__!r}"):
            (package / "__init__.py").write_text(code)
            with pytest.raises(ConfigError, match="has no groundup with a native core"):
                list(next(elsewhere(iter, [()])))
    finally:
        cluster.remove(node)


def test_a_cluster_that_does_not_respond_raises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    (tmp_path / "text.txt").write_text("text")
    words = ["tokenizer", "train", str(tmp_path / "text.txt"), "--engine", "ray"]
    nobody = f"127.0.0.1:{free_port()}"
    for address in (nobody, "nonsense"):
        assert main([*words, "--ray-address", address]) == 2
        found = capsys.readouterr().err
        assert found.startswith(f"error: no Ray cluster answers at '{address}'")


def test_a_missing_ray_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"groundup\[ray\]"):
        next(RayEngine()(iter, [()]))
