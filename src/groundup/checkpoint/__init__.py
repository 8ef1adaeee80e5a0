"""Checkpoints of weights, training states and random states; atomic, and safe to load."""

from groundup.checkpoint.folder import CheckpointFolder as CheckpointFolder
from groundup.checkpoint.random_state import capture_random_state as capture_random_state
from groundup.checkpoint.random_state import restore_random_state as restore_random_state
from groundup.checkpoint.record import Checkpoint as Checkpoint
from groundup.checkpoint.restore import check_shapes as check_shapes
from groundup.checkpoint.restore import restore_model as restore_model
from groundup.checkpoint.restore import restore_optimizer as restore_optimizer
from groundup.checkpoint.single_file import load_checkpoint as load_checkpoint
from groundup.checkpoint.single_file import save_checkpoint as save_checkpoint
from groundup.checkpoint.weights import load_weights as load_weights
from groundup.checkpoint.weights import save_weights as save_weights
