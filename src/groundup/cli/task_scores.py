"""The results on multiple-choice tasks, as a table and as JSON."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groundup.training.tasks import Accuracy, TaskScore


def describe_score(score: "TaskScore") -> dict[str, Any]:
    """The results on a task as JSON: accuracies are fractions of 1."""
    found: dict[str, Any] = {"questions": score.num_questions, "cut": score.num_cut}
    found["chance"] = score.chance
    for suffix, accuracy in (
        ("", score.raw),
        ("_per_byte", score.per_byte),
        ("_per_character", score.per_character),
    ):
        found[f"accuracy{suffix}"] = accuracy.value
        found[f"interval{suffix}"] = list(accuracy.interval)
    return found


def print_scores(title: str, scores: "list[TaskScore]") -> None:
    """One table: accuracies with their 95% intervals, and the mean where there are several tasks.

    title: the line above it.
    scores: a row each.
    """
    from groundup.cli.terminal import print_table
    from groundup.runtime import count_of

    headers = ["task", "questions", "chance", "accuracy", "95%", "per byte", "95%"]
    rows = [
        [
            score.name,
            f"{score.num_questions:,}",
            f"{score.chance:.1%}",
            *_show_accuracy(score.raw),
            *_show_accuracy(score.per_byte),
        ]
        for score in scores
    ]
    if len(scores) > 1:
        total = sum(score.num_questions for score in scores)
        means = [
            sum(values) / len(scores)
            for values in zip(
                *((score.chance, score.raw.value, score.per_byte.value) for score in scores),
                strict=True,
            )
        ]
        chance, raw, per_byte = (f"{mean:.1%}" for mean in means)
        rows.append(["mean", f"{total:,}", chance, raw, "", per_byte, ""])
    print_table(title, headers, rows)
    num_cut = sum(score.num_cut for score in scores)
    if num_cut:
        questions = count_of(num_cut, "question is", "questions are")
        print(f"{questions} longer than the model's context: only the end of each was seen")


def _show_accuracy(accuracy: "Accuracy") -> tuple[str, str]:
    low, high = accuracy.interval
    return f"{accuracy.value:.1%}", f"{low:.1%} to {high:.1%}"
