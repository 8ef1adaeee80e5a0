"""`groundup tune`: fine-tune a trained model on conversations; the result is a run."""

import contextlib
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.cli.shared import find_run
from groundup.cli.train import MODEL_SETTINGS, TrainingFlags, train_run
from groundup.errors import GroundupError
from groundup.generation.request import GenerationSettings
from groundup.runs.config import RunConfig
from groundup.runtime import is_first_rank

_NUM_QUESTIONS = 3
_MAX_TOKENS = 200


class Arguments(TrainingFlags):
    """Fine-tune a trained model on conversations (SFT), so that it answers, or on pairs of answers
    (DPO), so that it prefers the chosen ones.

    The loss is on the answers only. The new run starts from RUN's weights and has its tokenizer
    plus a chat template; every command takes it like any other run. All settings of groundup train
    are flags. Defaults: --name RUN-chat; --epochs chosen from the number of conversations, fewer if
    the held-out loss stops falling; --batch-size 8, fewer for few conversations;
    --optimizer.learning-rate 6e-3 up to d_model 128, lower for wider models and DPO, higher for
    LoRA; --model.context-length of RUN (longer conversations are cut, longer pairs left out);
    --tuning.template the tokenizer's, else ChatML.
    """

    of_run: ClassVar = MODEL_SETTINGS

    run: Positional[str]
    """The run to start from: its folder, or its name in runs/."""

    chats: Positional[tuple[str, ...]]
    """Conversations in JSON lines, JSON or CSV, also compressed: messages as OpenAI has them,
    ShareGPT's conversations, Alpaca's instruction and output, or pairs such as question and
    answer. For DPO prompt or messages, chosen and rejected."""

    lora_rank: int | None = Field(default=None, ge=1, le=2**16)
    """Train LoRA adapters of this rank instead of all weights; commands that open the run see
merged weights."""


def run(arguments: Arguments) -> int:
    config = _settings(arguments, find_run(arguments.run))
    status = train_run(config, "tuning", arguments)
    if status == 0 and is_first_rank():
        _try_out(config)
        print(f"talk to it: groundup chat {config.run_folder}")
        print(f"in a browser: groundup serve {config.run_folder}")
    return status


def _try_out(config: RunConfig) -> None:
    """Answer held-out questions, and warn if answers do not end."""
    from groundup.generation import LanguageModel
    from groundup.generation.special_ids import chat_prompt
    from groundup.training.data import held_out_questions

    model = LanguageModel.load(config.run_folder)
    questions = held_out_questions(config, model.tokenizer, _NUM_QUESTIONS)
    settings = GenerationSettings(temperature=0, max_tokens=_MAX_TOKENS)
    requests, num_endless = [], 0
    # A question may fill the whole context.
    with contextlib.suppress(GroundupError):
        for turns, _ in questions:
            requests.append(model.request(chat_prompt(model.tokenizer, turns), settings))
    texts = [""] * len(requests)
    for number, text, reason in model.stream_requests(requests):
        texts[number] += text
        num_endless += reason == "length"
    if texts:
        print("\nheld-out questions, answered at temperature 0")
    for (turns, expected), text in zip(questions, texts, strict=False):
        print(
            f"  {turns[-1]['content'] if turns else ''}\n    {text}\n    (in the file: {expected})"
        )
    if num_endless:
        print(
            f"warning: {num_endless} of {len(texts)} answers did not end within {_MAX_TOKENS} "
            f"tokens: give more dialogues, more --epochs, or a larger model"
        )


def _settings(arguments: Arguments, source: Path) -> RunConfig:
    from groundup.config import flatten, load_settings, load_yaml
    from groundup.runs.folder import RunFolder
    from groundup.training.recipe import tuning_config

    given: dict[str, Any] = {"name": f"{source.name}-chat", "runs_folder": source.parent}
    given |= {"tuning.chats": arguments.chats} | arguments.settings
    if arguments.lora_rank is not None:
        given["tuning.lora_rank"] = arguments.lora_rank
    run = RunFolder(given["runs_folder"] / given["name"])
    if arguments.resume:
        return load_settings(RunConfig, run.config_file if run.has_run() else None, given)
    in_file = dict(flatten(load_yaml(arguments.config))) if arguments.config else {}
    return tuning_config(RunFolder(source), {**in_file, **given})
