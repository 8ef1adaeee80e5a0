"""The CUDA decoder: its logits equal the model's, its samples equal the sampler's, and no row
depends on the others."""

import copy
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from groundup.generation import Engine, GenerationRequest, Sampler
from groundup.generation.decoder import Row
from groundup.generation.engine import choose_decoder
from groundup.generation.request import NO_ID
from groundup.generation.sampling import sample, uniforms
from groundup.generation.torch_decoder import TorchDecoder
from groundup.model import TransformerLM

pytest.importorskip("triton")

from groundup.generation import cuda_decoder
from groundup.generation.cuda_decoder import CudaDecoder, row_state
from groundup.nn.kernels.cuda_decode import matmul
from groundup.nn.kernels.cuda_decode import sampling as kernels
from groundup.nn.kernels.cuda_decode.matmul import Buffers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped heads": {"num_kv_heads": 2},
    "odd sizes": {"d_model": 72, "num_heads": 3, "d_ff": 100, "vocab_size": 301},
    "recipe": {"feed_forward": "relu2", "qk_norm": True, "tie_embeddings": True},
    "gates, projection": {
        "gated_attention": True,
        "value_embeddings": "projection",
        "qk_norm": True,
        "tie_embeddings": True,
        "num_kv_heads": 2,
    },
    "documents": {"document_separator": 7, "num_kv_heads": 2},
    "wide": {"d_model": 1_280, "num_heads": 10, "d_ff": 4_096, "feed_forward": "silu"},
    # A depth just above a whole number of spans, of which as many as possible are read ahead.
    "just over": {"d_ff": 6_208, "feed_forward": "relu2"},
}
# Ids of the model, and allowed ids.
VOCABULARIES = {
    "all of an odd number": (301, 301),
    "rows to fill up": (500, 437),
    "rows longer than a block": (9_000, 8_193),
    "one id": (17, 1),
}
SAMPLERS = [
    Sampler(temperature=0),
    Sampler(temperature=2.0),
    Sampler(top_k=5),
    Sampler(top_k=436),
    Sampler(temperature=1.5, top_p=0.9),
    Sampler(min_p=0.1),
    Sampler(temperature=0.7, top_k=50, top_p=0.5, min_p=0.01),
    Sampler(top_p=0.9, repetition_penalty=1.5),
]


