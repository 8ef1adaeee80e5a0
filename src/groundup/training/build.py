"""A run's model with its first weights, its optimizer, and the way its gradients are summed."""

import torch

from groundup.distributed.muon import CopiedMatrices
from groundup.distributed.process_group import ALONE, World
from groundup.distributed.reduction import Accumulated, ExactReduction, FastReduction, Reduction
from groundup.model import TransformerLM
from groundup.optim.build import build_optimizer
from groundup.optim.muon import Muon
from groundup.optim.orthogonalization import orthogonalize, orthogonalize_each
from groundup.planner import check_holdable
from groundup.runtime import memory_bytes, set_seed
from groundup.tokenizer import Tokenizer
from groundup.training.execution import compile_model
from groundup.training.resolve import ResolvedRun
from groundup.training.start import Start
from groundup.training.state import TrainingState
from groundup.training.tuning import adapt


def build_state(
    run: ResolvedRun,
    tokenizer: Tokenizer | None = None,
    start: Start | None = None,
    model: TransformerLM | None = None,
    world: World = ALONE,
    document_id: int | None = None,
) -> TrainingState:
    """A model on the run's device, and its optimizer.

    tokenizer: whose special tokens learn beside adapters.
    start: where the first weights come from, if not from the seed.
    model: learns instead of a new one.
    document_id: what begins a document, if tokens are to see their own alone.
    """
    config, device = run.config, torch.device(run.config.device)
    check_holdable(config.model, memory_bytes())
    set_seed(config.seed)
    # Made on the CPU, so that a seed gives the same weights whatever they move to.
    if model is None:
        model = TransformerLM.from_config(config.model, device="cpu")
    model.document_id = document_id
    if start is not None:
        start.load_into(model)
    if config.tuning.lora_rank is not None:
        special = () if tokenizer is None else sorted(tokenizer.special_tokens.values())
        adapt(model, config.tuning.lora_rank, special)
    if config.distributed.recompute:
        from groundup.distributed.sharding import recompute_blocks

        recompute_blocks(model)
    # Of a sharded one no more than a block is ever whole on the device.
    if run.strategy == "ddp":
        model = model.to(device)
    model.use_float8(config.precision == "float8")
    compile_model(model, config)
    dtype = torch.bfloat16 if config.distributed.reduce_dtype == "bfloat16" else None
    length = 1.0 if config.num_steps is None else config.num_steps
    if run.strategy == "ddp":
        reduction: Reduction = Accumulated()
        if run.is_exact:
            reduction = ExactReduction(world)
        elif world.size > 1:
            reduction = FastReduction(world, dtype)
        optimizer = build_optimizer(model, config.optimizer, length)
        if isinstance(optimizer, Muon):
            way = orthogonalize_each if run.is_exact else orthogonalize
            optimizer.matrices = CopiedMatrices(world, way)
        return TrainingState(model, optimizer, config.tokens_per_step, reduction)
    from groundup.distributed.sharding import shard

    sharded = shard(model, world, run.strategy, device, dtype)
    optimizer = build_optimizer(sharded.parameters, config.optimizer, length)
    if isinstance(optimizer, Muon):
        optimizer.matrices = sharded.matrices()
    return TrainingState(model, optimizer, config.tokens_per_step, sharded, sharded.parameters)
