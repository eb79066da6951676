"""Generate grade-school word problems in plain English: the embedded data set.

A story follows one quantity. Each step is drawn from a family (buy, share equally, twice as many, ...). It adds one
sentence to the question and one line to the reasoning chain, and may continue with another person or another unit.
Every quantity is a whole number from 1 to 99; a bank note may be 100. A problem depends on nothing but its split,
index, seed, range of steps and limits.

A problem's signature is its sequence of families and all its numbers. It decides the split in which the problem may
appear. So no two splits share a question or a signature, whatever the seeds.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "validation", "test"]

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
MIN_STEPS, MAX_STEPS = 2, 8
LARGEST = 99

PEOPLE = (
    "Mia Ben Lily Tom Anna Sam Zoe Max Emma Leo Nina Jack Rosa Omar Ivy Paul Maya Hugo Clara Noah Lena Adam Ella Finn"
).split()
OBJECTS = (
    "pen pens,book books,apple apples,marble marbles,sticker stickers,shell shells,card cards,cookie cookies,"
    "flower flowers,stamp stamps,button buttons,ribbon ribbons,candle candles,egg eggs,coin coins,bead beads"
)
NOUNS = tuple(tuple(pair.split()) for pair in OBJECTS.split(","))
DOLLARS = ("dollar", "dollars")
MINUTES = ("minute", "minutes")
GOODS = ("lamp", "kite", "hat", "bag", "clock", "game")
RECEIVERS = ("a friend", "a neighbor", "the school", "a cousin", "the library")
CONTAINERS = (("box", "boxes"), ("bag", "bags"), ("jar", "jars"))
NOTES = (20, 50, 100)


@dataclass(frozen=True)
class Limits:
    """Limits of the numbers, because a small model has to learn every sum."""

    change: int = 20
    """Largest number that is added or taken away; limits the smaller of two amounts that are added or compared too."""
    group: int = 5
    """Largest group size if groups are filled and the rest is counted."""
    grouped: int = 40
    """Largest amount that is divided into such groups."""
    pools: bool = False
    """Whether one person may give everything to another. The model has to remember the other's amount until then."""


MEDIUM = Limits(change=20, group=6, grouped=60, pools=True)
WIDE = Limits(change=LARGEST, group=9, grouped=LARGEST, pools=True)
"""Only the limits that the families have anyway."""


@dataclass(frozen=True)
class WordProblem:
    """One problem."""

    question: str
    solution: str
    """Chain and answer as in GSM8K, with calculator annotations and a `#### answer` line."""
    families: tuple[str, ...]
    """The family of every step."""
    numbers: tuple[int, ...]
    """The first amount, then the numbers of every step and its result."""

    @property
    def num_steps(self) -> int:
        return len(self.families)

    @property
    def split(self) -> Split:
        """The only split in which this problem may appear."""
        signature = f"{self.families}{self.numbers}".encode()
        bucket = hashlib.sha256(signature).digest()[0]
        return "test" if bucket < 16 else "validation" if bucket < 32 else "train"


@dataclass
class _Story:
    """The state of a story while it is told: who holds how much of what."""

    rng: random.Random
    person: str
    noun: tuple[str, ...]
    amount: int
    limits: Limits
    others: dict[str, int] = field(default_factory=dict)
    """Amounts of the people met earlier, in the same unit."""
    question: list[str] = field(default_factory=list)
    chain: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    final_question: str | None = None

    def things(self, count: int) -> str:
        """Return the noun in the singular or the plural, as a count demands."""
        return self.noun[0] if count == 1 else self.noun[1]

    @property
    def verb(self) -> str:
        """The verb between a person and an amount."""
        return "needs" if self.noun == MINUTES else "has"

    def draw(self, low: int, high: int) -> int | None:
        """Draw a number from low to high; return None if there is none."""
        return self.rng.randint(low, high) if low <= high else None

    def draw_change(self, high: int, room: int) -> int | None:
        """Draw how much is added or taken away: at least 2, at most the family's limit, the story's and the room."""
        return self.draw(2, min(high, self.limits.change, room))

    def newcomer(self) -> str:
        """Draw a person who is not in the story yet."""
        known = {self.person, *self.others}
        return self.rng.choice([name for name in PEOPLE if name not in known])

    def tell(self, question: str, chain: str, result: int, *numbers: int) -> None:
        """Add a step: its sentence of the question, its line of the chain, the new amount, and its numbers."""
        self.question.append(question)
        self.chain.append(chain)
        self.numbers += [*numbers, result]
        self.amount = result

    def hand_over(self, person: str) -> None:
        """Follow another person from now on; the former one keeps what they have."""
        self.others[self.person] = self.amount
        self.person = person

    def change_unit(self, noun: tuple[str, ...]) -> None:
        """Count in another unit from now on, and forget the others, whose amounts cannot be compared any more."""
        self.noun = noun
        self.others = {}


