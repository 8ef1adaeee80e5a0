"""Type-check the Python examples of the guides, for `make check`.

Each guide's blocks become one module under build/examples, checked strictly like user code, without
the settings of this repository.
"""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# Strict checking reports unused ignores as errors.
TYPOS = """\
from groundup import LanguageModel, ModelConfig, RunConfig, train

RunConfig(num_step=3)  # type: ignore[call-arg]
ModelConfig(d_modle=64)  # type: ignore[call-arg]
train(RunConfig(), optimiser=print)  # type: ignore[call-arg]
LanguageModel.load("run").generate("Once", max_new_tokens=3)  # type: ignore[call-arg]
"""
GUIDES = ("extending", "generation", "tokenizer", "training")


def main() -> int:
    folder = REPOSITORY / "build" / "examples"
    folder.mkdir(parents=True, exist_ok=True)
    for name in GUIDES:
        text = (REPOSITORY / "docs" / "guides" / f"{name}.md").read_text("utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        (folder / f"{name}_example.py").write_text("\n".join(blocks), "utf-8")
    (folder / "typos.py").write_text(TYPOS, "utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--follow-imports=silent",
    ]
    # So that mypy finds the package.
    return subprocess.run([*command, str(folder)], cwd=REPOSITORY / "src").returncode


if __name__ == "__main__":
    sys.exit(main())
