"""Fixtures for all tests, and hypothesis profiles."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import functools
import itertools
import json
import lzma
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    import torch

    from groundup.generation import LanguageModel
    from groundup.model import TransformerLM
    from groundup.tokenizer import Tokenizer

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED_DATA = REPOSITORY.parent / "shared" / "data"

# No deadlines, because sanitizer builds and busy machines are slow. Runs by people search for new
# examples; CI always tries the same ones. With --hypothesis-profile, `make test-fast` tries fewer,
# and `make check` ten times as many.
EXAMPLES: Any = {"deadline": None, "print_blob": True, "derandomize": "CI" in os.environ}
hypothesis.settings.register_profile("fast", max_examples=10, **EXAMPLES)
hypothesis.settings.register_profile("groundup", max_examples=40, **EXAMPLES)
hypothesis.settings.register_profile("thorough", max_examples=400, **EXAMPLES)
hypothesis.settings.load_profile("groundup")

# Read when torch is loaded. With small shapes on a busy machine, synchronizing threads made tests
# that train seven times as slow.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests write thousands of small files, without power failures; some test that syncs are called.
os.fsync = lambda file: None  # type: ignore[assignment]

# A shell that runs the tests in the background makes them, and their children, ignore SIGINT.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    # Small layers are tested in bfloat16 on any CPU. Without the instructions, torch warns once per
    # process that it uses another kernel.
    config.addinivalue_line("filterwarnings", "ignore:mkldnn_matmul failed:UserWarning")


CHROMIUM_ARGUMENTS = """--headless=new --no-sandbox --disable-dev-shm-usage --disable-gpu
--disable-background-networking --disable-component-update --disable-extensions
--force-prefers-reduced-motion --renderer-process-limit=1"""

# Names that start processes, browsers or compilers; `make test-fast` skips the tests using them.
_SLOW = frozenset(
    "subprocess multiprocessing webdriver forks run_code run_program find_programs".split()
)


@functools.cache
def _slow_names(module: Path) -> set[str]:
    """Return the names in a module, including tests, that may start a process."""
    source = module.read_text(encoding="utf-8")
    lines, words = source.splitlines(), dict[str, set[str]]()
    for node in ast.parse(source).body:
        named = [node, *getattr(node, "targets", [])]
        names = [getattr(one, "name", getattr(one, "id", None)) for one in named]
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        words |= {name: set(re.findall(r"\w+", text)) for name in names if name is not None}
    # The trials of a sweep are processes.
    found = {*_SLOW, "metrics_only"}
    while more := {name for name in words if name not in found and found & words[name]}:
        found |= more
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = {getattr(item, "originalname", ""), *getattr(item, "fixturenames", ())}
        if names & _slow_names(item.path):
            item.add_marker("slow")
    # Workers get whole files; start with the slow ones.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


_is_fast = False


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    if _is_fast and event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        # Recording a run's machine, and rendering untrusted templates: a tenth of a second, once.
        quick = {"git", "uname", "groundup.tokenizer.template_process"}
        if event == "subprocess.Popen" and not quick.isdisjoint(arguments[1]):
            return
        raise RuntimeError(f"a test that starts {arguments[:2]} must be marked slow")


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    # With a GPU, torch starts compilers itself.
    global _is_fast
    has_gpu = Path("/dev/nvidiactl").exists()
    _is_fast = item.get_closest_marker("slow") is None and not has_gpu
    try:
        return (yield)
    finally:
        _is_fast = False


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return REPOSITORY


@pytest.fixture(scope="session")
def forks() -> Any:
    """Starts processes as forks of one that has imported everything, but computed nothing."""
    context = multiprocessing.get_context("forkserver")
    modules = "checkpoint.sharded distributed.sharding training.loop training.verify".split()
    context.set_forkserver_preload(["torch._dynamo", *(f"groundup.{name}" for name in modules)])
    return context


@pytest.fixture(scope="session")
def run_code(
    forks: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code like `python -c code word …`, but in a fork."""

    def run(code: str, *words: object) -> subprocess.CompletedProcess[str]:
        errors = tmp_path_factory.mktemp("fork") / "errors.txt"
        errors.touch()
        names = {"words": list(map(str, words)), "errors": str(errors)}
        first = "import os, sys; sys.argv[1:] = words; os.dup2(os.open(errors, os.O_WRONLY), 2)\n"
        process = forks.Process(target=exec, args=(first + code, names))
        process.start()
        process.join()
        return subprocess.CompletedProcess([], process.exitcode, "", errors.read_text())

    return run


