"""What an optimizer holds: its state from step to step, and what an update needs besides."""

from groundup.model.config import ModelConfig
from groundup.planner.activations import DeviceKind
from groundup.planner.flops import OptimizerName
from groundup.planner.parameters import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    block_matrices,
    count_learned,
    count_matrices,
    count_parameters,
)
from groundup.runtime import is_small_to_orthogonalize


def training_state_bytes(
    config: ModelConfig,
    optimizer: OptimizerName = "adamw",
    lora_rank: int | None = None,
    *,
    averages: bool = False,
) -> int:
    """Memory of the model `config`: weights, gradients and optimizer state in float32, whatever the
    batch.

    config, optimizer: of the run.
    lora_rank: of adapters, where they alone learn beside the weights.
    averages: whether the optimizer keeps an average of what learns.
    """
    num_learned = sum(count_learned(config, lora_rank).values())
    num_values = num_learned + sum(count_parameters(config).values())
    if lora_rank is not None:
        num_values += num_learned
    if averages:
        num_values += num_learned
    return FLOAT32_BYTES * num_values + optimizer_state_bytes(config, optimizer, lora_rank)


def optimizer_state_bytes(
    config: ModelConfig, optimizer: OptimizerName, lora_rank: int | None = None
) -> int:
    """AdamW keeps two values a parameter, SGD none; Muon keeps one for the matrices of the blocks
    and leaves the rest to AdamW.

    config, optimizer: of the run.
    lora_rank: of adapters, where they alone learn.
    """
    parts = count_learned(config, lora_rank)
    num_learned = sum(parts.values())
    num_in_blocks = count_matrices(parts)
    num_values = {"adamw": 2 * num_learned, "sgd": 0, "muon": 2 * num_learned - num_in_blocks}
    return FLOAT32_BYTES * num_values[optimizer]


def update_temporaries(
    config: ModelConfig,
    device: DeviceKind,
    optimizer: OptimizerName,
    *,
    is_exact: bool = False,
    lora_rank: int | None = None,
) -> int:
    """What an update holds besides its state, since a step can be undone on the device.

    AdamW has one kernel that works in place, but none on mps: there it holds, of the larger of its
    two groups, scaled gradients, weights and averages as they were, roots and moves. SGD holds
    scaled gradients, the weights as they were and the move of the largest matrix.

    config, device, optimizer: of the run.
    is_exact: whether Muon orthogonalizes one matrix after the other, as the exact reduction has it.
    lora_rank: of adapters, where they alone learn.
    """
    shapes = block_matrices(config, lora_rank) if config.num_layers else []
    if optimizer == "muon":
        return config.num_layers * _muon_temporaries(shapes, device, is_exact=is_exact)
    parts = count_learned(config, lora_rank)
    staying = parts["token_embedding"] + parts["norms"]
    if optimizer == "adamw":
        largest = max(staying, sum(parts.values()) - staying)
        return 6 * FLOAT32_BYTES * largest if device == "mps" else 0
    largest = max([parts["token_embedding"], *(rows * columns for rows, columns in shapes)])
    return FLOAT32_BYTES * (2 * sum(parts.values()) + largest)


def _muon_temporaries(shapes: list[tuple[int, int]], device: DeviceKind, *, is_exact: bool) -> int:
    """Of the largest stack of one shape five copies (momentum before and after, the look ahead, an
    iterate and the next) and two squares; the last of one matrix alone where each has its turn, and
    the results both apart and stacked. Where the CPU's kernel has it, the look ahead once more if
    it is turned, and the results. On CUDA all stacks at once, each the look ahead, an iterate, the
    next and the squares, in bfloat16."""
    if device == "cuda":
        sides = [sorted(shape) for shape in shapes]
        return BFLOAT16_BYTES * sum(3 * short * long + 2 * short**2 for short, long in sides)
    stacks = [0]
    for shape in set(shapes):
        (rows, columns), short = shape, min(shape)
        has_kernel = device == "cpu" and is_small_to_orthogonalize(rows, columns)
        copies = 4 if has_kernel and rows <= columns else 5
        squares = 0 if is_exact or has_kernel else 2 * short**2
        stacks.append(shapes.count(shape) * (copies * rows * columns + squares))
    return FLOAT32_BYTES * max(stacks)
