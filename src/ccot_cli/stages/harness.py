"""Measure methods with lm-evaluation-harness, which asks the questions of a task and computes its metrics."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from yaml import YAMLError

from ccot_cli.config import Settings
from ccot_cli.data.answers import is_correct
from ccot_cli.data.batches import cut
from ccot_cli.data.problems import ANSWER_LINE, Problem
from ccot_cli.errors import ResourceError, UsageError
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.gold import GoldMethod
from ccot_cli.models.methods.method import Method, Reply, reply_in_parts
from ccot_cli.names import GOLD, OWN_TASK
from ccot_cli.progress import Progress
from ccot_cli.stages.evaluate import problems_to_ask
from ccot_cli.stages.methods import find_methods, needs_theta_alone
from ccot_cli.workspace.workspace import Workspace

TASK_FILE = Path(__file__).with_suffix(".yaml")
ANSWER_START = f"\n{ANSWER_LINE} "


@dataclass(frozen=True)
class HarnessRow:
    """What the harness measured of one method on one task."""

    method: str
    ratio: float
    task: str
    n: int
    metrics: dict[str, float]
    """By metric and filter, as the harness names them: `exact_match,none`."""
    scores: dict[str, list[float]]
    """The same for each problem, in the task's order."""


@dataclass(frozen=True)
class HarnessResult:
    """The whole table."""

    rows: list[HarnessRow]
    model: str
    data: str
    """Where the problems are from; a task other than `ccot_gsm8k` names its own."""


