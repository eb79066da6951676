"""`ccot verify` reads every byte."""

import json
from pathlib import Path

from cli.running import Output, output


def test_verify_finds_a_changed_byte_and_a_lost_file(trained: Path, capsys: Output) -> None:
    out, _ = output(capsys, "verify")
    assert out.endswith(" files: sound\n")
    changed, lost = trained / "train-psi/r0.10/end.safetensors", trained / "score/r0.10/shard-00000.safetensors"
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    lost.unlink()
    out, _ = output(capsys, "verify", code=4)
    assert f"{changed}: does not hold the bytes that were written; remove it, then ccot train-psi --ratio 0.1" in out
    assert f"{lost}: is missing; ccot score --ratio 0.1" in out
    out, _ = output(capsys, "verify", "--format", "json", code=4)
    assert {entry["path"] for entry in json.loads(out)["damaged"]} == {str(changed), str(lost)}
