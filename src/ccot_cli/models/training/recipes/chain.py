"""Methods that write a chain of words: the whole one, its beginning, or less of it from epoch to epoch.

- `cot`: fine-tuning on explicit chains (r = 1; paper, Algorithm 1).
- `short-cot`: the chain is cut to as many tokens as CCoT contemplates, then comes the answer.
- `icot`: implicit chain of thought by stepwise internalisation (Deng et al., 2024): tokens are removed from the chain's
  beginning, more with every epoch, until none is left.
"""

import random
from decimal import Decimal

from ccot_cli.data.prompts import EncodedProblem
from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.methods.method import NO_TOKENS, WRITTEN, ChainReasoner
from ccot_cli.models.training.psi import PsiExample, PsiTraining
from ccot_cli.models.training.recipes.base import Baseline, Course, Trained, usual_most
from ccot_cli.tensors.select import num_kept


def written(course: Course, problem: EncodedProblem, chain: list[int]) -> PsiExample:
    """A chain, <ANS> and the answer, all to be written; the query's last token opens them, as <COT> does in the paper.

    The chain need not be the problem's own.
    """
    solution = [*chain, *course.theta.encoder.answer_marker, *problem.answer]
    return PsiExample(problem.query[:-1], problem.query[-1:], solution, 0)


class ChainBaseline(Baseline):
    """Answers by writing."""

    @classmethod
    def load(cls, trained: Trained) -> ChainReasoner:
        longest, method = trained.decoding.max_chain_tokens, trained.method
        ratio = Decimal(method.ratio)
        return ChainReasoner(trained.theta, trained.adapters, longest, adapter=PSI, name=method.name, ratio=ratio)


class Cot(ChainBaseline):
    name = "cot"
    traits = WRITTEN
    ratio = Decimal(1)

    def training(self, course: Course) -> PsiTraining:
        return course.training([written(course, each, each.chain) for each in course.problems])


class ShortCot(ChainBaseline):
    name = "short-cot"
    traits = WRITTEN

    def training(self, course: Course) -> PsiTraining:
        return course.training([written(course, each, self._cut(course, each)) for each in course.problems])

    def _cut(self, course: Course, problem: EncodedProblem) -> list[int]:
        return problem.chain[: num_kept(course.ratio, len(problem.chain))]


class ImplicitCot(ChainBaseline):
    """Stepwise internalisation. The first epoch asks for whole chains, the last quarter for the answer alone."""

    name = "icot"
    traits = NO_TOKENS
    ratio = Decimal(0)
    SMOOTHING = 4.0
    """Decay of the chance that one more token is removed, and another, ... (the published lambda)."""

    def training(self, course: Course) -> PsiTraining:
        most = usual_most([len(each.chain) for each in course.problems])

        def lessons(epoch: int) -> list[PsiExample]:
            removed = course.num_removed(epoch, most)
            draw = random.Random(f"{course.chosen.seed}/{epoch}")
            # The first epoch's chains are whole, and what is all gone cannot be removed further.
            extra = [int(draw.expovariate(self.SMOOTHING)) if epoch else 0 for _ in course.problems]
            return [
                written(course, each, each.chain[removed + more :] if removed < most else [])
                for each, more in zip(course.problems, extra, strict=True)
            ]

        return course.training(lessons, stages=range(1, course.num_falling + 1))
