"""Export to other tools and import from them: every name of another project lives here."""

from groundup.interop.gguf import export_gguf
from groundup.interop.huggingface import export_huggingface, import_huggingface
from groundup.interop.ollama import export_ollama

__all__ = ["export_gguf", "export_huggingface", "export_ollama", "import_huggingface"]
