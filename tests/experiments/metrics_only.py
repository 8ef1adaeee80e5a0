"""A trial without a model: metrics follow a formula, so that tests of sweeps are fast.

The last loss is lowest at a learning rate of 0.01 (Muon: 0.3) and a width of 16. With a rate below
1e-6 a trial waits to be stopped. z_loss 13 fails, 14 has a NaN loss, 15 no validation loss, 16 a
lower one. With TOGETHER set, a trial waits until that many have started.
"""

import fcntl
import json
import math
import os
import sys
import time
from pathlib import Path

import yaml


def main() -> int:
    config = yaml.safe_load(Path(sys.argv[1]).read_text("utf-8"))
    folder = Path(config["runs_folder"]) / config["name"]
    folder.mkdir(parents=True, exist_ok=True)
    # Held until the process ends, as by a trainer.
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
    (folder / "session.txt").write_text(str(os.getsid(0)))
    if not wait(lambda: len(list(folder.parent.iterdir())) >= int(os.environ.get("TOGETHER", 1))):
        return 1
    if config["z_loss"] == 13 and not (folder.parent / "mended").exists():
        print("error: 13 brings bad luck", file=sys.stderr)
        return 2
    (folder / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    rate, num_steps = config["optimizer"]["learning_rate"], config["num_steps"]
    best = 0.3 if config["optimizer"]["name"] == "muon" else 0.01
    distance = abs(math.log10(rate / best))
    width = math.log(config["model"]["d_model"] / 16)
    end = 2.0 + 0.5 * distance + 0.1 * width**2 + 0.01 * config["seed"]
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, num_steps + 1):
            if config["z_loss"] == 14:
                loss = None
            elif rate < 1e-6:
                loss = 5.0
            else:
                loss = 5.0 + (end - 5.0) * (step - 1) / max(1, num_steps - 1)
            tokens = step * config["batch_size"] * config["model"]["context_length"]
            record = {"step": step, "tokens": tokens, "wall_seconds": 0.1 * step, "loss": loss}
            is_due = step % (config["evaluation"]["every_steps"] or 4) == 0 or step == num_steps
            if is_due and config["z_loss"] != 15:
                record["validation_loss"] = loss - 1 if loss and config["z_loss"] == 16 else loss
            file.write(json.dumps(record) + "\n")
            file.flush()
            if rate < 1e-6 and step > num_steps / 2:
                wait(lambda: False, seconds=60)
                print("nobody stopped it")
                return 1
    return 0


def wait(condition, seconds=300.0) -> bool:  # type: ignore[no-untyped-def]
    """Wait until the condition holds; five minutes is forever here."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


sys.exit(main())