def _sum(left: int, sign: str, right: int, result: int) -> str:
    """Write an operation as GSM8K does, with its calculator annotation."""
    return f"{left} {sign} {right} = <<{left}{sign}{right}={result}>>{result}"


# A family adds one step to the story and returns True. If it does not fit the story, it changes nothing and returns
# False.


def _buy(story: _Story) -> bool:
    added = story.draw_change(40, LARGEST - story.amount)
    if added is None or story.noun in (DOLLARS, MINUTES):
        return False
    result = story.amount + added
    verb, doing = story.rng.choice([("buys", "buying"), ("finds", "finding"), ("picks", "picking")])
    story.tell(
        f"{story.person} {verb} {added} more {story.things(added)}.",
        f"After {doing} {added} more, {story.person} has {_sum(story.amount, '+', added, result)}"
        f" {story.things(result)}.",
        result,
        added,
    )
    return True


def _earn(story: _Story) -> bool:
    added = story.draw_change(40, LARGEST - story.amount)
    if added is None or story.noun != DOLLARS:
        return False
    result = story.amount + added
    story.tell(
        f"{story.person} earns ${added} more.",
        f"After earning {added} more, {story.person} has {_sum(story.amount, '+', added, result)} dollars.",
        result,
        added,
    )
    return True


def _rest(story: _Story) -> bool:
    added = story.draw_change(30, LARGEST - story.amount)
    if added is None or story.noun != MINUTES:
        return False
    result = story.amount + added
    story.tell(
        f"{story.person} also rests for {added} minutes.",
        f"With the rest of {added} minutes, {story.person} needs {_sum(story.amount, '+', added, result)} minutes.",
        result,
        added,
    )
    return True


def _give(story: _Story) -> bool:
    removed = story.draw_change(40, story.amount - 1)
    if removed is None or story.noun == MINUTES:
        return False
    result = story.amount - removed
    story.tell(
        f"{story.person} gives {removed} {story.things(removed)} to {story.rng.choice(RECEIVERS)}.",
        f"After giving away {removed}, {story.person} has {_sum(story.amount, '-', removed, result)}"
        f" {story.things(result)} left.",
        result,
        removed,
    )
    return True


def _lose(story: _Story) -> bool:
    removed = story.draw_change(30, story.amount - 1)
    if removed is None or story.noun == MINUTES:
        return False
    result = story.amount - removed
    verb, doing = story.rng.choice([("loses", "losing"), ("uses", "using")])
    story.tell(
        f"{story.person} {verb} {removed} of the {story.noun[1]}.",
        f"After {doing} {removed}, {story.person} still has {_sum(story.amount, '-', removed, result)}"
        f" {story.things(result)}.",
        result,
        removed,
    )
    return True


