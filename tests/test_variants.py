"""One file adds a variant as a setting: the guide's examples, in a copy of the package."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
GUIDE = (REPOSITORY / "docs" / "guides" / "extending.md").read_text("utf-8")
HEAD = """import torch
from torch import Tensor
from groundup.nn.attention import MultiHeadSelfAttention
from groundup.nn.feed_forward import FeedForward
from groundup.nn.kv_cache import LayerCache
"""
FILES = {
    "optim/lion.py": ("Lion", 'optimizer_name = "lion"'),
    "nn/maxout.py": ("Maxout", 'feed_forward_name = "maxout"'),
    "nn/window.py": ("SlidingWindow", 'attention_name = "window"'),
}
PROGRAM = """
import contextlib, io, json, sys
import groundup
from groundup.cli.main import main
assert groundup.__file__.startswith(sys.argv[1])

def run(line, status=0):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        assert main(line.split()) == status, out.getvalue()
    return out.getvalue()

for words in ("plan --help-all", "train --help-all"):
    assert "adamw|lion|muon|sgd" in run(words)
options = run("train --help-all")
assert "full|window" in options and "|maxout" in options and "root|cosine" in options
assert "adamw" in run("train --optimizer.name lyon", 2)
assert "torch" not in sys.modules

shape = "--model.d-model 32 --model.num-heads 2 --model.context-length 16 --model.num-layers 2"
parts = " --model.attention window --model.feed-forward maxout"
found = json.loads(run(f"plan --json --model.vocab-size 300 --optimizer lion {shape}{parts}"))
known = json.loads(run(f"plan --json --model.vocab-size 300 --optimizer adamw {shape}"))
assert found["parameters"] == known["parameters"], "a window has no weights, Maxout those of SwiGLU"
assert found["memory"]["optimizer_state"] == known["memory"]["optimizer_state"]

run("data sample --megabytes 0.05 --out stories.txt")
run("tokenizer train stories.txt --vocab-size 300 --special-token <|endoftext|>")
run("data prepare stories.txt")
begin = f"train --name parts --device cpu --batch-size 4 --optimizer.name lion {shape}{parts}"
assert "ema_fraction" in run(f"{begin} --optimizer.ema-fraction 0.1", 2)
run(f"{begin} --schedule.name root --num-steps 4")
run("train --name parts --resume --num-steps 6 --allow-changes")
run("generate parts --prompt Once --max-tokens 24")
assert "attention is window" in run("export parts --to gguf out.gguf", 2)
for kind in ("huggingface out", "gguf out.gguf"):
    assert "feed_forward is maxout" in run(f"export parts --to {kind}", 2)

import torch
from groundup import LanguageModel, ConfigError
from groundup.generation.torch_decoder import TorchDecoder
from groundup.generation.engine import choose_decoder
from groundup.planner import count_parameters
model = LanguageModel.load("runs/parts").model
num_parameters = sum(one.numel() for one in model.parameters())
assert sum(count_parameters(model.config).values()) == num_parameters
assert choose_decoder(model, 1).packed is None
names = {type(one).__name__ for one in model.modules()}
assert {"Maxout", "SlidingWindow"} <= names
try:
    model.attention_weights(torch.zeros(1, 4, dtype=torch.long))
except ConfigError as error:
    assert "SlidingWindow" in str(error)
else:
    sys.exit("a picture of attention without its window")
"""


def class_of(name: str) -> str:
    """Return the source of a class in the guide."""
    for block in re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL):
        for node in ast.parse(block).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return ast.get_source_segment(block, node) or ""
    pytest.fail(f"the guide has no class {name}")


@pytest.mark.slow
def test_one_file_adds_a_setting(tmp_path: Path) -> None:
    package = tmp_path / "source" / "groundup"
    shutil.copytree(REPOSITORY / "src" / "groundup", package)
    for path, (name, attribute) in FILES.items():
        (package / path).write_text(f"{HEAD}\n{class_of(name)}\n\n    {attribute}\n", "utf-8")
        assert f"| `src/groundup/{path}` | `{attribute}` |" in GUIDE
    schedules = package / "optim/schedules.py"
    before, line, after = schedules.read_text("utf-8").partition('    "cosine": lambda')
    root = '    "root": lambda progress: 1 - math.sqrt(progress),\n'
    schedules.write_text(before + root + line + after, "utf-8")
    command = [sys.executable, "-c", PROGRAM, str(package.parent)]
    environment = {"PYTHONPATH": str(package.parent), "PATH": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
