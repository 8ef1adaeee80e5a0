"""Server: throughput and latency of `groundup serve` with 1, 16 and 64 clients.

The server is one process, the clients another; every client streams one response after another over
a persistent connection. Each text must be complete; `tests/serving` shows that it does not depend
on its neighbors.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from corpora import CACHE
from machine import describe_hardware, describe_versions, find_device, result_name
from measure import RESULTS, short
from shapes import S1, S2, SMALL
from shapes import shape as make_shape

Json = dict[str, Any]

NUM_CLIENTS = (1, 16, 64)
_PROMPT = "Once upon a time"
_PERCENTILES = (50, 90, 99)
# Maximum number of responses per client, for slow machines.
_MAX_ANSWERS = 8
_STARTUP_SECONDS = 300


class Shape(NamedTuple):
    """A model and the size of each client's requests."""

    name: str
    model: Json
    max_tokens: int


_SHAPES = {
    "cpu": (Shape("cpu-small", SMALL, 64), Shape("S1", S1, 128)),
    "cuda": (Shape("S1", S1, 192), Shape("S2", S2, 256)),
}
_QUICK = Shape("tiny", make_shape(300, 64, 32, 1, 2, 64), 24)


class Answer(NamedTuple):
    """A client's measurements of one request."""

    num_tokens: int
    is_whole: bool
    first_seconds: float
    whole_seconds: float


def main() -> int:
    arguments = _parse()
    if arguments.load is not None:
        print(json.dumps(_load(arguments.load)))
        return 0
    device = find_device(arguments.device)
    shapes: tuple[Shape, ...] = (_QUICK,) if arguments.quick else _SHAPES[device]
    if arguments.only:
        shapes = tuple(shape for shape in shapes if shape.name in arguments.only)
    num_clients = arguments.clients or ((1, 4) if arguments.quick else NUM_CLIENTS)
    out = arguments.out or (CACHE / "quick" if arguments.quick else RESULTS)
    path = out / result_name(f"serving_{device}")
    result: Json = {
        "benchmark": f"serving_{device}",
        "question": "Server: throughput and latency with many clients",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": arguments.quick,
        "conditions": (
            "random weights; streamed answers at temperature 1, each client one after the other; "
            "clients in one process of their own on the same machine; time to first token includes "
            "reading the prompt"
        ),
        "hardware": describe_hardware(device),
        "versions": describe_versions(["groundup", "torch", "starlette", "uvicorn"]),
        "rows": [],
    }
    for shape in shapes:
        for count in num_clients:
            row = _measure(shape, count, device, arguments.seconds)
            _print_row(row)
            result["rows"].append(row)
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result, indent=1) + "\n")
    print(path)
    return 0 if all(row["num_lost"] == 0 for row in result["rows"]) else 1


def _measure(shape: Shape, num_clients: int, device: str, seconds: float) -> Json:
    with tempfile.TemporaryDirectory(prefix="groundup-serving-") as folder:
        run = Path(folder) / shape.name
        _make_run(run, shape)
        server, url = _start_server(run, device)
        try:
            job = {
                "host": url.removeprefix("http://"),
                "num_clients": num_clients,
                "max_tokens": shape.max_tokens,
                "seconds": seconds,
            }
            load = _run_self("--load", json.dumps(job))
            answers = [Answer(**answer) for answer in load["answers"]]
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
    lost = [answer for answer in answers if not answer.is_whole]
    return {
        "name": f"{shape.name}.{num_clients}_clients",
        "shape": shape.model,
        "num_clients": num_clients,
        "max_tokens": shape.max_tokens,
        "num_answers": len(answers),
        "num_errors": load["num_errors"],
        "num_lost": len(lost) + load["num_errors"],
        "clean_end": server.returncode == 0,
        "clients_cpu_share": load["cpu_seconds"] / load["seconds"],
        "tokens_per_second": sum(a.num_tokens for a in answers) / load["seconds"],
        "requests_per_second": len(answers) / load["seconds"],
        "first_token_seconds": _percentiles([a.first_seconds for a in answers]),
        "token_seconds": _percentiles(
            [
                (a.whole_seconds - a.first_seconds) / (a.num_tokens - 1)
                for a in answers
                if a.num_tokens > 1
            ]
        ),
        "whole_seconds": _percentiles([a.whole_seconds for a in answers]),
    }


def _percentiles(values: Sequence[float]) -> Json:
    if len(values) < 2:
        return {f"p{p}": values[0] if values else None for p in _PERCENTILES}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {f"p{p}": cuts[p - 1] for p in _PERCENTILES}


