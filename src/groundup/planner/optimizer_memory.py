"""What an optimizer holds: its state from step to step, and what an update needs besides."""

from groundup.model.config import ModelConfig
from groundup.planner.activations import DeviceKind
from groundup.planner.flops import OptimizerName
from groundup.planner.parameters import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    block_matrices,
    count_parameters,
)


def training_state_bytes(config: ModelConfig, optimizer: OptimizerName = "adamw") -> int:
    """Memory of the model `config`: weights, gradients and optimizer state in float32, whatever the
    batch.

    AdamW keeps two values a parameter, SGD none; Muon keeps one for the matrices of the blocks and
    leaves the rest to AdamW.
    """
    parts = count_parameters(config)
    num_parameters = sum(parts.values())
    num_block_weights = parts["attention"] + parts["feed_forward"]
    num_state_values = {
        "adamw": 2 * num_parameters,
        "sgd": 0,
        "muon": 2 * num_parameters - num_block_weights,
    }
    return FLOAT32_BYTES * (2 * num_parameters + num_state_values[optimizer])


def update_temporaries(
    config: ModelConfig, device: DeviceKind, optimizer: OptimizerName, *, is_exact: bool = False
) -> int:
    """What an update holds besides its state, since a step can be undone on the device.

    AdamW has one kernel that works in place, but none on mps: there it holds, of the larger of its
    two groups, scaled gradients, weights and averages as they were, roots and moves. SGD holds
    scaled gradients, the weights as they were and the move of the largest matrix.

    config, device, optimizer: of the run.
    is_exact: whether Muon orthogonalizes one matrix after the other, as the exact reduction has it.
    """
    if optimizer == "muon":
        return _muon_temporaries(config, device, is_exact=is_exact)
    parts = count_parameters(config)
    staying = parts["token_embedding"] + parts["norms"]
    if optimizer == "adamw":
        largest = max(staying, sum(parts.values()) - staying)
        return 6 * FLOAT32_BYTES * largest if device == "mps" else 0
    matrices = [config.vocab_size * config.d_model]
    matrices += [rows * columns for rows, columns in block_matrices(config) if config.num_layers]
    return FLOAT32_BYTES * (2 * sum(parts.values()) + max(matrices))


def _muon_temporaries(config: ModelConfig, device: DeviceKind, *, is_exact: bool) -> int:
    """Of the largest stack of one shape five copies (momentum before and after, the look ahead, an
    iterate and the next) and two squares; the last of one matrix alone where each has its turn, and
    the results both apart and stacked. On CUDA all stacks at once, each the look ahead, an iterate,
    the next and the squares, in bfloat16."""
    shapes = block_matrices(config)
    if device == "cuda":
        sides = [sorted(shape) for shape in shapes]
        values = sum(3 * short * long + 2 * short**2 for short, long in sides)
        return BFLOAT16_BYTES * config.num_layers * values
    stacks = []
    for shape in set(shapes):
        short, long = sorted(shape)
        squares = 0 if is_exact else 2 * short**2
        stacks.append(shapes.count(shape) * (5 * short * long + squares))
    return FLOAT32_BYTES * config.num_layers * max(stacks)
