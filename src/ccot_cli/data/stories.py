"""Tell stories of one to ten steps, composed from the events in `forms/stories.yaml`.

A story follows one amount. An event changes it, and may hand over to another person or go on in another unit. Actions
of the same person are joined into sentences.
"""

import random
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ccot_cli.data.families import (
    CEILING_WEIGHTS,
    CEILINGS,
    LARGEST_FACTOR,
    LOWER_CASE_PROBABILITY,
    Step,
    WordProblem,
    is_held_out,
)
from ccot_cli.data.grammar import STORIES_FILE, Telling, lines, read_forms, tidy

MOST_STEPS = 10
PERSON = "person"
QUESTION_FIRST_PROBABILITY = 0.25
MOST_QUESTION_FIRST = 4
"""Most steps of a story whose question comes first."""
TRIES = 50
UNIT_WEIGHTS = (8, 2, 1)
"""How often a story starts with things, dollars or minutes."""
ACTION_PROBABILITY = 0.75
"""How often an event is an action, if it may be a sentence too."""
LEADS = ("", "", "", "Then ", "After that, ", "Later, ", "Next, ", "The next day, ")
HOLDER = re.compile(r"\{(A|[Hh]e|[Hh]is|[Hh]im)\}")
JOINTS = (" and ", " and then ", " and ", ", then ")


@dataclass(frozen=True)
class Event:
    """One kind of step of a story."""

    name: str
    unit: str
    """The unit in which it is possible: things, dollars or minutes."""
    to: str
    """What the story goes on with: a unit, or `person` for another person in the same unit."""
    step: Step
    actions: tuple[str, ...]
    """Verb phrases of the holder."""
    sentences: tuple[str, ...]

    @classmethod
    def parse(cls, name: str, value: dict[str, Any]) -> "Event":
        """Read an entry of the file.

        Raises:
            ValueError: if its step is none.
        """
        texts = {key: tuple(lines(value.get(key) or "")) for key in ("actions", "sentences")}
        return cls(name, value["unit"], value.get("to", value["unit"]), Step.parse(value["step"]), **texts)

    @property
    def operands(self) -> tuple[str, str]:
        return self.step.left, self.step.right

    def draw(self, rng: random.Random, amount: int, ceiling: int) -> dict[str, int] | None:
        """Draw its number for an amount; return it, the amount and the result, or None if none was found."""
        uses_number = "n" in self.operands
        for _ in range(TRIES if uses_number else 1):
            high = LARGEST_FACTOR if self.step.sign in "*/" else max(2, min(ceiling, amount * 3))
            numbers = {"a": amount, "n": rng.randint(2, high)}
            result = self.step.compute(numbers)
            if result is not None and result <= ceiling and (self.step.sign != "/" or result > 1):
                return {**numbers, "p": result}
        return None


@dataclass(frozen=True)
class Stories:
    """Everything that stories are made of; by unit, where there is one."""

    openings: dict[str, list[str]]
    questions: dict[str, list[str]]
    question_first: dict[str, list[str]]
    events: list[Event]


@cache
def stories() -> Stories:
    """Read the file."""
    value = read_forms(STORIES_FILE)
    openings, questions, firsts = (
        {unit: lines(text) for unit, text in value[key].items()} for key in ("openings", "questions", "question_first")
    )
    return Stories(openings, questions, firsts, [Event.parse(name, each) for name, each in value["events"].items()])


class _Forms:
    """Chooses forms, those that are held out only for `unseen`; remembers which were chosen."""

    def __init__(self, rng: random.Random, *, is_unseen: bool) -> None:
        self.rng = rng
        self.is_unseen = is_unseen
        self.chosen: list[str] = []

    def choose(self, forms: list[str] | tuple[str, ...]) -> str:
        held_out = [form for form in forms if is_held_out(form)]
        takes_held_out = self.is_unseen and held_out and self.rng.random() < 0.5
        form = self.rng.choice(held_out if takes_held_out else [form for form in forms if form not in held_out])
        self.chosen.append(form)
        return form


def tell_story(rng: random.Random, num_steps: int, *, is_unseen: bool) -> WordProblem:
    """Tell a story of exactly `num_steps` steps.

    Args:
        is_unseen: At least one of its forms is held out; else none is.
    """
    while True:
        forms = _Forms(rng, is_unseen=is_unseen)
        problem = _try(rng, forms, num_steps)
        if problem is not None and is_unseen == any(is_held_out(form) for form in forms.chosen):
            return problem


