"""Run folders: their layout, settings, and the reader of each file. Does not import torch."""

from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder

__all__ = ["RunConfig", "RunFolder"]