def _share(story: _Story) -> bool:
    parts = [part for part in range(2, 10) if story.amount % part == 0 and story.amount // part > 1]
    if not parts or story.noun in (DOLLARS, MINUTES):
        return False
    part = story.rng.choice(parts)
    result = story.amount // part
    one, many = story.rng.choice(CONTAINERS)
    story.tell(
        f"{story.person} shares the {story.noun[1]} equally among {part} {many} and keeps one {one}.",
        f"Each {one} holds {_sum(story.amount, '/', part, result)} {story.things(result)},"
        f" and {story.person} keeps one.",
        result,
        part,
    )
    return True


def _twice(story: _Story) -> bool:
    result = 2 * story.amount
    if result > LARGEST:
        return False
    other = story.newcomer()
    question = f"{other} {story.verb} twice as many {story.noun[1]} as {story.person}."
    chain = f"Twice as many is {_sum(2, '*', story.amount, result)}, so {other} {story.verb} {result}."
    story.hand_over(other)
    story.tell(question, chain, result)
    return True


def _times(story: _Story) -> bool:
    factor = story.draw(3, min(6, LARGEST // story.amount))
    if factor is None:
        return False
    result = factor * story.amount
    other = story.newcomer()
    question = f"{other} {story.verb} {factor} times as many {story.noun[1]} as {story.person}."
    chain = f"{factor} times as many is {_sum(factor, '*', story.amount, result)}, so {other} {story.verb} {result}."
    story.hand_over(other)
    story.tell(question, chain, result, factor)
    return True


def _half(story: _Story) -> bool:
    if story.amount % 2 or story.amount < 4:
        return False
    result = story.amount // 2
    other = story.newcomer()
    question = f"{other} {story.verb} half as many {story.noun[1]} as {story.person}."
    chain = f"Half as many is {_sum(story.amount, '/', 2, result)}, so {other} {story.verb} {result}."
    story.hand_over(other)
    story.tell(question, chain, result)
    return True


def _more(story: _Story) -> bool:
    added = story.draw_change(30, LARGEST - story.amount)
    if added is None:
        return False
    result = story.amount + added
    other = story.newcomer()
    question = f"{other} {story.verb} {added} more {story.things(added)} than {story.person}."
    chain = (
        f"That is {added} more than {story.person}, so {other} {story.verb} {_sum(story.amount, '+', added, result)}."
    )
    story.hand_over(other)
    story.tell(question, chain, result, added)
    return True


def _fewer(story: _Story) -> bool:
    removed = story.draw_change(30, story.amount - 1)
    if removed is None:
        return False
    result = story.amount - removed
    other = story.newcomer()
    question = f"{other} {story.verb} {removed} fewer {story.things(removed)} than {story.person}."
    chain = (
        f"That is {removed} fewer than {story.person}, so {other} {story.verb}"
        f" {_sum(story.amount, '-', removed, result)}."
    )
    story.hand_over(other)
    story.tell(question, chain, result, removed)
    return True


def _sell(story: _Story) -> bool:
    price = story.draw(2, min(9, LARGEST // story.amount))
    if price is None or story.noun in (DOLLARS, MINUTES):
        return False
    result = price * story.amount
    question = f"{story.person} sells all the {story.noun[1]} for ${price} each."
    chain = f"At {price} dollars each, {story.person} gets {_sum(price, '*', story.amount, result)} dollars."
    story.change_unit(DOLLARS)
    story.tell(question, chain, result, price)
    return True


def _spend(story: _Story) -> bool:
    prices = [price for price in range(2, 10) if story.amount % price == 0 and story.amount // price > 1]
    if not prices or story.noun != DOLLARS:
        return False
    price = story.rng.choice(prices)
    result = story.amount // price
    noun = story.rng.choice(NOUNS)
    question = f"{story.person} spends all the money on {noun[1]} for ${price} each."
    story.change_unit(noun)
    chain = (
        f"At {price} dollars each, {story.person} buys {_sum(story.amount, '/', price, result)} {story.things(result)}."
    )
    story.tell(question, chain, result, price)
    return True


def _change(story: _Story) -> bool:
    notes = [note for note in NOTES if story.amount < note and note - story.amount <= LARGEST]
    if not notes or story.noun != DOLLARS:
        return False
    note = story.rng.choice(notes)
    result = note - story.amount
    other, goods = story.newcomer(), story.rng.choice(GOODS)
    question = (
        f"{other} buys a {goods} that costs as much money as {story.person} has, pays with a ${note} note"
        " and keeps the change."
    )
    chain = f"The change from {note} dollars is {_sum(note, '-', story.amount, result)}, so {other} has {result}."
    story.hand_over(other)
    story.tell(question, chain, result, note)
    return True


def _rate(story: _Story) -> bool:
    days = story.draw(2, min(7, LARGEST // story.amount))
    if days is None or story.noun == MINUTES:
        return False
    result = days * story.amount
    other = story.newcomer()
    question = f"Every day {other} gets as many {story.noun[1]} as {story.person} has, for {days} days."
    chain = f"In {days} days, {other} gets {_sum(days, '*', story.amount, result)} {story.things(result)}."
    story.hand_over(other)
    story.tell(question, chain, result, days)
    return True


def _work(story: _Story) -> bool:
    each = story.draw(2, min(6, LARGEST // story.amount))
    if each is None or story.noun in (DOLLARS, MINUTES):
        return False
    result = each * story.amount
    verb, doing = story.rng.choice([("clean", "Cleaning"), ("paint", "Painting"), ("sort", "Sorting")])
    question = f"{story.person} needs {each} minutes to {verb} each of the {story.noun[1]}."
    chain = f"{doing} the {story.noun[1]}, {story.person} needs {_sum(each, '*', story.amount, result)} minutes."
    story.change_unit(MINUTES)
    story.tell(question, chain, result, each)
    return True


def _remainder(story: _Story) -> bool:
    sizes = [size for size in range(3, story.limits.group + 1) if story.amount > size and story.amount % size]
    if not sizes or story.noun in (DOLLARS, MINUTES) or story.amount > story.limits.grouped:
        return False
    size = story.rng.choice(sizes)
    groups, result = divmod(story.amount, size)
    packed = groups * size
    _, many = story.rng.choice(CONTAINERS)
    story.tell(
        f"{story.person} fills {many} of {size} with the {story.noun[1]} and keeps what is left over.",
        f"The full {many} hold {_sum(groups, '*', size, packed)}, so {_sum(story.amount, '-', packed, result)}"
        f" {'is' if result == 1 else 'are'} left over.",
        result,
        size,
    )
    return True


def _together(story: _Story) -> bool:
    partners = [
        name
        for name, amount in story.others.items()
        if story.amount + amount <= LARGEST and min(story.amount, amount) <= story.limits.change
    ]
    if not partners or story.noun == MINUTES or not story.limits.pools:
        return False
    partner = story.rng.choice(partners)
    theirs = story.others.pop(partner)
    result = story.amount + theirs
    story.tell(
        f"{partner} gives all their {story.noun[1]} to {story.person}.",
        f"With the {theirs} from {partner}, {story.person} has {_sum(story.amount, '+', theirs, result)}"
        f" {story.things(result)}.",
        result,
    )
    return True


def _difference(story: _Story) -> bool:
    """End the story by asking for the difference between two people's amounts."""
    smaller = [name for name, amount in story.others.items() if amount < story.amount and amount <= story.limits.change]
    if not smaller or story.noun == MINUTES:
        return False
    partner = story.rng.choice(smaller)
    theirs = story.others[partner]
    result = story.amount - theirs
    chain = (
        f"Compared with the {theirs} of {partner}, {story.person} has {_sum(story.amount, '-', theirs, result)} more."
    )
    story.final_question = f"How many more {story.noun[1]} does {story.person} have than {partner}?"
    story.chain.append(chain)
    story.numbers.append(result)
    story.amount = result
    return True


Family = Callable[[_Story], bool]
FAMILIES: dict[str, Family] = {
    "buy": _buy,
    "earn": _earn,
    "rest": _rest,
    "give": _give,
    "lose": _lose,
    "share": _share,
    "twice": _twice,
    "times": _times,
    "half": _half,
    "more": _more,
    "fewer": _fewer,
    "sell": _sell,
    "spend": _spend,
    "change": _change,
    "rate": _rate,
    "work": _work,
    "remainder": _remainder,
    "together": _together,
}
CLOSING: dict[str, Family] = {"difference": _difference}
"""Families that can only come last."""
CLOSING_PROBABILITY = 0.15
"""How often a closing family is tried for the last step."""


def _take_step(story: _Story, families: dict[str, Family]) -> None:
    """Apply the first family that fits, in random order.

    Few families fit an amount of 1 or 2, but one always does: `more` up to 97, and `fewer` above.
    """
    names = list(families)
    story.rng.shuffle(names)
    for name in names:
        if families[name](story):
            story.families.append(name)
            return
    raise AssertionError("no family fits, which 'more' and 'fewer' make impossible")


def make_problem(rng: random.Random, num_steps: int, limits: Limits) -> WordProblem:
    """Tell one story of exactly `num_steps` steps."""
    start = rng.randint(3, 60)
    story = _Story(rng, rng.choice(PEOPLE), rng.choice(NOUNS), start, limits, numbers=[start])
    story.question.append(f"{story.person} has {start} {story.things(start)}.")
    while len(story.families) < num_steps:
        is_last = len(story.families) == num_steps - 1
        if is_last and rng.random() < CLOSING_PROBABILITY and _difference(story):
            story.families.append("difference")
        else:
            _take_step(story, FAMILIES)
    verb = "need" if story.noun == MINUTES else "have"
    question = story.final_question or f"How many {story.noun[1]} does {story.person} {verb}?"
    return WordProblem(
        question=" ".join([*story.question, question]),
        solution="\n".join([*story.chain, f"#### {story.amount}"]),
        families=tuple(story.families),
        numbers=tuple(story.numbers),
    )


def generate(
    split: Split,
    *,
    seed: int = 0,
    min_steps: int = MIN_STEPS,
    max_steps: int = MAX_STEPS,
    limits: Limits = Limits(),
) -> Iterator[WordProblem]:
    """Yield different problems of one split without end; every number of steps is equally likely.

    Args:
        min_steps: Fewest reasoning steps.
        max_steps: Most reasoning steps.
        limits: Limits of the numbers.

    Raises:
        ValueError: if there is no such split, or the range of steps is impossible.
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    # Every step may bring in a newcomer, and no two people have the same name.
    if not 1 <= min_steps <= max_steps < len(PEOPLE):
        raise ValueError(f"impossible range of steps {min_steps}..{max_steps}")
    rng = random.Random(f"{split}/{seed}")
    seen: set[bytes] = set()
    while True:
        problem = make_problem(rng, rng.randint(min_steps, max_steps), limits)
        digest = hashlib.blake2b(problem.question.encode(), digest_size=12).digest()
        if problem.split == split and digest not in seen:
            seen.add(digest)
            yield problem