PROGRAM = """
import pathlib, runpy, warnings
warnings.simplefilter("error", FutureWarning)
del sys.argv[0]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="session")
def run_program(run_code: Any) -> Callable[..., Any]:
    """Runs a test program; returns the results in the file of its last argument, if any."""

    def run(program: Path, *arguments: Path) -> Any:
        done = run_code(PROGRAM, program, *arguments)
        assert done.returncode == 0, done.stderr
        results = [json.loads(file.read_text()) for file in arguments[-1:] if file.is_file()]
        return results[0] if results else None

    return run


@pytest.fixture(scope="session")
def metrics_only() -> Callable[[Path, bool], list[str]]:
    """The command of a trial that writes metrics by a formula, and no weights."""
    script = str(REPOSITORY / "tests" / "experiments" / "metrics_only.py")

    def command(config_file: Path, resume: bool) -> list[str]:
        return [sys.executable, script, str(config_file), *(["--resume"] if resume else [])]

    return command


@pytest.fixture(scope="session")
def find_programs() -> Callable[[Iterable[str], str], list[str]]:
    """Return the paths of programs, installing their system packages if that is allowed."""

    def find(programs: Iterable[str], packages: str) -> list[str]:
        with open(Path(tempfile.gettempdir()) / "groundup-packages.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            missing = [program for program in programs if shutil.which(program) is None]
            if missing and os.geteuid() == 0 and shutil.which("apt-get"):
                quietly = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
                install = f"apt-get -qq install -y --no-install-recommends {packages}"
                command = ["timeout", "480", "sh", "-c", f"apt-get -qq update; {install}"]
                subprocess.run(command, capture_output=True, check=False, env=quietly)
        found = [shutil.which(program) for program in programs]
        if None in found:
            pytest.skip(f"{', '.join(missing)} not found: install {packages}")
        return [str(path) for path in found]

    return find


@pytest.fixture(scope="session")
def driver(find_programs: Callable[[Iterable[str], str], list[str]]) -> Iterator[Any]:
    """One Chromium for all tests that look at a page; without it they are skipped."""
    webdriver = pytest.importorskip("selenium.webdriver")
    names = ("chromium", "chromedriver")
    program, driver_program = find_programs(names, "chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in CHROMIUM_ARGUMENTS.split():
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver_program)) as started:
        yield started


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real corpora and tokenizer files; skips the test if it does not exist."""
    if not SHARED_DATA.is_dir():
        pytest.skip("no ../shared/data beside the repository: real corpora are not tested")
    return SHARED_DATA


@pytest.fixture(scope="session")
def unpack(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`unpack("stories.txt")` returns the path of that file, decompressed once for all workers."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "unpacked"
    folder.mkdir(exist_ok=True)

    def unpacked(name: str) -> Path:
        packed = shared_data / f"{name}.xz"
        if not packed.is_file():
            pytest.skip(f"no {name}.xz in ../shared/data")
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{target}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                partial = Path(f"{target}.partial")
                with lzma.open(packed) as source, open(partial, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
                partial.rename(target)
        return target

    return unpacked


@pytest.fixture(scope="session")
def shout() -> Callable[[TransformerLM, Iterable[int]], None]:
    """`shout(model, ids)` makes one of these ids the most likely next token for any input."""
    import torch

    def rig(model: TransformerLM, ids: Iterable[int]) -> None:
        # One of two large logits with opposite signs exceeds those of all other ids.
        loud = 40 * torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            for sign, id in zip(itertools.cycle((1, -1)), ids, strict=False):
                model.output_weight[id] = sign * loud

    return rig


@pytest.fixture(scope="session")
def speaker() -> Callable[..., LanguageModel]:
    """`speaker(tokenizer, "yes<|im_end|>no")`: a model that generates this text after a newline.

    Its tokens must be distinct; the last one is followed by id 0 forever.
    """
    import torch

    from groundup.generation import LanguageModel
    from groundup.model import ModelConfig, TransformerLM

    def make(tokenizer: Tokenizer, answer: str, context_length: int = 64) -> LanguageModel:
        torch.manual_seed(0)
        config = ModelConfig(
            vocab_size=tokenizer.vocab_size,
            context_length=context_length,
            d_model=16,
            num_layers=1,
            num_heads=2,
            d_ff=16,
            tie_embeddings=False,
        )
        model = TransformerLM.from_config(config)
        ids = tokenizer.encode("\n" + answer)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" not in name:
                    weight.zero_()
            # Each id has its own direction, which the head maps to the next one.
            for direction, (before, after) in enumerate(itertools.pairwise(ids)):
                model.token_embedding.weight[before, direction] = 1.0
                model.output_weight[after, direction] = 9.0
        return LanguageModel(model.eval(), tokenizer)

    return make


@pytest.fixture(scope="session")
def log_likelihoods() -> Callable[[TransformerLM, list[int]], list[float]]:
    """Log-likelihoods of ids but the first, each with at least half a context, or all before."""
    import torch

    from groundup.data.batches.order import sliding_windows

    def measure(model: TransformerLM, ids: list[int]) -> list[float]:
        found: list[float] = []
        for begin, end, num in sliding_windows(len(ids), len(ids) - 1, model.config.context_length):
            window = torch.tensor(ids[begin:end])
            with torch.no_grad():
                table = torch.log_softmax(model(window[None, :-1])[0].float(), dim=-1)
            found += table.gather(-1, window[1:, None])[-num:, 0].tolist()
        return found

    return measure


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """All available types of device."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA here")
    return torch.device(request.param)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread: on a busy machine, synchronization costs more than small shapes."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def steady(one_thread: None) -> None:
    """Fixed random numbers, on one thread."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(params=["fused", "reference"])
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test with fused kernels and with the plain formulas."""
    from groundup.nn import kernels

    with kernels.reference() if request.param == "reference" else contextlib.nullcontext():
        yield request.param
