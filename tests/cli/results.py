"""A small table, as `ccot eval` prints it."""

from typing import Any


def row(method: str, ratio: float, accuracy: float, seconds: float) -> dict[str, Any]:
    return {
        "method": method,
        "ratio": ratio,
        "n": 1000,
        "accuracy": accuracy,
        "low": max(0.0, accuracy - 0.03),
        "high": min(1.0, accuracy + 0.03),
        "seconds_mean": seconds,
        "seconds_p95": 1.2 * seconds,
        "contemplation_tokens_mean": 8.4,
        "truncated_share": 0.01,
        "training": {},
        "by_steps": {"2": {"accuracy": accuracy}, "10": {"accuracy": accuracy / 2}},
    }


RESULT = {
    "rows": [
        row("direct", 0.0, 0.08, 0.007),
        row("ccot", 0.1, 0.6, 0.01),
        row("pause", 0.1, 0.1, 0.02),
        row("cot", 1.0, 0.98, 0.09),
    ],
    "pairs": [{"method": "ccot", "ratio": 0.1, "than": "direct", "than_ratio": 0.0, "p": 1e-9}],
    "traits": {"ccot": {"contentful": "yes", "format": "continuous", "inference": "variable length"}},
    "model": "my_model",
    "data": "test.jsonl",
    "batch_size": 32,
    "device": "cpu",
}
