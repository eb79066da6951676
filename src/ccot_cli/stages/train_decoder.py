"""Train the chain decoder, which writes out the reasoning chain that a method's contemplation tokens hold.

It needs the trained method and problems with chains; the files of the earlier stages may be gone. It learns from the
problems that the method answers right: the tokens of a wrong answer do not hold its chain, so that chain would only
teach to guess.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any

from ccot_cli import ranks
from ccot_cli.config import Settings, stage_config
from ccot_cli.data.problems import LoadedProblems, Problem, load_training
from ccot_cli.models.base.adapters import DECODER, Adapters
from ccot_cli.models.base.memory import by_number
from ccot_cli.models.decoding.explanation import KeptTokens, opening, results_line, told_to_write
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.loading import load_method
from ccot_cli.models.selection.gold import STORED_DTYPE
from ccot_cli.models.training.contexts import TokensContext
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.loop import CHECKPOINT_FILE, LOG_FILE, train
from ccot_cli.models.training.psi import HeldOut, PsiTraining
from ccot_cli.names import PRECOMPUTE, TRAIN_DECODER, TRAIN_PSI, ratio_name
from ccot_cli.progress import Progress
from ccot_cli.stages.explanations import measure_explanations
from ccot_cli.stages.inputs import building, load_matching_theta, ready_result, short_enough
from ccot_cli.stages.problems import digest, recorded_data, stored_problems
from ccot_cli.stages.start import attach, find_psi, start_inputs
from ccot_cli.stages.validation import MOST_JUDGED, ask, caps, is_right
from ccot_cli.workspace.artifact import ArtifactSpec
from ccot_cli.workspace.build import Build
from ccot_cli.workspace.workspace import Workspace


@dataclass(frozen=True)
class TrainDecoderResult:
    """How well the explanations of validation problems fit."""

    ratio: float
    num_steps: int
    train_loss: float
    """Mean loss of the last epoch."""
    num_problems: int
    """Problems that it learned from; also those of which every lesson was left out."""
    num_validation: int
    explanations: dict[str, Any]
    """The fields of `Explanations`, measured on the validation problems."""
    decoding: dict[str, Any] = field(default_factory=dict)
    """The caps that they were measured with."""
    kept_step: int | None = None
    """The step whose weights did best on validation problems, and were kept."""
    was_ready: bool = False


def run(
    workspace: Workspace,
    settings: Settings,
    ratio: Decimal,
    *,
    overrides: Sequence[str] = (),
    progress: Progress,
) -> TrainDecoderResult:
    """Train and save the decoder of one ratio, with the settings of `train_psi`; an interrupted run resumes.

    The problems are those that `precompute` read, but for settings of `data` among the overrides.

    Raises:
        MissingError: if there is no trained ψ for this ratio, or no adapter to start from.
        UsageError: if the source of the problems is missing, or the adapter to start from has another rank or alpha.
        ResourceError: if a single problem does not fit into memory.
    """
    key = ratio_name(ratio)
    psi = workspace.require(TRAIN_PSI, key)
    source = workspace.artifact(PRECOMPUTE) or workspace.require(PRECOMPUTE)
    given = [name for name in overrides if name.startswith("data.")]
    data = recorded_data(settings, source).model_copy(update=_values(settings, given))
    settings = settings.model_copy(update={"data": data})
    loaded = load_training(data)
    problems = digest(stored_problems(loaded))
    # Options that `precompute` was given hold here too, so that they do not look like changes of ccot.yaml.
    inherited = [name for name in source.manifest.overrides if name.startswith("data.")]
    start = find_psi(settings.train_psi, workspace.folder(TRAIN_DECODER, key))
    spec = ArtifactSpec(
        TRAIN_DECODER,
        key,
        stage_config(settings, TRAIN_DECODER),
        {TRAIN_PSI: psi.fingerprint, "problems": problems} | start_inputs(start),
        (*overrides, *(name for name in inherited if name not in overrides)),
    )
    if ready := ranks.first(lambda: ready_result(workspace, spec, TrainDecoderResult)):
        return ready
    theta = load_matching_theta(settings, source)
    psi.check()
    adapters = Adapters(theta)
    method = load_method(adapters, psi.folder, settings.decoding)
    assert isinstance(method, CcotMethod)
    attach(adapters, DECODER, settings.train_psi, start)
    with building(workspace, spec, progress) as build:
        result = _train(method, loaded, settings, build, progress)
        build.summary.update(asdict(result))
    return result


def _values(settings: Settings, names: Sequence[str]) -> dict[str, Any]:
    """Return settings of `data` by their names without the section."""
    return {name: getattr(settings.data, name) for name in (each.removeprefix("data.") for each in names)}


def _train(
    method: CcotMethod, loaded: LoadedProblems, settings: Settings, build: Build, progress: Progress
) -> TrainDecoderResult:
    config, adapters = settings.train_psi, method.adapters
    for note in loaded.notes:
        progress.say(note)
    train_problems, validation = (short_enough(method.theta, part) for part in (loaded.train, loaded.validation))
    forward_size = 2 * config.batch_size
    problems, held_out = _answered_right(method, train_problems, forward_size, progress), validation[:MOST_JUDGED]
    share = f"{len(problems):,} of {len(train_problems):,} problems are answered right"
    if len(problems) < config.batch_size:
        progress.say(f"{share}, too few: the decoder learns from all of them")
        problems = train_problems
    else:
        progress.say(f"{share}; the decoder learns from these")
        held_out = _answered_right(method, held_out, forward_size, progress) or held_out
    examples, context = _lessons(method, problems, forward_size, progress)
    training = PsiTraining(adapters, examples, context, config, adapter=DECODER)
    judged = HeldOut(*_lessons(method, held_out, forward_size, progress))
    trained = train(
        training,
        log=build.folder / LOG_FILE,
        checkpoint=build.scratch(CHECKPOINT_FILE),
        label=f"decoder at r = {method.ratio:f}",
        checkpoint_steps=config.checkpoint_steps,
        progress=progress,
        judge=lambda: training.judge(judged),
    )
    adapters.train_only(())
    training.record()
    adapters.save(DECODER, build.folder)
    explanations = measure_explanations(method, validation, settings.eval.batch_size, progress)
    return TrainDecoderResult(
        ratio=float(method.ratio),
        num_steps=training.optimiser.step_count,
        kept_step=trained.kept_step,
        train_loss=trained.loss,
        num_problems=len(problems),
        num_validation=len(validation),
        explanations=asdict(explanations),
        decoding=caps(settings),
    )


def _answered_right(
    method: CcotMethod, problems: Sequence[Problem], batch_size: int, progress: Progress
) -> list[Problem]:
    ordered = sorted(problems, key=lambda each: len(each.question))
    return [
        problem
        for batch, replies, _ in ask(method, ordered, batch_size, "answers", progress)
        for problem, reply in zip(batch, replies, strict=True)
        if is_right(problem, reply)
    ]


def _lessons(
    method: CcotMethod, problems: Sequence[Problem], batch_size: int, progress: Progress
) -> tuple[list[PsiExample], TokensContext]:
    """Return what the decoder learns to write, and what from: the tokens that the method generates.

    Each problem gives two lessons: to read its results, and to write its lines once it knows the results. One is left
    out if the model has too few positions for it.
    """
    theta, encoder = method.theta, method.theta.encoder
    encoded = encoder.problems(problems)
    results = [results_line(each.chain) for each in problems]
    # As if they were the chains, because the decoder opens both in the same way.
    encoded_results = encoder.problems(
        [replace(each, chain=line) for each, line in zip(problems, results, strict=True)]
    )

    def run(batch: Sequence[int]) -> list[KeptTokens]:
        kept = method.kept_tokens([encoded[number].query for number in batch])
        return [each._replace(states=each.states.to("cpu", STORED_DTYPE)) for each in kept]

    with progress.task("contemplation tokens", total=len(problems), unit="problems") as advance:
        found = by_number([len(each.query) for each in encoded], run, batch_size=batch_size, advance=advance)
    end, most = encoder.tokenizer.eos_token_id, theta.blocks.num_positions
    lessons = list[tuple[PsiExample, KeptTokens]]()
    for number, (each, result) in enumerate(zip(encoded, encoded_results, strict=True)):
        to_read = found[number]
        to_write = to_read._replace(told=told_to_write(encoder, to_read.told, results[number], each.query))
        for text, kept in ((result.chain, to_read), (each.chain, to_write)):
            example = PsiExample(each.query, opening(encoder), [*text, end], kept.states.shape[2] - 1)
            if most is None or example.length + len(kept.told) <= most:
                lessons.append((example, kept))
    examples = [example for example, _ in lessons]
    return examples, TokensContext(method.adapters, [each.query for each in examples], [kept for _, kept in lessons])
