"""The run folder: its layout and settings, and the one reader of each file in it. No torch."""

from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder

__all__ = ["RunConfig", "RunFolder"]
