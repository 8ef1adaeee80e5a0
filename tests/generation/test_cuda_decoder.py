"""The decoder that draws on CUDA: its logits are the model's, its draws are the samplers', and no
row feels the others."""

import math
import random
from typing import Any

import pytest
import torch

from groundup.errors import ConfigError
from groundup.generation import Engine, GenerationRequest
from groundup.generation.sampling import NO_ID, Greedy, MinP, Sampler, Temperature, TopK, TopP
from groundup.model import TransformerLM

pytest.importorskip("triton")

from groundup.generation.cuda_decoder import CudaDecoder, RowState, SamplerSettings, as_numbers
from groundup.generation.decoder import ModelDecoder
from groundup.generation.packed_decoder import PackedDecoder, choose_decoder
from groundup.generation.sampling import uniforms
from groundup.nn.kernels.cuda_decode import matmul
from groundup.nn.kernels.cuda_decode.edge_search import COUNT
from groundup.nn.kernels.cuda_decode.sampling import Board, sample

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped heads": {"num_kv_heads": 2},
    "odd sizes": {"d_model": 72, "num_heads": 3, "d_ff": 100, "vocab_size": 301},
    "no positions, tied, capped": {
        "positions": "none",
        "tie_embeddings": True,
    },
    "recipe": {
        "feed_forward": "relu2",
        "qk_norm": True,
        "tie_embeddings": True,
    },
    "gates, projection": {
        "head_gates": True,
        "extra_values": "projection",
        "qk_norm": True,
        "tie_embeddings": True,
    },
    "gelu": {"feed_forward": "gelu"},
    "wide": {"d_model": 1_280, "num_heads": 10, "d_ff": 4_096, "feed_forward": "silu"},
    # A little more than what is read ahead at once, as much as there is room for.
    "just over": {"d_ff": 6_208, "feed_forward": "relu2"},
}


def _model(**changes: Any) -> TransformerLM:
    settings: dict[str, Any] = {
        "vocab_size": 500,
        "context_length": 160,
        "d_model": 64,
        "num_layers": 3,
        "num_heads": 4,
        "d_ff": 160,
        "rope_theta": 10_000.0,
    }
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


