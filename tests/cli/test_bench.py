"""`ccot bench`."""

import json

from cli.running import Output, output


def test_bench_speaks_in_every_format(capsys: Output) -> None:
    small = ("bench", "--shape", "2x64", "--chain", "10", "--query", "5", "--repeats", "1", "--batch-size", "2")
    out, _ = output(capsys, *small, "--ratio", "0.1")
    assert [line.split()[0] for line in out.splitlines()[2:6]] == ["generate", "cot", "direct", "ccot"]
    out, _ = output(capsys, *small, "--ratio", "0.1", "--format", "json")
    assert {each["name"] for each in json.loads(out)["ratios"]} >= {"generate / cot", "cot / ccot, r = 0.1"}
    _, err = output(capsys, "bench", "--shape", "16x500", code=2)
    assert "--shape 16x512" in err
