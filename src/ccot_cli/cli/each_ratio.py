"""A stage that runs once for each ratio, and what it prints."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from ccot_cli.cli.console import print_json
from ccot_cli.progress import Progress


class StageResult(Protocol):
    """The result of a stage, a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def was_ready(self) -> bool:
        """Whether an earlier run had made the artifact."""


Result = TypeVar("Result", bound=StageResult)


def run_each(
    ratios: Sequence[Decimal],
    run: Callable[[Decimal], Result],
    show: Callable[[Decimal, Result], None],
    *,
    format: Literal["text", "json"],
    progress: Progress,
) -> list[Result]:
    """Run a stage for each ratio; print each result when it is there, or all of them as JSON.

    Args:
        run: The stage.
        show: Prints a result as text.
    """
    results = []
    for ratio in ratios:
        result = run(ratio)
        results.append(result)
        if result.was_ready:
            progress.say("ready already; nothing to do")
        if format == "text":
            show(ratio, result)
    if format == "json":
        print_json([asdict(result) for result in results])
    return results
