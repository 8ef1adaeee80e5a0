"""Multiple-choice tasks: questions out of files of known formats, and built-in ones from stories.

What a model makes of them is measured by `training.tasks`.
"""

from groundup.data.tasks.files import BUILT_IN, read_tasks
from groundup.data.tasks.question import Question, Task

__all__ = ["BUILT_IN", "Question", "Task", "read_tasks"]
