"""`groundup plan`: what a model and its training cost."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from groundup.cli.arguments import FlagsOf
from groundup.cli.terminal import print_records, print_table, print_values
from groundup.config import MAX_STEPS, Settings, flatten, load_settings
from groundup.errors import ConfigError
from groundup.model.config import ModelConfig, preset
from groundup.optim.config import OptimizerConfig, OptimizerName
from groundup.planner import (
    Accelerator,
    Plan,
    count_parameters,
    describe_cpu,
    get_accelerator,
    make_plan,
)
from groundup.planner.distributed import plan_distributed
from groundup.planner.duration import ASSUMED_MFU, EXPECTED_MFU
from groundup.planner.memory import memory_options
from groundup.planner.parameters import optimal_tokens
from groundup.runs.config import RunConfig
from groundup.runtime import memory_bytes, num_cores

if TYPE_CHECKING:
    from groundup.training.probe import Probe

Count = Annotated[int, Field(ge=1, le=10**18)]

_SECTIONS = {
    "memory": "memory of groundup train",
    "textbook_memory": "memory by the textbook: every intermediate kept",
    "duration": "the run on one device",
    "expected_loss": "validation loss to expect",
    "compute_optimal": "compute-optimal",
    "probe": "measured on this machine",
    "distributed": "the run on many GPUs",
}
_BYTES = {"weights", "gradients", "optimizer_state", "weight_copies", "gathered", "activations"}


class Arguments(Settings):
    """Show what a model and its training cost: parameters, FLOPs, memory, time, price.

    The model comes from --preset or --config; flags override it.
    """

    preset: str | None = None
    """Named model: tinystories, quickstart, or gpt2-small, -medium, -large and -xl."""

    config: Path | None = None
    """Settings file of a run; its model, batch, steps, optimizer and precision are planned."""

    batch_size: Count = 1_024
    """Sequences per optimizer step."""

    micro_batch_size: Count | None = None
    """Sequences per forward pass. Default: as many as fit."""

    num_steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Number of optimizer steps. Default: enough for 20 tokens per parameter."""

    tokens: Count | None = None
    """Training length in tokens."""

    minutes: float | None = Field(default=None, gt=0, le=1e9)
    """Training length in minutes."""

    optimizer: OptimizerName = "adamw"
    """Optimizer, whose state counts toward memory."""

    device: str = "A100 80GB"
    """Device to plan for: A100, A100 80GB, H100, H200, B200, RTX 4090, M4 Max, …; or cpu."""

    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    """Precision of matmuls; tf32 is float32 on tensor cores, auto is bfloat16 where supported."""

    mfu: float = Field(default=ASSUMED_MFU, ge=1e-6, le=1)
    """Assumed MFU: the fraction of the device's peak FLOP/s that training reaches."""

    gpus: Count | None = None
    """Also plan for this many devices: memory and communication of each, and scaling efficiency."""

    gpus_per_machine: Count = 8
    """Devices per machine."""

    probe: bool = False
    """Plan for this machine from three measured steps."""

    json_: bool = False
    """Print one JSON object instead of tables."""

    model: Annotated[dict[str, Any], FlagsOf(ModelConfig, "model.")] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_flags(self) -> "Arguments":
        given = self.model_fields_set
        exclusive = (
            ("num_steps", "tokens", "minutes"),
            ("preset", "config"),
            ("probe", "device"),
            ("probe", "mfu"),
            ("minutes", "gpus"),
        )
        for names in exclusive:
            found = [f"--{name.replace('_', '-')}" for name in names if name in given]
            if len(found) > 1:
                raise ValueError(f"{' and '.join(found)} exclude each other: give one")
        return self


def run(arguments: Arguments) -> None:
    base, config = preset(arguments.preset) if arguments.preset else ModelConfig(), None
    if arguments.config is not None:
        from groundup.training.resolve import with_vocabulary

        config = with_vocabulary(load_settings(RunConfig, arguments.config))
        arguments, base = _with_run(arguments, config), config.model
    model = load_settings(ModelConfig, overrides={**base.model_dump(), **arguments.model})
    if arguments.batch_size % (arguments.micro_batch_size or 1):
        raise ConfigError("--micro-batch-size must be a divisor of --batch-size")
    probe = _probe(arguments, model) if arguments.probe else None
    plan = _plan(arguments, model, config, probe)
    results = plan.to_json()
    if config is not None:
        results["expected_loss"] = _expected_loss(config, model, plan)
    if probe is not None:
        results["probe"] = probe.to_json()
    if arguments.gpus is not None:
        results["distributed"] = plan_distributed(
            plan,
            num_gpus=arguments.gpus,
            gpus_per_machine=arguments.gpus_per_machine,
            micro_batch=arguments.micro_batch_size,
        )
    if arguments.json_:
        print(json.dumps(results, ensure_ascii=False, indent=2))
        return
    _print_plan(results)
    print("change it with --device, --precision, --mfu, --batch-size, --num-steps or --tokens")