class CcotLM(LM):  # type: ignore[misc]
    """A method as a model of the harness. It answers questions; it gives no probability to given texts."""

    def __init__(self, method: Method, *, batch_size: int, progress: Progress) -> None:
        super().__init__()
        self._method, self._batch_size, self._progress = method, batch_size, progress

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer the contexts, each as a question, shortest first.

        The caps of the settings end the texts; strings to stop at are not looked for.

        Returns:
            In the order of the requests: the chain, if one was written, and the answer after `####` on the last line.
        """
        questions = [str(request.args[0]) for request in requests]
        order = sorted(range(len(questions)), key=lambda number: len(questions[number]))
        texts = [""] * len(questions)
        label = f"{self._method.name} r = {self._method.ratio:f}"
        with self._progress.task(label, total=len(questions), unit="problems") as advance:
            for numbers in cut(order, self._batch_size):
                replies, _ = reply_in_parts(self._method, [questions[number] for number in numbers])
                for number, reply in zip(numbers, replies, strict=True):
                    texts[number] = self._text(reply)
                advance(len(numbers))
        return texts

    def _text(self, reply: Reply) -> str:
        is_chain = isinstance(self._method, ChainMethod)
        chain = reply.text.rpartition(ANSWER_LINE)[0] or reply.text if is_chain else ""
        return f"{chain.rstrip()}{ANSWER_START}{reply.answer}"

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise _needs_probabilities()

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise _needs_probabilities()


def _needs_probabilities() -> UsageError:
    return UsageError(
        "the task asks how probable given texts are, and methods only answer questions",
        fix=f"a task whose output_type is generate_until, such as --harness {OWN_TASK}",
    )


def grade(problem: Mapping[str, str], texts: Sequence[str]) -> dict[str, float]:
    """Grade a text for the task file, by the rule of `ccot eval`.

    Args:
        problem: A line of the task's data; `answer` ends in `#### 42`.
        texts: One text that the model wrote.
    """
    [text] = texts
    return {"exact_match": float(is_correct(_answer(text), _answer(problem["answer"])))}


def _answer(text: str) -> str:
    return text.rpartition(ANSWER_START)[2].strip()


def run(
    workspace: Workspace | None,
    settings: Settings,
    task: str,
    *,
    ratios: Sequence[Decimal] = (),
    names: Sequence[str] = (),
    progress: Progress,
) -> HarnessResult:
    """Measure the given methods and ratios on a task; by default all trained ones and the explicit chain.

    Args:
        workspace: None measures the embedded model.
        task: `ccot_gsm8k`, whose problems are the test problems of the settings; a file that defines a task, named
            `.yaml`; or the name of a task of the harness.

    Raises:
        MissingError: if a method or a ratio was not trained.
        UsageError: if there is no such task, or it asks for the probabilities of texts.
        ResourceError: if the task's data cannot be reached.
    """
    methods = find_methods(workspace, settings, may_have_none=needs_theta_alone(names, ratios))
    is_own = task == OWN_TASK
    # The ceiling reads chains, which other tasks do not show; whoever names it is told so.
    loadable = [each for each in methods.choose(names, ratios) if is_own or each.name != GOLD or GOLD in names]
    problems = problems_to_ask(methods, settings, settings.eval.limit, progress, loadable) if is_own else []
    # The harness's own tasks are thousands of files, which take it long to read.
    has_all = not is_own and not task.endswith(".yaml")
    if has_all:
        progress.say("reading the harness's tasks …")
    manager = TaskManager(include_defaults=has_all)
    rows = []
    with TemporaryDirectory() as folder:
        tasks = _load(manager, _write(Path(folder), problems) if is_own else task)
        for each in loadable:
            method = each.load()
            if isinstance(method, GoldMethod):
                method.show(problems)
            model = CcotLM(method, batch_size=settings.eval.batch_size, progress=progress)
            found = simple_evaluate(
                model=model,
                tasks=tasks,
                task_manager=manager,
                num_fewshot=0,
                limit=settings.eval.limit,
                bootstrap_iters=0,
            )
            rows += [_row(method, name, found["results"][name], found["samples"][name]) for name in found["samples"]]
    data = (methods.data.test_source or methods.data.source) if is_own else task
    return HarnessResult(rows, methods.theta.name, data)


def _write(folder: Path, problems: Sequence[Problem]) -> str:
    """Write the problems, and our task for them; return its file."""
    lines = [
        json.dumps({"question": each.question, "answer": f"{each.chain}{ANSWER_START}{each.answer}"}) + "\n"
        for each in problems
    ]
    data, cache, file = folder / "test.jsonl", folder / "cache", folder / "task.yaml"
    data.write_text("".join(lines), encoding="utf-8")
    source = {"data_files": {"test": str(data)}, "cache_dir": str(cache)}
    # JSON is YAML.
    file.write_text(json.dumps({"include": str(TASK_FILE), "dataset_kwargs": source}), encoding="utf-8")
    return str(file)


def _load(manager: TaskManager, task: str) -> list[Any]:
    """Load the tasks of a name or a file, with their data.

    Raises:
        UsageError: if there is none, or it is damaged.
        ResourceError: if the data cannot be reached.
    """
    try:
        return list(manager.load([task])["tasks"].values())
    except (FileNotFoundError, KeyError, ValueError, YAMLError) as error:
        raise UsageError(
            f"the harness cannot load task {task}: {_one_line(error)}", fix=f"--harness {OWN_TASK}, or mend the file"
        ) from error
    except OSError as error:
        raise ResourceError(
            f"the data of task {task} is out of reach: {_one_line(error)}",
            fix=f"check the network, or --harness {OWN_TASK} --data FILE",
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error.args[0] if error.args else error).split())


def _row(method: Method, task: str, metrics: dict[str, Any], samples: list[dict[str, Any]]) -> HarnessRow:
    """Keep of what the harness found of a task the metrics that are numbers."""
    scores: dict[str, list[float]] = {}
    for sample in sorted(samples, key=lambda sample: sample["doc_id"]):
        for metric in sample["metrics"]:
            if isinstance(sample[metric], int | float):
                scores.setdefault(f"{metric},{sample['filter']}", []).append(float(sample[metric]))
    return HarnessRow(
        method=method.name,
        ratio=float(method.ratio),
        task=task,
        n=len({sample["doc_id"] for sample in samples}),
        metrics={key: float(value) for key, value in metrics.items() if "," in key and isinstance(value, int | float)},
        scores=scores,
    )