@dataclass
class _Story:
    """The state of a story while it is told."""

    rng: random.Random
    forms: _Forms
    telling: Telling
    unit: str
    amount: int
    is_question_first: bool
    text: str = ""
    """What has been told, without `actions`."""
    actions: list[str] = field(default_factory=list)
    """Verb phrases of the holder that are not in a sentence yet."""
    is_named: bool = True
    """Whether the holder's name was told after the story went over to them."""
    chain: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def open(self) -> str:
        """Tell the first amount; return the form."""
        openings = stories().question_first if self.is_question_first else stories().openings
        form = self.forms.choose(openings[self.unit])
        self.text = self.telling.fill(form)
        if not self.is_question_first:
            self.text = tidy(self.text)
        return form

    def happen(self, event: Event, values: dict[str, int]) -> None:
        """Tell an event, and add its line to the chain."""
        self.events.append(event.name)
        self.numbers += [values["n"], values["p"]] if "n" in event.operands else [values["p"]]
        self.telling.numbers = values
        if event.to == "things" != self.unit:
            self.telling.things.pop("x", None)
        self._tell(event)
        self.chain.append(event.step.write(values))
        if event.to == PERSON:
            self.telling.people["A"] = self.telling.people.pop("B")
            self.is_named = False
        else:
            self.unit = event.to
        self.amount = values["p"]

    def _tell(self, event: Event) -> None:
        must_act = self.is_question_first or not event.sentences
        if event.actions and (must_act or self.rng.random() < ACTION_PROBABILITY):
            self.actions.append(self.telling.fill(self.forms.choose(event.actions)))
            return
        form = self.forms.choose(event.sentences)
        self._join_actions()
        self.text += " " + self.telling.write(form if self.is_named else _name_holder(self.telling.choose(form)))
        self.is_named = True

    def _join_actions(self) -> None:
        """Join the actions into sentences of one to three."""
        while self.actions:
            count = min(len(self.actions), self.rng.choice([1, 1, 2, 2, 3]))
            lead = self.rng.choice(LEADS)
            subject = self.telling.fill(self.rng.choice(["{A}", "{he}", "{he}"]) if self.is_named else "{A}")
            self.text += " " + tidy(f"{lead}{subject} {_joined(self.rng, self.actions[:count])}.")
            self.actions, self.is_named = self.actions[count:], True

    def close(self) -> str:
        """Return the whole question."""
        if self.is_question_first:
            is_list = self.text.endswith(",")
            start = f"{self.text.removesuffix(',')} and" if is_list and len(self.actions) == 1 else self.text
            return tidy(f"{start} {_joined(self.rng, self.actions)}?")
        self._join_actions()
        final = self.telling.choose(self.forms.choose(stories().questions[self.unit]))
        return tidy(f"{self.text} {self.telling.fill(final if self.is_named else _name_holder(final))}")


def _try(rng: random.Random, forms: _Forms, num_steps: int) -> WordProblem | None:
    """Tell a story; return None if no event fitted before it was long enough."""
    unit = rng.choices(["things", "dollars", "minutes"], UNIT_WEIGHTS)[0]
    ceiling = rng.choices(CEILINGS[1:], CEILING_WEIGHTS[1:])[0]
    amount = rng.randint(2, ceiling)
    telling = Telling.draw(rng, {"a": amount})
    is_question_first = num_steps <= MOST_QUESTION_FIRST and rng.random() < QUESTION_FIRST_PROBABILITY
    telling.is_past = telling.is_past and not is_question_first
    story = _Story(rng, forms, telling, unit, amount, is_question_first, numbers=[amount])
    opening = story.open()
    for _ in range(num_steps):
        drawn = _draw_event(rng, story.unit, story.amount, ceiling, only_actions=is_question_first)
        if drawn is None:
            return None
        story.happen(*drawn)
    question = story.close()
    if rng.random() < LOWER_CASE_PROBABILITY:
        question = question.lower()
    solution = "\n".join([*story.chain, f"#### {story.amount}"])
    return WordProblem(question, solution, f"story: {', '.join(story.events)}", opening, tuple(story.numbers))


def _draw_event(
    rng: random.Random, unit: str, amount: int, ceiling: int, *, only_actions: bool
) -> tuple[Event, dict[str, int]] | None:
    """Draw an event that fits, with its numbers; None if there is none."""
    events = [
        each
        for each in stories().events
        if each.unit == unit and (not only_actions or (each.actions and each.to == unit))
    ]
    while events:
        # Events that people tell in many ways are common ones.
        [event] = rng.choices(events, [len(each.actions) + len(each.sentences) for each in events])
        events.remove(event)
        values = event.draw(rng, amount, ceiling)
        if values is not None:
            return event, values
    return None


def _name_holder(form: str) -> str:
    """Put the holder's name in the place of the first pronoun, which could mean somebody else."""
    found = HOLDER.search(form)
    if found is None or found[1] == "A":
        return form
    name = "{A}'s" if found[1].lower() == "his" else "{A}"
    return form[: found.start()] + name + form[found.end() :]


def _joined(rng: random.Random, actions: list[str]) -> str:
    *first, last = actions
    return f"{', '.join(first)}{rng.choice(JOINTS)}{last}" if first else last
