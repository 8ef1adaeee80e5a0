"""Export to and import from other tools; only this package knows their names."""

from groundup.interop.gguf import export_gguf
from groundup.interop.huggingface import export_huggingface, import_huggingface
from groundup.interop.ollama import export_ollama

__all__ = ["export_gguf", "export_huggingface", "export_ollama", "import_huggingface"]
