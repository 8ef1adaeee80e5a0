"""Do the Python examples of the guides pass the type checker? `make check` asks.

Each guide's blocks become one module under build/examples, checked like the package.
"""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
GUIDES = ("extending", "generation", "tokenizer", "training")


def main() -> int:
    folder = REPOSITORY / "build" / "examples"
    folder.mkdir(parents=True, exist_ok=True)
    for name in GUIDES:
        text = (REPOSITORY / "docs" / "guides" / f"{name}.md").read_text("utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        (folder / f"{name}_example.py").write_text("\n".join(blocks), "utf-8")
    return subprocess.run([sys.executable, "-m", "mypy", str(folder)], cwd=REPOSITORY).returncode


if __name__ == "__main__":
    sys.exit(main())
