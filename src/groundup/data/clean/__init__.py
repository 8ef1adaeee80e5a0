"""Text worth learning from: duplicates, near duplicates and poor documents are left out."""

from groundup.data.clean.cleaning import CleanSummary, DuplicateCounter, clean
from groundup.data.clean.settings import CleanSettings

__all__ = ["CleanSettings", "CleanSummary", "DuplicateCounter", "clean"]
