"""The second half of the quickstart: a model is trained, evaluated, and generates stories."""

import math
import shlex
import shutil
import time
from typing import TYPE_CHECKING

from groundup.cli.quickstart.page import Page, quote
from groundup.cli.quickstart.recipe import run_config
from groundup.config import save_yaml
from groundup.runtime import format_duration

if TYPE_CHECKING:
    from groundup.cli.quickstart import Arguments
    from groundup.cli.quickstart.journal import Journal

PROMPTS = ("Once upon a time,", "One rainy morning,", "")
TEMPERATURE, TOP_P, FIRST_SEED = 0.7, 0.95, 1
# Where `groundup serve` listens unless it is told otherwise.
ADDRESS = "http://127.0.0.1:8000"


class ModelSteps:
    """The steps in order; the run folder knows how far the training has come."""

    def __init__(
        self, arguments: "Arguments", page: Page, journal: "Journal", vocab_size: int
    ) -> None:
        self._page = page
        self._journal = journal
        self._minutes = arguments.minutes
        self._max_tokens = arguments.max_tokens
        self._config = run_config(
            arguments.folder,
            vocab_size,
            num_steps=arguments.num_steps,
            sample_tokens=min(48, arguments.max_tokens),
            seed=arguments.seed,
        )
        self._config_file = arguments.folder / "train.yaml"
        self._run = self._config.run_folder
        self._export = arguments.folder / "exports" / self._run.name

    def train(self) -> int:
        """Train, go on, or find that it is done; the exit status if a signal stopped it."""
        from groundup.cli.train import exit_status, sample_writer
        from groundup.runs import RunFolder
        from groundup.training import train
        from groundup.training.time_budget import TimeBudget

        self._resolve_what_was_done()
        folder = RunFolder(self._run)
        is_begun = folder.has_run()
        # A run that has begun knows how many steps fit into its time.
        config = folder.read_config() if is_begun else self._config
        if is_begun:
            command = f"groundup train --config {quote(folder.config_file)} --resume"
        else:
            command = (
                f"groundup train --config {quote(self._config_file)} "
                f"--num-steps {config.num_steps} --minutes {self._minutes:g}"
            )
        self._page.head(
            "5  A model: it guesses the next token, and learns from every miss", command
        )
        if is_begun and self._is_finished(config.num_steps):
            self._page.say(f"{config.num_steps:,} steps, trained before")
            return 0
        budget = TimeBudget(60 * self._minutes, time.monotonic(), max_steps=config.num_steps)
        with self._page.take_log():
            summary = train(
                config,
                resume=is_begun,
                write_sample=sample_writer(config),
                budget=None if is_begun else budget,
            )
        if summary.stopped_by is not None:
            self._page.say("run groundup quickstart again to go on from there")
        return exit_status(summary)

    def evaluate(self) -> None:
        from groundup.cli.evaluate import measure_run
        from groundup.data.shards import read_index

        self._page.head(
            "6  Evaluation: stories that it has never seen",
            f"groundup evaluate {quote(self._run)} --whole",
        )
        validation = read_index(self._config.data.shards).splits.get("validation")
        if validation is None or validation.num_ids < 2:
            self._page.say("No validation split: the corpus is too small; try more --megabytes")
            return
        _, evaluation = measure_run(
            self._run, self._config, shards_folder=self._config.data.shards, whole=True
        )
        even = math.log(self._config.model.vocab_size)
        self._page.say(f"loss {evaluation.loss:.3f} nats per token; a uniform guess has {even:.3f}")
        self._page.say(
            f"perplexity {evaluation.perplexity:.2f}: as unsure as among that many equally likely "
            f"tokens, out of {self._config.model.vocab_size:,}"
        )
        if evaluation.bits_per_byte is not None:
            self._page.say(
                f"{evaluation.bits_per_byte:.3f} bits per byte of text, which has 8 on disk"
            )

    def generate_stories(self) -> None:
        from groundup.generation import LanguageModel

        self._page.head(
            "7  Three stories, generated token by token",
            self._generate_command(PROMPTS[0]),
        )
        started = time.perf_counter()
        texts = LanguageModel.load(self._run).generate_many(
            PROMPTS,
            max_tokens=self._max_tokens,
            temperature=TEMPERATURE,
            top_p=TOP_P,
            seed=FIRST_SEED,
            past_context="slide",
        )
        for number, (prompt, text) in enumerate(zip(PROMPTS, texts, strict=True), start=1):
            self._page.say(f"{number}.")
            for paragraph in f"{prompt}{text}".split("\n\n"):
                self._page.say(" ".join(paragraph.split()), style="italic")
        self._page.say(f"all at once, in {format_duration(time.perf_counter() - started)}")

    def show_what_is_next(self) -> None:
        folder = quote(self._run)
        self._page.head(
            "Look at it in a browser",
            f"groundup serve {folder}",
        )
        self._page.say(f"then open {ADDRESS}: generate text, see what each token beat, and")
        self._page.say("how texts become tokens and losses fell; Ctrl-C ends it")
        self._page.head(
            "What to try next",
            self._generate_command("The little fox", "--num-samples 4"),
            f"groundup export {folder} --to huggingface {quote(self._export)}",
            f"groundup evaluate {folder} --checkpoint best",
            f"groundup verify-resume {folder}",
            f"groundup train --config {quote(self._config_file)} --name larger "
            f"--model.num-layers 6 --num-steps 2000",
            "groundup tokenizer inspect 'Your own sentence.' "
            f"--tokenizer {quote(self._config.data.tokenizer)}",
            "groundup data download tinystories",
            "groundup --help",
        )

    def _generate_command(self, prompt: str, *flags: str) -> str:
        """What generates as the quickstart does; for its first prompt, to the letter."""
        return " ".join(
            (
                f"groundup generate {quote(self._run)} --prompt {shlex.quote(prompt)}",
                f"--max-tokens {self._max_tokens} --temperature {TEMPERATURE} --top-p {TOP_P}",
                f"--seed {FIRST_SEED} --past-context slide",
                *flags,
            )
        )

    def _resolve_what_was_done(self) -> None:
        """A run of other settings or other data makes room for the one that is wanted now."""
        wanted = {"settings": self._config.model_dump(mode="json"), "minutes": self._minutes}
        if self._journal.can_keep("run", wanted, self._config_file):
            return
        if self._run.exists():
            shutil.rmtree(self._run)
        save_yaml(self._config_file, self._config)
        self._journal.note("run", wanted, self._config_file)

    def _is_finished(self, num_steps: int) -> bool:
        from groundup.checkpoint import CheckpointFolder
        from groundup.runs import RunFolder

        steps = CheckpointFolder(RunFolder(self._run).checkpoints).steps()
        return bool(steps) and steps[-1] >= num_steps