@needs_cuda
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_logits_are_as_near_to_float32_as_the_models_own(changes: dict[str, object]) -> None:
    model = _model(**changes)
    vocab_size = model.config.vocab_size
    ids = torch.randint(0, vocab_size, (5, 140), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        own = model(ids.cuda()).float()
        exact = model.float()(ids.cuda())
    decoder = CudaDecoder(model.to(torch.bfloat16), 5)
    lengths = [120, 3, 70, 1, 40]
    decoder.prefill_many([(row, ids[row, :n].tolist()) for row, n in enumerate(lengths)])
    allowed = 2 * float((own - exact).abs().max()) + 1e-3
    for further in range(4):
        positions = torch.tensor(lengths) + further
        logits = decoder.decode(ids[torch.arange(5), positions], positions)
        wanted = exact[torch.arange(5), positions]
        assert float((logits - wanted).abs().max()) <= allowed


@needs_cuda
@pytest.mark.parametrize("shape", ["plain", "recipe", "wide", "just over"])
def test_a_row_is_the_same_alone_and_among_others(shape: str) -> None:
    model = _model(**SHAPES[shape])
    generator = torch.Generator().manual_seed(2)
    prompts = [
        tuple(torch.randint(0, 500, (1 + 7 * n % 90,), generator=generator).tolist())
        for n in range(40)
    ]
    requests = [
        GenerationRequest(prompt, 30, Sampler.of(1.0, top_p=0.95), seed=seed)
        for seed, prompt in enumerate(prompts)
    ]
    engine = Engine(CudaDecoder(model, 64))
    together = _texts(engine, requests)
    for number in (0, 7, 23, 39):
        assert _texts(engine, [requests[number]]) == [together[number]]
    # To the last digit, and where one reads more keys at once than the other.
    many, alone = CudaDecoder(model, 64), CudaDecoder(model, 1)
    ids = torch.randint(0, 500, (150,), generator=generator)
    for decoder in (many, alone):
        decoder.prefill_many([(row, ids.tolist()) for row in range(decoder.max_rows)])
    logits = many.decode(ids[:64], torch.full((64,), 150))
    assert torch.equal(alone.decode(ids[:1], torch.tensor([150])), logits[:1])
    assert _texts(Engine(CudaDecoder(model, 3)), requests[:3]) == together[:3]


@needs_cuda
def test_rows_that_join_and_leave_do_not_disturb() -> None:
    model = _model()
    engine = Engine(CudaDecoder(model, 8))
    requests = [
        GenerationRequest((n + 1, n + 2), 5 + 9 * n, Sampler.of(0.9, top_k=50), seed=n)
        for n in range(6)
    ]
    alone = [_texts(engine, [request])[0] for request in requests]
    handles: dict[int, int] = {}
    texts: dict[int, list[int]] = {number: [] for number in range(6)}
    waiting = list(enumerate(requests))
    steps = 0
    while waiting or engine.num_running:
        if waiting and steps % 3 == 0:
            number, request = waiting.pop(0)
            handles[engine.add(request)] = number
        for handle, token in engine.step():
            texts[handles[handle]].append(token.id)
        steps += 1
    assert [texts[number] for number in range(6)] == alone


@needs_cuda
def test_greedy_text_is_the_plain_decoders() -> None:
    model = _model().float()
    request = GenerationRequest(tuple(range(20)), 100, Sampler((Greedy(),)), past_context="slide")
    wanted = _texts(Engine(ModelDecoder(model, 1)), [request])[0]
    got = _texts(Engine(CudaDecoder(model.to(torch.bfloat16), 1)), [request])[0]
    # Half precision may choose another of two near equals, and all that follows with it.
    assert sum(a == b for a, b in zip(got, wanted, strict=True)) >= 5
    assert got[:3] == wanted[:3]


@needs_cuda
def test_draws_are_the_samplers() -> None:
    chance = random.Random(3)
    generator = torch.Generator().manual_seed(3)
    different = 0
    for trial in range(120):
        vocab_size = chance.choice([5, 64, 1000, 4096, 9_999])
        logits = torch.randn(6, vocab_size, generator=generator) * chance.choice([0.2, 1.0, 5.0])
        if trial % 3 == 0:
            logits = logits.round()
        sampler = Sampler.of(
            chance.choice([0, 0.5, 1.0, 1.7]),
            chance.choice([None, 1, 3, 50]),
            chance.choice([None, 1.0, 0.9, 0.5, 0.05, 1e-50]),
            chance.choice([None, 0.0, 0.1, 0.7]),
        )
        seeds = [chance.randrange(1 << 60) for _ in range(6)]
        counts = [chance.randrange(50) for _ in range(6)]
        numbers = [uniforms(seed, count, 1)[0] for seed, count in zip(seeds, counts, strict=True)]
        wanted = sampler.sample(logits, torch.tensor(numbers, dtype=torch.float64))
        got = _draw(logits, sampler, seeds, counts)
        different += int((got != wanted).sum())
    # Sums in float32 here and float64 there may part where a number falls on an edge.
    assert different <= 2


@needs_cuda
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_not_finite_give_no_id(bad: float) -> None:
    logits = torch.zeros(2, 70)
    logits[1, 69] = bad
    drawn = _draw(logits, Sampler.of(1.0, top_p=0.5), [1, 2], [0, 0]).tolist()
    assert drawn[0] != NO_ID and drawn[1] == NO_ID


def test_unusual_chains_are_left_to_the_host() -> None:
    assert SamplerSettings.of(Sampler((TopP(0.9), Temperature(0.5)))) is None
    assert SamplerSettings.of(Sampler((TopK(3), TopK(2)))) is None
    assert SamplerSettings.of(Sampler.of(0.7, repetition_penalty=1.2)) is None
    assert SamplerSettings.of(Sampler.of(0.7, repetition_penalty=1.0)) == SamplerSettings(0.7)
    assert SamplerSettings.of(Sampler((TopP(0.5), Greedy()))) is not None
    assert SamplerSettings.of(Sampler((MinP(0.5),))) == SamplerSettings(log_min_p=math.log(0.5))


@needs_cuda
def test_the_fastest_decoder_that_knows_the_model_is_chosen() -> None:
    assert isinstance(choose_decoder(_model(), 2), CudaDecoder)
    assert isinstance(choose_decoder(_model().float(), 2), PackedDecoder)
    assert isinstance(choose_decoder(_model(**SHAPES["recipe"]), 2), CudaDecoder)
    assert isinstance(choose_decoder(_model(norm="post"), 2), PackedDecoder)
    assert isinstance(choose_decoder(_model(num_layers=0), 2), PackedDecoder)


@needs_cuda
def test_rows_are_no_longer_than_the_context() -> None:
    with pytest.raises(ConfigError, match="max_seq_len 161 is more than the model's context"):
        CudaDecoder(_model(), 2, max_seq_len=161)


@needs_cuda
def test_likelihoods_come_with_draws_on_the_device() -> None:
    engine = Engine(CudaDecoder(_model(), 4))
    engine.add(GenerationRequest((1, 2, 3), 8, Sampler.of(1.0, top_p=0.9), num_alternatives=3))
    while engine.num_running:
        for _, token in engine.step():
            assert token.log_probability is not None and token.log_probability <= 0
            assert len(token.alternatives) == 3
            assert token.log_probability <= token.alternatives[0][1] + 1e-6


def _texts(engine: Engine, requests: list[GenerationRequest]) -> list[list[int]]:
    texts: dict[int, list[int]] = {engine.add(request): [] for request in requests}
    while engine.num_running:
        for handle, token in engine.step():
            texts[handle].append(token.id)
    return list(texts.values())


def _draw(
    logits: torch.Tensor, sampler: Sampler, seeds: list[int], counts: list[int]
) -> torch.Tensor:
    settings = SamplerSettings.of(sampler)
    assert settings is not None
    states = [RowState(0, 0, n, seed, settings) for n, seed in zip(counts, seeds, strict=True)]
    whole, floats = (torch.from_numpy(numbers).cuda() for numbers in as_numbers(states))
    logits = logits.cuda()
    chosen = torch.zeros(len(logits), dtype=torch.int64, device="cuda")
    board = Board.make(len(logits), logits.shape[1], logits.device)
    tops = logits.nan_to_num(math.inf, math.inf, -math.inf).amax(1, keepdim=True)
    sample(logits, tops, board, whole, floats, chosen, 100, NO_ID)
    assert whole[:, COUNT].tolist() == [count + 1 for count in counts]
    return chosen.cpu()


@needs_cuda
@pytest.mark.parametrize(("depth", "rows"), [(1_024, 64), (2_048, 32)])
def test_prompts_of_wide_models_keep_to_small_tiles_where_memory_is_small(
    monkeypatch: pytest.MonkeyPatch, depth: int, rows: int
) -> None:
    monkeypatch.setattr(matmul, "shared_memory_bytes", lambda: 101_376)
    assert matmul._tiles(1_024, 4_096, depth, 64)[1]["ROWS"] == rows
