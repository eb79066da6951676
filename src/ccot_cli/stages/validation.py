"""How well a trained method does on the validation problems."""

from collections.abc import Sequence as Rows
from pathlib import Path

from ccot_cli.config import Settings
from ccot_cli.data.answers import is_correct
from ccot_cli.data.problems import Problem
from ccot_cli.models.adapters import Adapters
from ccot_cli.models.baselines.gold import GoldReasoner
from ccot_cli.models.loading import load_reasoner
from ccot_cli.models.reasoner import Reasoner, reply_in_parts
from ccot_cli.models.theta import Theta
from ccot_cli.progress import Progress


def validate(
    theta: Theta, adapters: Adapters, folder: Path, problems: Rows[Problem], settings: Settings, progress: Progress
) -> tuple[float, float]:
    """Accuracy of a trained folder, and its mean number of tokens before the answer, decoding freely."""
    reasoner = load_reasoner(theta, adapters, folder, decoding=settings.decoding)
    return accuracy_of(reasoner, problems, settings.eval.batch_size, progress)


def accuracy_of(
    reasoner: Reasoner, problems: Rows[Problem], batch_size: int, progress: Progress
) -> tuple[float, float]:
    """Accuracy of a method, and its mean number of tokens before the answer."""
    if isinstance(reasoner, GoldReasoner):
        reasoner.show(problems)
    num_correct = num_tokens = 0
    with progress.task("validation", total=len(problems), unit="problems") as advance:
        for start in range(0, len(problems), batch_size):
            batch = problems[start : start + batch_size]
            replies, _ = reply_in_parts(reasoner, [problem.question for problem in batch])
            for problem, reply in zip(batch, replies, strict=True):
                num_correct += is_correct(reply.answer, problem.answer)
                num_tokens += reply.num_contemplation
                advance()
    return num_correct / len(problems), num_tokens / len(problems)
