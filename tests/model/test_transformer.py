"""The language model: contract, initialization, fast kernels against formulas; every setting
trains."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.errors import ConfigError
from groundup.model import TransformerLM
from groundup.model.transformer import weight_shapes
from groundup.nn.functional import sequence_starts

pytestmark = pytest.mark.usefixtures("steady")


def small(**settings: Any) -> TransformerLM:
    shape: dict[str, Any] = {"vocab_size": 61, "context_length": 16, "d_model": 24, "num_layers": 2}
    return TransformerLM(**{**shape, "num_heads": 4, "d_ff": 40, "rope_theta": 1e4, **settings})


def gradients(model: TransformerLM, loss: Tensor) -> dict[str, Tensor]:
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_ids_and_masks_may_have_any_strides(num_kv_heads: int) -> None:
    model, wide = small(document_separator=3, num_kv_heads=num_kv_heads), torch.randint(6, (10, 20))
    views = wide[:, ::2], wide.T[:, ::3], wide[:1, :9].expand(4, -1), wide.view(2, 5, 20)[..., ::4]
    for ids in views:
        found, expected = (gradients(model, model.loss(one, one)) for one in (ids, ids.clone()))
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    ids, starts = wide[:, :10], sequence_starts(wide[:, :10] == 3)
    for same in (starts.T.contiguous().T, starts.repeat(1, 2)[:, :10], starts.int()):
        assert torch.equal(
            model.hidden(ids, document_starts=same), model.hidden(ids, document_starts=starts)
        )
    model.hidden(ids, document_starts=starts[0])


def test_device_and_dtype_apply_to_every_weight() -> None:
    model = TransformerLM.from_config(small().config, device="cpu", dtype=torch.float64)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert model(torch.randint(61, (4,))).dtype == torch.float64
    with torch.device("meta"):
        assert small()(torch.randint(61, (2, 5))).shape == (2, 5, 61)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("num_kv_heads", [2, 1])
def test_document_masking_isolates_documents(num_kv_heads: int) -> None:
    model = small(num_kv_heads=num_kv_heads, document_separator=7)
    ids = torch.tensor([[1, 2, 7, 3, 4, 7, 7, 5], [7, 1, 2, 3, 4, 5, 6, 7]])
    logits = model(ids)
    for row, expected, cuts in zip(ids, logits, ([2, 3, 1, 2], [7, 1]), strict=True):
        alone = torch.cat([model(document) for document in row.split(cuts)])
        torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", ["rope", "none"])
def test_more_ids_than_the_context_are_rejected(positions: str) -> None:
    with pytest.raises(ConfigError, match="17 ids exceed the context of 16"):
        small(positions=positions)(torch.randint(61, (2, 17)))


@pytest.mark.parametrize("tie_embeddings", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_initial_loss_is_near_that_of_a_uniform_guess(norm: str, tie_embeddings: bool) -> None:
    model = TransformerLM(2_000, 32, 64, 2, 4, 128, 1e4, norm=norm, tie_embeddings=tie_embeddings)
    ids, targets = torch.randint(2_000, (2, 8, 32)).unbind(0)
    with torch.no_grad():
        assert model.loss(ids, targets).item() == pytest.approx(math.log(2_000), rel=0.02)


def test_a_tied_table_is_one_parameter_with_gradients_of_both_uses() -> None:
    tied = small(tie_embeddings=True)
    untied = small(embedding_scale=tied.config.input_scale)
    assert tied.token_embedding.weight is tied.lm_head.weight is tied.output_weight
    assert len(list(tied.parameters())) == len(list(untied.parameters())) - 1
    untied.load_state_dict(tied.state_dict())
    ids, targets = torch.randint(61, (2, 2, 9)).unbind(0)
    together = gradients(tied, tied.loss(ids, targets))
    apart = gradients(untied, untied.loss(ids, targets))
    name = "token_embedding.weight"
    torch.testing.assert_close(
        together[name], apart[name] + apart["lm_head.weight"], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_gpt2_initialization_is_small_and_smaller_for_residual_outputs(
    tie_embeddings: bool,
) -> None:
    settings: dict[str, Any] = {"tie_embeddings": tie_embeddings, "gated_attention": True}
    model = TransformerLM(400, 16, 96, 8, 4, 256, 1e4, initialization="gpt2", **settings)
    for name, parameter in model.named_parameters():
        if "norm" in name or "head_gate" in name:
            assert (parameter == ("norm" in name)).all()
            continue
        adds = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
        std = 0.02 / math.sqrt(2 * 8) if adds else 0.02
        assert parameter.std().item() == pytest.approx(std, rel=0.05), name
        assert abs(parameter.mean().item()) < 0.05 * std, name
        # Not truncated.
        assert parameter.abs().max() > 3 * std, name
    assert model.config.input_scale == 1
    assert TransformerLM(9, 4, 8, 0, 2, 8, 1e4, initialization="gpt2").lm_head.weight.std() < 0.1


def test_zero_outputs_make_every_block_the_identity() -> None:
    model = small(zero_outputs=True)
    ids = torch.randint(61, (2, 9))
    assert torch.equal(model(ids), model.logits(model.final_norm(model.embed(ids))))


@pytest.mark.usefixtures("form")
def test_value_embeddings_start_at_zero_and_gates_at_one() -> None:
    """tests/interop/test_every_setting.py tests trained ones against another implementation."""
    model = small(num_kv_heads=2, value_embeddings="projection", gated_attention=True)
    plain, ids = small(num_kv_heads=2), torch.randint(61, (2, 9))
    plain.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(model(ids), plain(ids))


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_dropout_is_only_applied_in_training(norm: str) -> None:
    model, plain = small(dropout=0.5, norm=norm), small(norm=norm)
    plain.load_state_dict(model.state_dict())
    ids, targets = torch.randint(61, (2, 3, 13)).unbind(0)
    with torch.no_grad():
        assert torch.equal(model(ids), plain(ids))
    first, second = (gradients(model, model.loss(ids, targets)) for _ in range(2))
    assert not torch.equal(first["lm_head.weight"], second["lm_head.weight"])
    # Dropout applies to the branches of a block, not only to the embeddings.
    block = model.blocks[0]
    x = model.embed(ids).detach()
    assert not torch.equal(block(x), block(x))
    assert torch.equal(model.eval().loss(ids, targets), plain.loss(ids, targets))


ONE_PROCESS: list[dict[str, Any]] = [
    {"feed_forward": "silu", "norm_eps": 1e-3},
    {"feed_forward": "gelu", "num_kv_heads": 1},
    {"d_ff": None, "rope_theta": 500_000.0},
    {"num_layers": 0},
    {"initialization": "gpt2"},
    {"zero_outputs": True},
    {"gated_attention": True},
    {"value_embeddings": "projection", "num_kv_heads": 2},
]
TOGETHER: list[dict[str, Any]] = [
    {"norm": norm, "feed_forward": kind, "qk_norm": True, "num_kv_heads": 2, "positions": positions}
    | {"tie_embeddings": tied}
    for norm, (kind, positions, tied) in itertools.product(
        ["pre", "post", "none"], [("swiglu", "rope", True), ("relu2", "none", False)]
    )
]


@pytest.mark.parametrize("settings", ONE_PROCESS + TOGETHER, ids=str)
def test_every_setting_trains(settings: dict[str, Any]) -> None:
    model = small(**settings)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == weight_shapes(model.config)
    # Each id at least once, so that every row of the embedding gets a gradient.
    ids = torch.cat([torch.randperm(61), torch.randint(61, (3,))]).view(4, 16)
    targets = ids.roll(-1, dims=1)
    names, weights = zip(*model.named_parameters(), strict=True)
    losses = []
    for step in range(4):
        loss = model.loss(ids, targets)
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, weights)
        for name, gradient in zip(names, gradients, strict=True):
            assert gradient.isfinite().all(), name
            # Parameters behind an initial zero get gradients from the second step on.
            begins_at_zero = "value_embeddings" in name or "value_sum" in name
            is_behind_zero = step == 0 and (model.config.zero_outputs or begins_at_zero)
            assert gradient.any() or is_behind_zero, name
        length = torch.stack([gradient.norm() for gradient in gradients]).norm()
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= 0.3 * gradient / length
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("later_weight", [None, 0.3])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize(("shape", "tied"), [((7,), False), ((3, 13), True), ((2, 2, 1), False)])
def test_the_loss_is_that_of_the_logits(
    shape: tuple[int, ...], tied: bool, z_loss: float, later_weight: float | None, reduction: Any
) -> None:
    """Multi-token prediction affects the gradients only."""
    model = small(dtype=torch.float64, tie_embeddings=tied)
    with torch.no_grad():
        # Confident predictions, so that no two losses are equal by chance.
        model.lm_head.weight.mul_(4)
    ids, targets = torch.randint(61, (2, *shape)).unbind(0)
    logits = model(ids)
    losses = functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")
    losses = losses + z_loss * torch.logsumexp(logits, dim=-1).square().sum()
    later = functional.cross_entropy(
        logits[..., :-1, :].flatten(0, -2), targets[..., 1:].flatten(), reduction="sum"
    )
    divisor = targets.numel() if reduction == "mean" else 1
    weight = None if later_weight is None else torch.tensor(later_weight)
    ours = model.loss(ids, targets, z_loss, reduction, weight)
    torch.testing.assert_close(ours, losses / divisor)
    weights = list(model.parameters())
    gradients = torch.autograd.grad((losses + (later_weight or 0) * later) / divisor, weights)
    torch.testing.assert_close(torch.autograd.grad(ours, weights), gradients)
