"""Answer at once: plain fine-tuning on answers (r = 0)."""

from dataclasses import dataclass
from decimal import Decimal

from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.methods.method import NO_TOKENS, AnswerReasoner, Clock, Prepared
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.models.training.queries import read_query
from ccot_cli.models.training.recipes.base import Baseline, Course, Trained


class Direct(Baseline):
    name = "direct"
    traits = NO_TOKENS
    ratio = Decimal(0)

    def training(self, course: Course) -> PsiTraining:
        return course.training(course.answers(0))

    @classmethod
    def load(cls, trained: Trained) -> "DirectReasoner":
        return DirectReasoner(trained.theta, trained.adapters, trained.method, trained.decoding)


@dataclass
class DirectReasoner(AnswerReasoner):
    """ψ reads the query and answers."""

    def prepare(self, queries: list[list[int]]) -> Prepared:
        clock = Clock(self.theta.device)
        sequence = read_query(self.theta, self.adapters, queries, adapter=PSI)
        return Prepared(sequence, [0] * len(queries), [False] * len(queries), clock.lap(), 0.0)
