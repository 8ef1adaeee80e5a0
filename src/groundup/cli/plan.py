"""`groundup plan`: what a model and its training cost, before anything is spent."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Fixed, Suppress

from groundup.cli.flags import value_of
from groundup.cli.plan_checks import check_flags, check_values
from groundup.config import flatten, load_settings
from groundup.model.config import PUBLISHED_PARAMETERS, ModelConfig, preset
from groundup.optim.config import OptimizerConfig
from groundup.planner import (
    Accelerator,
    Plan,
    count_parameters,
    describe_cpu,
    find_accelerator,
    get_accelerator,
    make_plan,
    memory_options,
)
from groundup.planner.duration import ASSUMED_MFU, EXPECTED_MFU
from groundup.planner.flops import OptimizerName, optimal_tokens
from groundup.planner.hardware import Price
from groundup.runs.config import RunConfig
from groundup.runtime import memory_bytes, num_cores

if TYPE_CHECKING:
    from groundup.planner.distributed import DistributedPlan
    from groundup.training.probe import Probe


@dataclass(frozen=True)
class Arguments:
    """Show the cost of a model and of its training: parameters, operations, memory, time, price.

    The model comes from --preset or from --config, then from flags.
    """

    preset: str | None = None
    """A model by its name: tinystories, quickstart, or gpt2-small, -medium, -large and -xl."""

    config: Path | None = None
    """A YAML file of a run, whose model, batch, steps, optimizer and precision are planned."""

    batch_size: int = 1_024
    """Sequences in one optimizer step."""

    micro_batch_size: int | None = None
    """Sequences in memory at once; as many as fit if not given."""

    num_steps: int | None = None
    """Optimizer steps to take; if no length is given, 20 tokens for each parameter."""

    tokens: int | None = None
    """Tokens to train on, instead of a number of steps."""

    minutes: float | None = None
    """Minutes to train for, instead of a number of steps."""

    corpus_tokens: int | None = None
    """Tokens in the corpus, to tell epochs; from the shards of --config where they are there."""

    optimizer: OptimizerName = "adamw"
    """adamw, sgd or muon."""

    device: str = "A100 80GB"
    """A device of the table: A100, A100 80GB, H100, H200, B200, RTX 4090, M4 Max, …; or cpu."""

    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    """Of matmuls; tf32 is float32 on tensor cores, auto is bfloat16 on devices that have it."""

    mfu: float = ASSUMED_MFU
    """The fraction of the device's peak that training reaches."""

    peak_tflops: float | None = None
    """The device's peak, if not the table's."""

    memory_gb: float | None = None
    """The device's memory in units of 10^9 bytes, if not the table's."""

    price_per_hour: float | None = None
    """Dollars for an hour of the device, if not the table's."""

    gpus: int | None = None
    """Plan for this many devices as well: what each holds and sends, and their efficiency."""

    gpus_per_machine: int = 8
    """Devices in each machine."""

    across_gb: float | None = None
    """GB/s that each device sends to other machines; what the device usually has, if not given."""

    probe: bool = False
    """Time three real steps on this machine, and plan for it with what they took."""

    devices: bool = False
    """Print the table of devices, with the sources of its rates and prices, and plan nothing."""

    json: bool = False
    """Print one JSON object instead of tables."""

    model: ModelConfig = field(default_factory=ModelConfig)

    reduce_dtype: Suppress[Fixed[Literal["float32", "bfloat16"]]] = "float32"
    memory_options: Suppress[Fixed[Mapping[str, Any]]] = field(default_factory=dict)
    """As the settings file says."""


def defaults(argv: Sequence[str]) -> Arguments:
    """What the flags start from: the preset's model, or what the settings file says."""
    check_flags(argv)
    name, file = value_of("--preset", argv), value_of("--config", argv)
    if name is not None:
        return Arguments(model=preset(name))
    if file is None:
        return Arguments()
    from groundup.training.resolve import with_vocabulary

    run = with_vocabulary(load_settings(RunConfig, file))
    device = "cpu" if run.device == "cpu" else Arguments.device
    on_cpu = (value_of("--device", argv) or device).lower() == "cpu"
    return Arguments(
        model=run.model,
        batch_size=run.batch_size,
        micro_batch_size=run.micro_batch,
        num_steps=run.num_steps,
        corpus_tokens=_tokens_in(run.data.folders),
        optimizer=run.optimizer.name,
        reduce_dtype=run.distributed.reduce_dtype,
        memory_options=memory_options(dict(flatten(run.model_dump()))),
        device=device,
        mfu=EXPECTED_MFU["cpu" if on_cpu else "cuda"],
        precision="tf32" if run.precision == "float32" and run.tf32 else run.evaluation_precision,
    )


def run(arguments: Arguments) -> None:
    """Plan, and print it."""
    check_values(arguments)
    if arguments.devices:
        from groundup.cli.plan_page import show_devices

        show_devices(is_json=arguments.json)
        return
    probe = _probe(arguments) if arguments.probe else None
    plan = _plan(arguments, probe)
    distributed = _distributed(arguments, plan)
    if arguments.json:
        results = plan.to_json()
        if probe is not None:
            results["probe"] = probe.to_json()
        if distributed is not None:
            results["distributed"] = distributed.to_json()
        print(json.dumps(results, ensure_ascii=False, indent=2))
        return
    from groundup.cli.plan_page import print_plan, print_probe

    print_plan(plan, _assumptions(arguments, plan))
    if probe is not None:
        print_probe(plan, probe)
    if distributed is not None:
        from groundup.cli.plan_page import print_distributed

        print_distributed(distributed)