def _model(**changes: Any) -> TransformerLM:
    settings: dict[str, Any] = {"vocab_size": 500, "context_length": 160, "d_model": 64}
    settings |= {"num_layers": 3, "num_heads": 4, "d_ff": 160, "rope_theta": 10_000.0}
    torch.manual_seed(0)
    model = TransformerLM(**(settings | changes), device="cuda", dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "head_gate" in name:
                parameter.normal_(0.0, 0.3)
            elif "norm" in name or "value_sum" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.startswith("lm_head"):
                parameter.mul_(4.0)
    return model


def _texts(engine: Engine, requests: list[GenerationRequest]) -> list[list[int]]:
    texts: dict[int, list[int]] = {engine.add(request): [] for request in requests}
    while engine.num_running:
        for handle, token in engine.step():
            texts[handle].append(token.id)
    return list(texts.values())


def _row(sampler: Sampler, ids: list[int], num_new: int = 0, seed: int = 0) -> Row:
    request = GenerationRequest(tuple(ids), 50, sampler, seed)
    return Row(0, request, ids, num_new)


def _logits(decoder: CudaDecoder, texts: list[list[int]]) -> torch.Tensor:
    """Logits of each row after its last id; the other ids are in the cache."""
    decoder.begin([_row(Sampler(), text) for text in texts])
    return decoder.step(1)[1]


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_logits_are_as_close_to_float32_as_the_models(changes: dict[str, object]) -> None:
    model = _model(**changes)
    vocab_size = model.config.vocab_size
    ids = torch.randint(0, vocab_size, (5, 140), generator=torch.Generator().manual_seed(1))
    ids[:, 11::31] = 7
    with torch.no_grad():
        own = model(ids.cuda()).float()
        exact = model.float()(ids.cuda())
    decoder = CudaDecoder(model.to(torch.bfloat16), 5)
    lengths = [120, 3, 70, 1, 40]
    decoder.prefill([(row, ids[row, :n].tolist()) for row, n in enumerate(lengths)])
    allowed = 2 * float((own - exact).abs().max()) + 1e-3
    for further in range(4):
        positions = torch.tensor(lengths) + further
        logits = _logits(decoder, [ids[row, : n + 1].tolist() for row, n in enumerate(positions)])
        wanted = exact[torch.arange(5), positions]
        assert float((logits - wanted).abs().max()) <= allowed


def test_a_sampled_separator_begins_a_document() -> None:
    text, model = [1, 2, 3], _model(document_separator=7)
    with torch.no_grad():
        model.output_weight[7] = model.hidden(torch.tensor([text]).cuda())[0, -1]
    exact, decoder = copy.deepcopy(model).float(), CudaDecoder(model, 2)
    decoder.prefill([(0, text[:-1])])
    decoder.begin([_row(Sampler(temperature=0), list(text))])
    for number in range(6):
        ids, logits = decoder.step(1)
        with torch.no_grad():
            inputs = torch.tensor([text]).cuda()
            own, wanted = model(inputs)[0, -1].float(), exact(inputs)[0, -1]
        allowed = 2 * float((own - wanted).abs().max()) + 1e-3
        assert float((logits[0] - wanted).abs().max()) <= allowed
        assert number or ids == [7]
        text += ids


@pytest.mark.parametrize("shape", ["plain", "recipe", "documents", "wide", "just over"])
def test_a_row_does_not_depend_on_the_others(shape: str) -> None:
    model = _model(**SHAPES[shape])
    generator = torch.Generator().manual_seed(2)
    prompts = [
        tuple(torch.randint(0, 500, (1 + 7 * n % 90,), generator=generator).tolist())
        for n in range(40)
    ]
    # Every fifth row has a repetition penalty, which does not change the others' samples.
    requests = [
        GenerationRequest(
            prompt, 30, Sampler(top_p=0.95, repetition_penalty=1.0 if seed % 5 else 1.4), seed=seed
        )
        for seed, prompt in enumerate(prompts)
    ]
    engine = Engine(CudaDecoder(model, 64))
    together = _texts(engine, requests)
    for number in (0, 7, 23, 35):
        assert _texts(engine, [requests[number]]) == [together[number]]
    assert _texts(Engine(CudaDecoder(model, 3)), requests[:3]) == together[:3]


@pytest.mark.parametrize("num_rows", [8, 16, 32, 64, 255, 256, 1_024])
@pytest.mark.parametrize("shape", ["plain", "documents", "wide"])
def test_logits_do_not_depend_on_the_number_of_rows(num_rows: int, shape: str) -> None:
    model = _model(**SHAPES[shape])
    many, alone = CudaDecoder(model, num_rows), CudaDecoder(model, 1)
    ids = torch.arange(num_rows) % 500
    # Long enough that a single row reads more keys per program than many rows.
    length = 150 if num_rows <= 64 else 3
    texts = [[int(id), *range(length - 1)] for id in ids]
    many.prefill(list(enumerate(texts)))
    longer = [[*text, text[0]] for text in texts]
    logits = _logits(many, longer).clone()
    for row in (0, num_rows // 2, num_rows - 1):
        alone.prefill([(0, texts[row])])
        one = _logits(alone, [longer[row]])
        assert torch.equal(one[0], logits[row])


def test_rows_that_join_and_leave_do_not_affect_others() -> None:
    engine = Engine(CudaDecoder(_model(), 8))
    samplers = [Sampler(temperature=0.9, top_k=50), Sampler(repetition_penalty=1.3)]
    requests = [GenerationRequest((n + 1, n + 2), 5 + 9 * n, samplers[n % 2], n) for n in range(6)]
    alone = [_texts(engine, [request])[0] for request in requests]
    texts: dict[int, list[int]] = {}
    waiting, steps = list(requests), 0
    while waiting or engine.num_running:
        if waiting and steps % 3 == 0:
            texts[engine.add(waiting.pop(0))] = []
        for handle, token in engine.step():
            texts[handle].append(token.id)
        steps += 1
    assert list(texts.values()) == alone


def test_the_cache_grows_and_texts_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, samplers = _model(document_separator=7), [Sampler(), Sampler(top_p=0.8)]
    requests = [GenerationRequest((n + 1,) * n, 3**n, samplers[n % 2], n) for n in range(1, 6)]
    wanted = _texts(Engine(CudaDecoder(model, 5)), requests)
    monkeypatch.setattr(cuda_decoder, "_FIRST_POSITIONS", 8)
    engine = Engine(CudaDecoder(model, 5))
    lengths = [engine.decoder.cache.keys.shape[3]]
    for request, text in zip(requests, wanted, strict=True):
        assert _texts(engine, [request]) == [text]
        lengths.append(engine.decoder.cache.keys.shape[3])
    assert lengths == [8, 8, 16, 32, 128, 160]
    assert _texts(Engine(CudaDecoder(model, 5)), requests) == wanted


class Counted(CudaDecoder):
    """Counts launched steps and calls of `begin`."""

    num_begun = num_told = 0

    def begin(self, rows: Any) -> None:
        self.num_told += 1
        super().begin(rows)

    def _replay(self, n: int, rules: Any, num_steps: int = 1) -> None:
        self.num_begun += num_steps
        super()._replay(n, rules, num_steps)


def test_steps_are_launched_ahead_but_never_too_many() -> None:
    decoder = Counted(_model(context_length=12), 5)
    engine = Engine(decoder)

    def ask(max_tokens: int, **settings: Any) -> None:
        engine.add(GenerationRequest((1, 2), max_tokens, SAMPLERS[4], **settings))

    def begun() -> int:
        number, decoder.num_begun = decoder.num_begun, 0
        return number

    for max_tokens, expected in ((7, 7), (100, 11)):
        ask(max_tokens)
        while engine.num_running:
            engine.step()
        assert (begun(), decoder.num_told) == (expected, 1)
        decoder.num_told = 0
    # With few rows, eight steps at once, until fewer than eight are left.
    ask(10, stop_ids=frozenset([499]))
    engine.step()
    assert begun() == 8 + 1
    # Not if the caller needs a step's logits, which the next step would overwrite.
    engine.clear()
    ask(10, num_alternatives=2)
    engine.step()
    assert begun() == 1
    # Nor with many rows, any of which may end at any time.
    for stop_ids, expected in ((frozenset([499]), 2), (frozenset[int](), 9)):
        engine.clear()
        for _ in range(5):
            ask(10, stop_ids=stop_ids)
        engine.step()
        assert begun() == expected


def _draw(logits: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    logits = logits.cuda()
    seen = torch.zeros_like(logits, dtype=torch.int8)
    for index, row in enumerate(rows):
        seen[index, row.ids] = 1
    whole, floats = (torch.from_numpy(numbers).cuda() for numbers in row_state(rows))
    state = kernels.State._make([*whole, *floats, seen])
    chosen = torch.zeros(len(logits), dtype=torch.int64, device="cuda")
    # In the decoder, the output layer computes these; after the penalty.
    penalty = torch.tensor([row.request.sampler.repetition_penalty for row in rows]).cuda()[:, None]
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    lowered = torch.where(seen > 0, lowered, logits).nan_to_num(math.inf, math.inf, -math.inf)
    filled = torch.nn.functional.pad(lowered, (0, -logits.shape[1] % 64), value=-math.inf)
    tiles = filled.unflatten(1, (-1, 64))
    tops, temperature = tiles.amax(2), state.temperature[:, None, None]
    scores = torch.where(tiles == tops[..., None], 0, (tiles - tops[..., None]) / temperature)
    masses = scores.exp().where(tiles > -math.inf, 0).sum(2)
    rules = kernels.Rules(penalty=True)
    table = torch.randn(logits.shape[1], 16, device="cuda")
    x = torch.zeros(len(logits), 16, device="cuda")
    stream = Buffers(x, x.half(), x[:, :1].clone(), x, x, x, logits, tops, masses, masses.int())
    kernels.sample(stream, state, table, chosen, 100, NO_ID, -1, rules)
    found = chosen != NO_ID
    assert torch.equal(x[found], table[chosen[found]])
    assert state.counts.tolist() == [row.num_new + 1 for row in rows]
    return chosen.cpu()


def test_samples_equal_those_of_the_sampler() -> None:
    chance = random.Random(3)
    generator = torch.Generator().manual_seed(3)
    different = 0
    for trial in range(150):
        vocab_size = chance.choice([5, 64, 1000, 4096, 9_999])
        logits = torch.randn(6, vocab_size, generator=generator) * chance.choice([0.2, 1.0, 5.0])
        if trial % 3 == 0:
            logits = logits.round()
        sampler = Sampler(
            temperature=chance.choice([0, 0.5, 1.0, 1.7]),
            top_k=chance.choice([None, 1, 3, 50]),
            top_p=chance.choice([1.0, 0.9, 0.5, 0.05, 1e-50]),
            min_p=chance.choice([0.0, 0.1, 0.7]),
            repetition_penalty=chance.choice([1.0, 1.0, 1.3, 100.0]),
        )
        rows = [
            _row(sampler, [0, 3, chance.randrange(5)], chance.randrange(50), chance.randrange(99))
            for _ in range(6)
        ]
        numbers = uniforms([row.request.seed for row in rows], [row.num_new for row in rows])
        seen = torch.zeros_like(logits, dtype=torch.bool)
        for index, row in enumerate(rows):
            seen[index, row.ids] = True
        wanted = sample(sampler, logits, torch.tensor(numbers, dtype=torch.float64), seen)
        different += int((_draw(logits, rows) != wanted).sum())
    # Sums in float32 here and in float64 there may differ if a number falls on a boundary.
    assert different <= 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_logits_give_no_id(bad: float) -> None:
    logits = torch.zeros(2, 70)
    logits[1, 69] = bad
    sampled = _draw(logits, [_row(Sampler(top_p=0.5), [3], seed=seed) for seed in (1, 2)]).tolist()
    assert sampled[0] != NO_ID and sampled[1] == NO_ID


@pytest.mark.parametrize(("vocab_size", "num_allowed"), VOCABULARIES.values(), ids=VOCABULARIES)
def test_disallowed_ids_are_neither_scored_nor_sampled(
    vocab_size: int, num_allowed: int, shout: Callable[..., None]
) -> None:
    model = _model(vocab_size=vocab_size)
    forbidden = range(num_allowed, vocab_size)
    shout(model, [*forbidden])
    cut, whole = CudaDecoder(model, 5, num_allowed), CudaDecoder(model, 5)
    last = vocab_size - 1
    for decoder in (cut, whole):
        decoder.prefill([(row, [1, last, row % vocab_size]) for row in range(5)])
    # Twice each, because the first step with a number of rows records a graph.
    for n in (1, 2, 3, 5, 5, 3, 2, 1):
        texts = [[0, 0, 0, last - n + row] for row in range(n)]
        expected = _logits(whole, texts)[:, :num_allowed].clone()
        assert torch.equal(_logits(cut, texts), expected)
    for sampler in SAMPLERS:
        texts = [[1, last, 2, row % vocab_size] for row in range(5)]
        cut.begin([_row(sampler, list(ids), row, row) for row, ids in enumerate(texts)])
        sampled, logits = cut.step(1)
        assert not {*sampled} & {NO_ID, *forbidden}
        # From the sums of the output layer, as from the logits.
        seen = torch.zeros_like(logits, dtype=torch.bool)
        for row, ids in enumerate(texts):
            seen[row, [id for id in ids if id < num_allowed]] = True
        numbers = torch.tensor(uniforms(range(5), range(5)), dtype=torch.float64)
        assert sampled == sample(sampler, logits, numbers, seen).tolist()


# The first use of sync debug mode warns that it does not detect everything.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_neither_synchronizes_nor_allocates() -> None:
    decoder = CudaDecoder(_model(), 4, num_allowed=437)
    decoder.begin([_row(SAMPLERS[index], [3]) for index in (-2, -1, -1, -2)])
    decoder.step(1)
    taken = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        # The same operations without a graph, where a synchronization would be reported.
        with torch.inference_mode():
            decoder._step(4, decoder._rules, decoder._chosen[0])
        read, _ = decoder._launch(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    read()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == taken


def test_the_fastest_decoder_that_supports_the_model_is_chosen() -> None:
    assert isinstance(choose_decoder(_model(), 2), CudaDecoder)
    for shape in ("recipe", "documents"):
        assert isinstance(choose_decoder(_model(**SHAPES[shape]), 2), CudaDecoder)
    for model in (_model().float(), _model(norm="post"), _model(num_layers=0)):
        assert isinstance(choose_decoder(model, 2), TorchDecoder)


@pytest.mark.parametrize(("depth", "rows"), [(1_024, 64), (2_048, 32)])
def test_prompts_of_wide_models_use_small_tiles_if_shared_memory_is_small(
    monkeypatch: pytest.MonkeyPatch, depth: int, rows: int
) -> None:
    small = SimpleNamespace(shared_memory_per_block_optin=101_376)
    # Replace torch in the matmul module only: other code gets the real device properties.
    cuda = SimpleNamespace(get_device_properties=lambda *device: small)
    monkeypatch.setattr(matmul, "torch", SimpleNamespace(cuda=cuda))
    assert matmul._tiles(1_024, 4_096, depth, "none")[1]["ROWS"] == rows
