"""Generate word problems with the breadth of what people write.

Some are one form of a family (`families.py`), others are stories of up to ten steps (`stories.py`). A problem depends
on nothing but its split, index and seed.

A problem's signature is its family and its numbers. It decides the split in which the problem may appear, so that no
two splits share a question. One form in ten is held out: only the problems of the split `unseen` have such forms.
"""

import hashlib
import random
from collections.abc import Iterator
from typing import Literal

from ccot_cli.data.families import LARGEST, WordProblem, families, tell
from ccot_cli.data.stories import MOST_STEPS, tell_story

Split = Literal["train", "validation", "test", "unseen"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test", "unseen")
STORY_PROBABILITY = 0.25
"""How often a problem is a story, if its number of steps allows both."""
STORIES = "stories"
MOST_MISSES = 20_000
"""Problems in a row that are of another split, too large or known, after which there are taken to be no more."""


def subsets() -> list[str]:
    """Name the parts of the data set: the files of families, and the stories."""
    return sorted({STORIES, *(family.subset for family in families())})


def generate(
    split: Split,
    *,
    seed: int = 0,
    steps: tuple[int, int] | None = None,
    subset: str | None = None,
    largest: int = LARGEST,
) -> Iterator[WordProblem]:
    """Yield different problems of one split until no more are found; the forms of families are drawn alike.

    Args:
        steps: Fewest and most reasoning steps; None: any.
        subset: One of `subsets()`; None: all.
        largest: Largest number, given or computed.

    Raises:
        ValueError: if there is no such split or subset, no problem has so many steps, or there are no more problems.
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    if subset is not None and subset not in subsets():
        raise ValueError(f"no subset {subset!r}; there are {', '.join(subsets())}")
    fewest, most = steps or (1, MOST_STEPS)
    if not 1 <= fewest <= most <= MOST_STEPS:
        raise ValueError(f"impossible range of steps {fewest}..{most}; there are problems of 1 to {MOST_STEPS}")
    is_unseen = split == "unseen"
    choices = [
        (family, form)
        for family in families()
        if subset in (None, family.subset) and fewest <= len(family.steps) <= most
        for form in (family.unseen if is_unseen else family.forms)
    ]
    story_probability = {None: STORY_PROBABILITY if choices else 1.0, STORIES: 1.0}.get(subset, 0.0)
    if not choices and not story_probability:
        raise ValueError(f"no problem of {subset!r} has {fewest} to {most} steps")
    rng = random.Random(f"everyday/{split}/{seed}")
    seen: set[bytes] = set()
    num_missed = 0
    while num_missed < MOST_MISSES:
        if rng.random() < story_probability:
            problem = tell_story(rng, rng.randint(fewest, most), is_unseen=is_unseen)
        else:
            problem = tell(rng, *rng.choice(choices))
        digest = hashlib.blake2b(problem.question.encode(), digest_size=12).digest()
        is_wanted = problem.split == ("test" if is_unseen else split) and max(problem.numbers) <= largest
        if is_wanted and digest not in seen:
            seen.add(digest)
            num_missed = 0
            yield problem
        else:
            num_missed += 1
    raise ValueError(f"there are only {len(seen):,} problems of this kind to be found")
