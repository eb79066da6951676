"""Answer at once: plain fine-tuning on answers (r = 0)."""

from dataclasses import dataclass
from decimal import Decimal

from ccot_cli.models.adapters import PSI
from ccot_cli.models.baselines.base import Baseline, Course, Trained
from ccot_cli.models.psi_training import PsiTraining
from ccot_cli.models.queries import read_query
from ccot_cli.models.reasoner import NO_TOKENS, AnswerReasoner, Clock, Prepared


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
