"""On CUDA, too, ids that cannot be written are never seen by draws and scores; nor are the columns
that only fill rows up."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from groundup.generation import Engine, GenerationRequest
from groundup.generation.decoder import ModelDecoder, WritableIds
from groundup.generation.packed_decoder import PackedDecoder
from groundup.generation.sampling import NO_ID, Sampler, uniforms
from groundup.model import TransformerLM

pytest.importorskip("triton")

from groundup.generation.cuda_decoder import CudaDecoder, RowState, SamplerSettings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")

NewModel = Callable[..., TransformerLM]

# The ids of the model, and those that can be written.
VOCABULARIES: dict[str, tuple[int, WritableIds]] = {
    "all": (500, WritableIds(500)),
    "all of an odd number": (301, WritableIds(301)),
    "whole rows": (500, WritableIds(448)),
    "rows to fill up": (500, WritableIds(437)),
    "gaps": (500, WritableIds(448, (7, 8, 433))),
    "gaps and rows to fill up": (500, WritableIds(437, (7, 8, 433))),
    "a gap at the end": (500, WritableIds(499, (498,))),
    "rows longer than a block": (9_000, WritableIds(8_193, (0, 4_096))),
    "one id": (17, WritableIds(1)),
    "one id after gaps": (33, WritableIds(17, tuple(range(16)))),
}
SAMPLERS = [
    Sampler.of(0),
    Sampler.of(2.0),
    Sampler.of(top_k=5),
    Sampler.of(top_k=436),
    Sampler.of(top_k=440),
    Sampler.of(1.5, top_p=0.9),
    Sampler.of(min_p=0.1),
    Sampler.of(0.7, top_k=50, top_p=0.5, min_p=0.01),
]
every_vocabulary = pytest.mark.parametrize(
    ("vocab_size", "writable"), VOCABULARIES.values(), ids=VOCABULARIES
)


@pytest.fixture
def cuda_model(new_model: NewModel) -> NewModel:
    def make(vocab_size: int = 500, **changes: Any) -> TransformerLM:
        shape = {"context_length": 64, "d_model": 64, "d_ff": 160}
        settings = shape | {"device": "cuda", "dtype": torch.bfloat16} | changes
        return new_model(vocab_size=vocab_size, **settings).eval()

    return make


def lacking(vocab_size: int, writable: WritableIds) -> list[int]:
    return [*writable.gaps, *range(writable.end, vocab_size)]


def cut_scores(logits: torch.Tensor, writable: WritableIds) -> torch.Tensor:
    """The oracle: all scores, without those of the ids that cannot be written."""
    logits = logits[..., : writable.end].clone()
    logits[..., list(writable.gaps)] = -math.inf
    return logits


@every_vocabulary
@pytest.mark.parametrize("tied", [False, True])
def test_scores_are_those_of_the_whole_vocabulary(
    vocab_size: int, writable: WritableIds, tied: bool, cuda_model: NewModel
) -> None:
    model = cuda_model(vocab_size, tie_embeddings=tied)
    cut, whole = CudaDecoder(model, 6, writable=writable), CudaDecoder(model, 6)
    last = vocab_size - 1
    for decoder in (cut, whole):
        decoder.prefill_many([(row, [1, last, row]) for row in range(6)])
    # Twice each, since the first step of a number of rows is recorded and the second is not.
    for n in (1, 2, 3, 6, 6, 3, 2, 1):
        ids, positions = torch.arange(n) + last - n, torch.full((n,), 3)
        expected = cut_scores(whole.decode(ids, positions), writable)
        assert torch.equal(cut.decode(ids, positions), expected)
        assert torch.equal(cut.logits[:n], expected)
    first = cut_scores(whole.prefill(5, [0, last]), writable)
    assert torch.equal(cut.prefill(5, [0, last]), first)


@every_vocabulary
def test_draws_are_the_samplers_from_the_scores_that_are_shown(
    vocab_size: int, writable: WritableIds, cuda_model: NewModel, shout: Any
) -> None:
    model = cuda_model(vocab_size)
    shout(model, lacking(vocab_size, writable))
    decoder = CudaDecoder(model, 5, writable=writable)
    decoder.prefill_many([(row, [row]) for row in range(5)])
    different = 0
    for sampler in SAMPLERS:
        settings = SamplerSettings.of(sampler)
        assert settings is not None
        decoder.set_rows([RowState(row, 1, row, 10 + row, settings) for row in range(5)])
        (drawn,) = decoder.launch(5)()
        assert not {*drawn} & {NO_ID, *lacking(vocab_size, writable)}
        numbers = torch.tensor([uniforms(10 + row, row, 1)[0] for row in range(5)])
        wanted = sampler.sample(decoder.logits[:5].cpu(), numbers.double())
        different += sum(a != b for a, b in zip(drawn, wanted.tolist(), strict=True))
    # Sums in float32 here and float64 there may part where a number falls on an edge.
    assert different <= 1


@pytest.mark.parametrize("writable", [WritableIds(437), WritableIds(437, (7, 8, 433))], ids=str)
def test_ids_that_cannot_be_written_are_neither_drawn_nor_named(
    writable: WritableIds, cuda_model: NewModel, shout: Any
) -> None:
    model = cuda_model()
    absent = {*lacking(500, writable)}
    shout(model, sorted(absent))
    engine = Engine(CudaDecoder(model, 8, writable=writable))
    samplers = [*SAMPLERS[:3], Sampler.of(top_p=0.9), Sampler.of(repetition_penalty=1.3)]
    # One of them is drawn by the host, so that all are while it runs.
    for num_together in (4, 5):
        for seed, sampler in enumerate(samplers[:num_together]):
            engine.add(
                GenerationRequest((3, 499, 440), 20, sampler, seed, num_alternatives=3 * (seed % 2))
            )
        while engine.num_running:
            for _, token in engine.step():
                assert not {token.id, *dict(token.alternatives)} & absent


def test_likelihoods_are_shares_of_what_can_be_written(cuda_model: NewModel) -> None:
    writable = WritableIds(437, (7, 8, 433))
    engine = Engine(CudaDecoder(cuda_model(), 2, writable=writable))
    for seed in (1, 2):
        engine.add(GenerationRequest((3, 499), 6, Sampler.of(2.0), seed, num_alternatives=1000))
    while engine.num_running:
        for _, token in engine.step():
            assert len(token.alternatives) == writable.num
            total = math.fsum(math.exp(value) for _, value in token.alternatives)
            assert total == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_damage_to_what_cannot_be_written_is_not_seen(bad: float, cuda_model: NewModel) -> None:
    writable = WritableIds(437, (7, 8, 433))
    sound, damaged = cuda_model(), cuda_model()
    with torch.no_grad():
        damaged.output_weight[lacking(500, writable)] = bad
    texts: list[list[int]] = []
    for model in (sound, damaged):
        engine = Engine(CudaDecoder(model, 1, writable=writable))
        engine.add(GenerationRequest((3, 5), 20, Sampler.of(top_p=0.9)))
        texts.append([])
        while engine.num_running:
            texts[-1] += [token.id for _, token in engine.step()]
    assert texts[0] == texts[1] and NO_ID not in texts[0]


@every_vocabulary
def test_just_the_columns_that_cannot_be_written_are_ruled_out(
    vocab_size: int, writable: WritableIds, cuda_model: NewModel
) -> None:
    absent = CudaDecoder(cuda_model(vocab_size), 1, writable=writable)._absent
    if absent is None:
        assert not lacking(vocab_size, writable) or writable.end % 16 == 0
    else:
        assert absent.nonzero()[:, 0].tolist() == [
            id for id in lacking(vocab_size, writable) if id < len(absent)
        ]


def test_output_weights_are_read_where_they_lie(cuda_model: NewModel) -> None:
    for tied in (False, True):
        model = cuda_model(tie_embeddings=tied)
        decoder = CudaDecoder(model, 2, writable=WritableIds(437))
        ids, positions = torch.tensor([3, 4]), torch.tensor([0, 0])
        before = decoder.decode(ids, positions).clone()
        with torch.no_grad():
            model.output_weight[[436, 440]] *= 2
        after = decoder.decode(ids, positions)
        assert torch.equal(after[:, :436], before[:, :436])
        assert torch.allclose(after[:, 436], 2 * before[:, 436])


# The first use of the mode warns that it does not notice all there is.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@every_vocabulary
def test_a_step_waits_for_nothing_and_takes_no_memory(
    vocab_size: int, writable: WritableIds, cuda_model: NewModel
) -> None:
    decoder = CudaDecoder(cuda_model(vocab_size), 4, writable=writable)
    settings = SamplerSettings.of(SAMPLERS[-1])
    assert settings is not None
    decoder.set_rows([RowState(0, 0, 0, row, settings) for row in range(4)])
    decoder.launch(4)()
    taken = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        # The same operations without their recording, where a wait would be told.
        with torch.inference_mode():
            decoder._step(4, decoder._rules, decoder._chosen[0])
        read = decoder.launch(4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    read()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == taken


@pytest.mark.parametrize("kind", [ModelDecoder, PackedDecoder])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoders_without_kernels_of_our_own_cut_the_same(
    kind: type[ModelDecoder], dtype: torch.dtype, cuda_model: NewModel
) -> None:
    writable = WritableIds(437, (7, 8, 433))
    model = cuda_model(dtype=dtype)
    cut, whole = kind(model, 2, writable=writable), kind(model, 2)
    for decoder in (cut, whole):
        decoder.prefill_many([(0, [3]), (1, [499, 440])])
    ids, positions = torch.tensor([498, 7]), torch.tensor([1, 2])
    scores = cut.decode(ids, positions)
    assert torch.equal(scores, cut_scores(whole.decode(ids, positions), writable))
    assert scores.dtype == torch.float32
