"""Checkpoints of weights, training states and random states; atomic, and safe to load."""

from groundup.checkpoint.folder import CheckpointFolder
from groundup.checkpoint.random_state import capture_random_state, restore_random_state
from groundup.checkpoint.record import Checkpoint
from groundup.checkpoint.restore import check_shapes, restore_model, restore_optimizer
from groundup.checkpoint.single_file import load_checkpoint, save_checkpoint
from groundup.checkpoint.weights import load_weights, save_weights

__all__ = [
    "Checkpoint",
    "CheckpointFolder",
    "capture_random_state",
    "check_shapes",
    "load_checkpoint",
    "load_weights",
    "restore_model",
    "restore_optimizer",
    "restore_random_state",
    "save_checkpoint",
    "save_weights",
]
