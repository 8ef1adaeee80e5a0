"""Models handed to other tools and taken from them: every name of another project lives here."""

from groundup.interop.gguf import export_gguf
from groundup.interop.huggingface_export import export_huggingface
from groundup.interop.huggingface_import import import_huggingface
from groundup.interop.rotation import permute_rotation_rows, restore_rotation_rows

__all__ = [
    "export_gguf",
    "export_huggingface",
    "import_huggingface",
    "permute_rotation_rows",
    "restore_rotation_rows",
]
