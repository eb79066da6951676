"""The split of a file of problems."""

import json
from pathlib import Path

from examples.scripts import script


def test_the_parts_share_no_problem_and_do_not_depend_on_the_rest_of_the_file(tmp_path: Path) -> None:
    split, source = script("research/split.py"), tmp_path / "all.jsonl"
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    rows = [json.dumps({"question": f"How many are {number} and 3?", "answer": "…"}) for number in range(200)]
    source.write_text("\n".join(rows) + "\n")
    split.main(source, train, test)
    whole = train.read_text().splitlines(), test.read_text().splitlines()
    assert sorted([*whole[0], *whole[1]]) == sorted(rows)
    assert 20 < len(whole[1]) < 80
    source.write_text("\n".join(rows[::2]) + "\n")
    split.main(source, train, test)
    assert set(test.read_text().splitlines()) == set(whole[1]) & set(rows[::2])