def _make_run(folder: Path, shape: Shape) -> None:
    """Create a run folder with random weights and a tokenizer with the shape's vocabulary size."""
    import torch

    from groundup.checkpoint import CheckpointFolder
    from groundup.config import save_yaml
    from groundup.model import ModelConfig, TransformerLM
    from groundup.runs.config import RunConfig
    from groundup.tokenizer import Tokenizer

    folder.mkdir()
    config = ModelConfig(**shape.model)
    torch.manual_seed(0)
    model = TransformerLM.from_config(config)
    save_yaml(folder / "config.yaml", RunConfig(model=config))
    # Every id is text, and no id ends a text, so that every response has full length.
    vocab = {id: bytes([id]) for id in range(256)}
    merges = []
    for id in range(256, config.vocab_size):
        rank = id - 256
        left = b" " if rank < 26 else vocab[256 + (rank - 26) // 26]
        right = bytes([ord("a") + rank % 26])
        vocab[id] = left + right
        merges.append((left, right))
    Tokenizer(vocab, merges).save(folder / "tokenizer.json")
    checkpoints = CheckpointFolder(folder / "checkpoints")
    checkpoints.save(1, model.state_dict(), {"state": {}, "param_groups": []}, {})


def _start_server(run: Path, device: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "groundup", "serve", str(run), "--port", "0"]
    # All clients share one address.
    command += ["--max-client-rows", "64"]
    server = subprocess.Popen([*command, "--device", device], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        sys.exit("error: the server did not start")
    return server, line.split()[-1]


def _run_self(*flags: str) -> Json:
    command = [sys.executable, __file__, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_STARTUP_SECONDS + 300)
    if done.returncode != 0:
        sys.exit(f"error: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout))


def _load(job_text: str) -> Json:
    """Run all clients concurrently; each sends requests until the time is up."""
    job = json.loads(job_text)
    # Warm-up: compilation and graph capture are not timed.
    _ask(http.client.HTTPConnection(job["host"]), 0, min(8, job["max_tokens"]))
    begin, cpu_begin = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(job["num_clients"]) as clients:
        asking = [clients.submit(_keep_asking, n, job, begin) for n in range(job["num_clients"])]
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
    parts = [one.result() for one in asking if one.exception() is None]
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "num_errors": job["num_clients"] - len(parts),
        "answers": [answer._asdict() for part in parts for answer in part],
    }


def _keep_asking(number: int, job: Json, begin: float) -> list[Answer]:
    connection = http.client.HTTPConnection(job["host"])
    answers: list[Answer] = []
    while len(answers) < _MAX_ANSWERS and (
        not answers or time.perf_counter() - begin < job["seconds"]
    ):
        seed = 1 + number + len(answers) * job["num_clients"]
        answers.append(_ask(connection, seed, job["max_tokens"]))
    return answers


def _ask(connection: http.client.HTTPConnection, seed: int, max_tokens: int) -> Answer:
    """Stream one response; it is parsed when it is complete."""
    body = {"prompt": _PROMPT, "max_tokens": max_tokens, "seed": seed, "stream": True}
    data = json.dumps({**body, "stream_options": {"include_usage": True}})
    begin = time.perf_counter()
    connection.request("POST", "/v1/completions", data, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read1()
    first = time.perf_counter() - begin
    answer += response.read()
    whole = time.perf_counter() - begin
    if response.status != 200:
        raise RuntimeError(answer.decode())
    lines = [event[6:] for event in answer.split(b"\n\n") if event]
    chunks = [json.loads(line) for line in lines if line != b"[DONE]"]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    num_tokens = chunks[-1]["usage"]["completion_tokens"]
    is_whole = lines[-1] == b"[DONE]" and choices[-1]["finish_reason"] == "length"
    return Answer(num_tokens, is_whole and num_tokens == max_tokens, first, whole)


def _print_row(row: Json) -> None:
    first, token, whole = (
        "/".join("-" if value is None else short(value * 1000) for value in row[name].values())
        for name in ("first_token_seconds", "token_seconds", "whole_seconds")
    )
    print(
        f"{row['name']}: {short(row['tokens_per_second'])} tokens/s, {row['num_answers']} answers, "
        f"{row['num_lost']} lost, "
        f"clients used {100 * row['clients_cpu_share']:.0f} % of a core; "
        f"ms at p50/p90/p99: first token {first}, token {token}, whole {whole}",
        flush=True,
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How fast does the server answer many clients?")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--quick", action="store_true", help="a tiny model, for testing")
    parser.add_argument("--only", nargs="+", help="only shapes of these names")
    parser.add_argument("--clients", type=int, nargs="+", help="how many at once")
    parser.add_argument("--seconds", type=float, default=20, help="how long clients go on asking")
    parser.add_argument("--out", type=Path, help="the folder of the result")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