def _with_run(arguments: Arguments, run: RunConfig) -> Arguments:
    """The arguments, with a run's settings where no flag is given."""
    given = arguments.model_fields_set
    device = arguments.device if "device" in given or run.device != "cpu" else "cpu"
    is_tf32 = run.precision == "float32" and run.tf32
    found = {
        "batch_size": run.batch_size,
        "micro_batch_size": run.micro_batch,
        "optimizer": run.optimizer.name,
        "device": device,
        "mfu": EXPECTED_MFU["cpu" if device.lower() == "cpu" else "cuda"],
        "precision": "tf32" if is_tf32 else run.evaluation_precision,
    }
    if not given & {"num_steps", "tokens", "minutes"}:
        found |= {"num_steps": run.num_steps, "minutes": run.minutes}
    update = {name: value for name, value in found.items() if name not in given}
    return arguments.model_copy(update=update)


def _plan(
    arguments: Arguments, model: ModelConfig, run: RunConfig | None, probe: "Probe | None"
) -> Plan:
    num_steps = arguments.num_steps
    if num_steps is None:
        tokens = arguments.tokens or optimal_tokens(sum(count_parameters(model).values()))
        num_steps = -(-tokens // (arguments.batch_size * model.context_length))
    plan = make_plan(
        model,
        _device(arguments) if probe is None else probe.device,
        batch_size=arguments.batch_size,
        num_steps=num_steps,
        precision=arguments.precision if probe is None else probe.precision,
        mfu=arguments.mfu if probe is None else probe.mfu,
        optimizer=arguments.optimizer,
        micro_batch=arguments.micro_batch_size,
        measured=None if probe is None else probe.step,
        **({} if run is None else memory_options(dict(flatten(run.model_dump())))),
    )
    return plan if arguments.minutes is None else plan.within(60 * arguments.minutes)


def _expected_loss(config: RunConfig, model: ModelConfig, plan: Plan) -> dict[str, float]:
    """The loss on the file's shards and its 90% interval, if they can be predicted."""
    from groundup.training.expectation import find_outlook

    planned = {"model": model, "batch_size": plan.duration.batch_size}
    outlook = find_outlook(config.model_copy(update=planned), math.inf, plan.duration.num_steps)
    return {} if outlook is None else asdict(outlook.expect(outlook.num_tokens))


def _probe(arguments: Arguments, model: ModelConfig) -> "Probe":
    from groundup.training.probe import probe_this_machine

    is_tf32 = arguments.precision == "tf32"
    config = RunConfig(
        batch_size=arguments.batch_size,
        micro_batch_size=arguments.micro_batch_size,
        model=model,
        device="cpu" if arguments.device == "cpu" else "auto",
        optimizer=OptimizerConfig(name=arguments.optimizer),
        precision="float32" if is_tf32 else arguments.precision,
        tf32=is_tf32,
    )
    return probe_this_machine(config)


def _device(arguments: Arguments) -> Accelerator:
    """The named accelerator, or this CPU."""
    if arguments.device.lower() == "cpu":
        return describe_cpu(num_cores(), memory_bytes())
    return get_accelerator(arguments.device)


def _print_plan(results: Mapping[str, Any]) -> None:
    """Every part of a plan's JSON as a table, with units."""
    parts, flops = results["parameters"], results["forward_flops"]
    print_values("parameters", parts)
    # All digits, to check them by hand.
    exact = [(name.replace("_", " "), f"{n:,}") for name, n in flatten(flops)]
    print_table("FLOPs of a forward pass", (), exact)
    for name in ("by_size", "by_context"):
        shares = results["shares"][name].items()
        title = f"fractions {name.replace('_', ' ')}"
        print_records(title, [{"model": model} | parts for model, parts in shares])
    for name, title in _SECTIONS.items():
        section = dict(results.get(name, {}))
        strategies = section.pop("strategies", {})
        derivation = section.pop("derivation", [])
        if section:
            print_values(title, _with_units(section))
        for strategy, values in strategies.items():
            print_values(f"each GPU with {strategy}", _with_units(values))
        for line in derivation:
            print(f"  {line}")


def _with_units(section: Mapping[str, Any]) -> dict[str, Any]:
    """The values under names that include their unit."""
    found = {}
    for name, value in flatten(section):
        is_bytes = name.partition(".")[0].removesuffix("_per_sequence") in _BYTES
        found[f"{name}_bytes" if is_bytes else name] = value
    return found