def _plan(arguments: Arguments, probe: "Probe | None") -> Plan:
    price = None
    if arguments.price_per_hour is not None:
        price = Price(arguments.price_per_hour, "given by --price-per-hour", "today")
    tokens, num_steps = arguments.tokens, arguments.num_steps
    if tokens is None and num_steps is None:
        tokens = optimal_tokens(sum(count_parameters(arguments.model).values()))
    if tokens is not None:
        num_steps = -(-tokens // (arguments.batch_size * arguments.model.context_length))
    assert num_steps is not None
    plan = make_plan(
        arguments.model,
        _device(arguments) if probe is None else probe.device,
        batch_size=arguments.batch_size,
        num_steps=num_steps,
        precision=arguments.precision if probe is None else probe.precision,
        mfu=arguments.mfu if probe is None else probe.mfu,
        optimizer=arguments.optimizer,
        micro_batch=arguments.micro_batch_size,
        price=price,
        tokens_in_corpus=arguments.corpus_tokens,
        measured=None if probe is None else probe.step,
        **arguments.memory_options,
    )
    return plan if arguments.minutes is None else plan.within(60 * arguments.minutes)


def _distributed(arguments: Arguments, plan: Plan) -> "DistributedPlan | None":
    """The same run on --gpus."""
    if arguments.gpus is None:
        return None
    from groundup.planner.distributed import plan_distributed

    return plan_distributed(
        plan,
        num_gpus=arguments.gpus,
        gpus_per_machine=arguments.gpus_per_machine,
        micro_batch=arguments.micro_batch_size,
        reduce_bytes=4 if arguments.reduce_dtype == "float32" else 2,
        across_bytes_per_second=None if arguments.across_gb is None else 1e9 * arguments.across_gb,
    )


def _assumptions(arguments: Arguments, plan: Plan) -> list[str]:
    """What the plan takes for granted, with the flags that change it."""
    duration, lines = plan.duration, []
    name = arguments.preset or ""
    if name in PUBLISHED_PARAMETERS:
        lines.append(
            f"{name} is groundup's layers (RMSNorm, SwiGLU, rotation, untied) at GPT-2's sizes; "
            f"GPT-2 itself has {PUBLISHED_PARAMETERS[name]} million parameters"
        )
    if arguments.config is None and not arguments.probe:
        parts = [f"one {duration.device} (--device)", f"{duration.precision} (--precision)"]
        parts += [
            f"{duration.mfu:.0%} MFU (--mfu)",
            f"batches of {duration.batch_size} (--batch-size)",
        ]
        if arguments.num_steps is None and arguments.tokens is None and arguments.minutes is None:
            parts.append("20 tokens a parameter (--tokens, --num-steps)")
        lines.append(f"planned for {', '.join(parts)}")
    return lines


def _probe(arguments: Arguments) -> "Probe":
    from groundup.training.probe import probe_this_machine

    config = RunConfig(
        batch_size=arguments.batch_size,
        micro_batch_size=arguments.micro_batch_size,
        model=arguments.model,
        device="cpu" if arguments.device == "cpu" else "auto",
        optimizer=OptimizerConfig(name=arguments.optimizer),
        precision="float32" if arguments.precision == "tf32" else arguments.precision,
        tf32=arguments.precision == "tf32",
    )
    return probe_this_machine(config, memory_bytes())


def _device(arguments: Arguments) -> Accelerator:
    rate = None if arguments.peak_tflops is None else arguments.peak_tflops * 1e12
    given_bytes = None if arguments.memory_gb is None else round(arguments.memory_gb * 1e9)
    if arguments.device.lower() == "cpu":
        device = describe_cpu(num_cores(), memory_bytes())
    elif rate is not None and given_bytes is not None and not find_accelerator(arguments.device):
        device = Accelerator(arguments.device, rate, rate, rate, given_bytes)
    else:
        device = get_accelerator(arguments.device)
    if rate is not None:
        device = device._replace(
            bfloat16_flops_per_second=device.bfloat16_flops_per_second and rate,
            tf32_flops_per_second=device.tf32_flops_per_second and rate,
            float32_flops_per_second=rate,
            source="given by --peak-tflops",
        )
    return device if given_bytes is None else device._replace(memory_bytes=given_bytes)


def _tokens_in(folders: Mapping[Path, float]) -> int | None:
    """The size of a corpus that has been prepared already: one folder of shards, or a mix."""
    from groundup.data.shards import INDEX_NAME, read_index

    mixed = [folder for folder, weight in folders.items() if weight]
    if not all((folder / INDEX_NAME).is_file() for folder in mixed):
        return None
    splits = [read_index(folder).splits.get("train") for folder in mixed]
    return sum(split.num_ids for split in splits if split) or None
