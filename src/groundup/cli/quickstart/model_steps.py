"""The second half of the quickstart: a model is trained, evaluated, and generates stories."""

import math
import shlex
import shutil
import time
from typing import TYPE_CHECKING

from groundup.cli.quickstart.folder import QuickstartFolder
from groundup.cli.quickstart.page import Page, quote
from groundup.config import save_yaml
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import count_of, format_duration

if TYPE_CHECKING:
    pass

PROMPTS = ("Once upon a time,", "One rainy morning,", "")
TEMPERATURE, TOP_P, FIRST_SEED = 0.7, 0.95, 1
# Where `groundup serve` listens unless it is told otherwise.
ADDRESS = "http://127.0.0.1:8000"


def train(config: RunConfig, folder: QuickstartFolder, page: Page, minutes: float) -> int:
    """Train, resume, or find that it is done; the exit status if a signal stopped it."""
    from groundup.checkpoint import CheckpointFolder
    from groundup.cli.train import exit_status, sample_writer
    from groundup.training import train
    from groundup.training.budget import TimeBudget

    run = RunFolder(config.run_folder)
    wanted = {"settings": config.model_dump(mode="json"), "minutes": minutes}
    if not folder.can_keep("run", wanted, folder.config):
        # A run of other settings or other data makes room for the one that is wanted now.
        if config.run_folder.exists():
            shutil.rmtree(config.run_folder)
        save_yaml(folder.config, config)
        folder.note("run", wanted, folder.config)
    is_begun = run.has_run()
    if is_begun:
        # It knows how many steps fit into its time.
        config = run.read_config()
        command = f"groundup train --config {quote(run.config_file)} --resume"
    else:
        command = (
            f"groundup train --config {quote(folder.config)} --num-steps {config.num_steps} "
            f"--minutes {minutes:g}"
        )
    page.head("5  A model: it guesses the next token, and learns from every miss", command)
    steps = CheckpointFolder(run.checkpoints).steps() if is_begun else []
    if steps and steps[-1] >= config.num_steps:
        page.say(f"{count_of(config.num_steps, 'step')}, trained before")
        return 0
    budget = TimeBudget(60 * minutes, time.monotonic(), max_steps=config.num_steps)
    with page.take_log():
        summary = train(
            config,
            resume=is_begun,
            write_sample=sample_writer(config),
            budget=None if is_begun else budget,
        )
    if summary.stopped_by is not None:
        page.say("run groundup quickstart again to resume from there")
    return exit_status(summary)


def evaluate(config: RunConfig, page: Page) -> None:
    from groundup.cli.evaluate import measure_run
    from groundup.data.shards import read_index

    page.head(
        "6  Evaluation: stories that it has never seen",
        f"groundup evaluate {quote(config.run_folder)} --whole",
    )
    shards, vocab_size = config.data.shards, config.model.vocab_size
    validation = read_index(shards).splits.get("validation")
    if validation is None or validation.num_ids < 2:
        page.say("No validation split: the corpus is too small; try more --megabytes")
        return
    _, evaluation = measure_run(config.run_folder, config, shards_folder=shards, whole=True)
    uniform = math.log(vocab_size)
    page.say(f"loss {evaluation.loss:.3f} nats per token; a uniform guess has {uniform:.3f}")
    page.say(
        f"perplexity {evaluation.perplexity:.2f}: as unsure as among that many equally likely "
        f"tokens, out of {vocab_size:,}"
    )
    if evaluation.bits_per_byte is not None:
        page.say(f"{evaluation.bits_per_byte:.3f} bits per byte of text, which has 8 on disk")


def generate_stories(config: RunConfig, page: Page, max_tokens: int) -> None:
    from groundup.generation import LanguageModel

    page.head(
        "7  Three stories, generated token by token",
        _generate_command(config, PROMPTS[0], max_tokens),
    )
    started = time.perf_counter()
    texts = LanguageModel.load(config.run_folder).generate_many(
        PROMPTS,
        max_tokens=max_tokens,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        seed=FIRST_SEED,
        past_context="slide",
    )
    for number, (prompt, text) in enumerate(zip(PROMPTS, texts, strict=True), start=1):
        page.say(f"{number}.")
        for paragraph in f"{prompt}{text}".split("\n\n"):
            page.say(" ".join(paragraph.split()), style="italic")
    page.say(f"all at once, in {format_duration(time.perf_counter() - started)}")


def show_what_is_next(
    config: RunConfig, folder: QuickstartFolder, page: Page, max_tokens: int
) -> None:
    run, export = quote(config.run_folder), quote(folder.path / "exports" / config.run_folder.name)
    page.head("Look at it in a browser", f"groundup serve {run}")
    page.say(f"then open {ADDRESS}: generate text, see what each token beat, and")
    page.say("how texts become tokens and losses fell; Ctrl-C ends it")
    page.head(
        "What to try next",
        _generate_command(config, "The little fox", max_tokens, "--num-samples 4"),
        f"groundup export {run} --to huggingface {export}",
        f"groundup evaluate {run} --checkpoint best",
        f"groundup verify-resume {run}",
        f"groundup train --config {quote(folder.config)} --name larger "
        f"--model.num-layers 6 --num-steps 2000",
        f"groundup tokenizer inspect 'Your own sentence.' --tokenizer {quote(folder.tokenizer)}",
        "groundup data download tinystories",
        "groundup --help",
    )


def _generate_command(config: RunConfig, prompt: str, max_tokens: int, *flags: str) -> str:
    """What generates as the quickstart does; for its first prompt, to the letter."""
    words = (
        f"groundup generate {quote(config.run_folder)} --prompt {shlex.quote(prompt)}",
        f"--max-tokens {max_tokens} --temperature {TEMPERATURE} --top-p {TOP_P}",
        f"--seed {FIRST_SEED} --past-context slide",
        *flags,
    )
    return " ".join(words)
