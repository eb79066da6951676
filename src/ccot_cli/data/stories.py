"""Tell stories of one to ten steps, composed from the events in `forms/stories.yaml`.

A story follows one amount. An event changes it, and may hand over to another person or go on in another unit. Actions
of the same person are joined into sentences.
"""

import random
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from ccot_cli.data.families import (
    CEILING_WEIGHTS,
    CEILINGS,
    LARGEST_FACTOR,
    LOWER_CASE_PROBABILITY,
    EverydayProblem,
    Step,
    is_held_out,
    write_line,
)
from ccot_cli.data.grammar import STORIES_FILE, Telling, lines, read_forms, tidy

MOST_STEPS = 10
PERSON = "person"
QUESTION_FIRST_PROBABILITY = 0.25
MOST_QUESTION_FIRST = 4
"""Most steps of a story whose question comes first."""
TRIES = 50
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
    chain: tuple[str, ...]
    actions: tuple[str, ...]
    """Verb phrases of the holder."""
    sentences: tuple[str, ...]

    @classmethod
    def parse(cls, name: str, value: dict[str, Any]) -> "Event":
        """Read an entry of the file.

        Raises:
            ValueError: if its step is none.
        """
        texts = {key: tuple(lines(value.get(key) or "")) for key in ("chain", "actions", "sentences")}
        return cls(name, value["unit"], value.get("to", value["unit"]), Step.parse(value["step"]), **texts)

    def draw(self, rng: random.Random, amount: int, ceiling: int) -> dict[str, int] | None:
        """Draw its number for an amount; return it, the amount and the result, or None if none was found."""
        uses_number = "n" in (self.step.left, self.step.right)
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
        if not (self.is_unseen and held_out and self.rng.random() < 0.5):
            held_out = [form for form in forms if form not in held_out]
        form = self.rng.choice(held_out)
        self.chosen.append(form)
        return form


def tell_story(rng: random.Random, num_steps: int, *, is_unseen: bool) -> EverydayProblem:
    """Tell a story of exactly `num_steps` steps.

    Args:
        is_unseen: At least one of its forms is held out; else none is.
    """
    while True:
        forms = _Forms(rng, is_unseen=is_unseen)
        problem = _try(rng, forms, num_steps)
        if problem is not None and is_unseen == any(is_held_out(form) for form in forms.chosen):
            return problem


def _try(rng: random.Random, forms: _Forms, num_steps: int) -> EverydayProblem | None:
    """Tell a story; return None if no event fitted before it was long enough."""
    unit = rng.choices(["things", "dollars", "minutes"], [8, 2, 1])[0]
    ceiling = rng.choices(CEILINGS[1:], CEILING_WEIGHTS[1:])[0]
    amount = rng.randint(2, ceiling)
    telling = Telling.draw(rng, {"a": amount})
    is_first = num_steps <= MOST_QUESTION_FIRST and rng.random() < QUESTION_FIRST_PROBABILITY
    if is_first:
        telling.is_past = False
    opening = forms.choose((stories().question_first if is_first else stories().openings)[unit])
    text = telling.fill(opening)
    if not is_first:
        text = tidy(text)
    chain: list[str] = []
    names: list[str] = []
    numbers = [amount]
    actions: list[str] = []
    is_named = True  # since the story began to follow the holder
    for _ in range(num_steps):
        drawn = _draw_event(rng, unit, amount, ceiling, only_actions=is_first)
        if drawn is None:
            return None
        event, values = drawn
        names.append(event.name)
        numbers += [values["n"], values["p"]] if "n" in (event.step.left, event.step.right) else [values["p"]]
        telling.numbers = values
        if event.to == "things" != unit:
            telling.things.pop("x", None)
        is_action = bool(event.actions) and (is_first or not event.sentences or rng.random() < 0.75)
        form = forms.choose(event.actions if is_action else event.sentences)
        if is_action:
            actions.append(telling.fill(form))
        else:
            text += _sentences(rng, telling, actions, is_named=is_named)
            is_named = is_named or bool(actions)
            text += " " + telling.write(form if is_named else _name_holder(telling.choose(form)))
            actions, is_named = [], True
        past, words = telling.is_past, telling.in_words
        telling.is_past = telling.in_words = False
        chain.append(write_line(telling, event.step, rng.choice(event.chain)))
        telling.is_past, telling.in_words = past, words
        if event.to == PERSON:
            telling.people["A"] = telling.people.pop("B")
            is_named = False
        else:
            unit = event.to
        amount = values["p"]
    if is_first:
        start = f"{text.removesuffix(',')} and" if len(actions) == 1 else text
        question = f"{start} {_joined(rng, actions)}?"
    else:
        text += _sentences(rng, telling, actions, is_named=is_named)
        final = telling.choose(forms.choose(stories().questions[unit]))
        question = f"{text} {telling.fill(final if is_named or actions else _name_holder(final))}"
    question = tidy(question)
    if rng.random() < LOWER_CASE_PROBABILITY:
        question = question.lower()
    solution = "\n".join([*chain, f"#### {amount}"])
    return EverydayProblem(question, solution, f"story: {', '.join(names)}", opening, tuple(numbers))


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


def _sentences(rng: random.Random, telling: Telling, actions: list[str], *, is_named: bool) -> str:
    """Join verb phrases of the holder into sentences of one to three."""
    text = ""
    rest = list(actions)
    while rest:
        count = min(len(rest), rng.choice([1, 1, 2, 2, 3]))
        lead = rng.choice(LEADS)
        subject = telling.fill(rng.choice(["{A}", "{he}", "{he}"]) if is_named else "{A}")
        is_named = True
        text += " " + tidy(f"{lead}{subject} {_joined(rng, rest[:count])}.")
        rest = rest[count:]
    return text


def _joined(rng: random.Random, actions: list[str]) -> str:
    *first, last = actions
    return f"{', '.join(first)}{rng.choice(JOINTS)}{last}" if first else last
