"""Change some settings, and say in plain words why a value is refused."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ccot_cli.config import PATH_SETTINGS, Settings, by_dotted_name
from ccot_cli.errors import UsageError
from ccot_cli.files import absolute, expanded
from ccot_cli.names import MODELS


def with_absolute_paths(changes: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Return changed settings with absolute paths in place of those relative to `folder`.

    What is no existing file or folder, such as a name on the Hugging Face hub, stays as it is.
    """
    return {name: _absolute(value, folder) if name in PATH_SETTINGS else value for name, value in changes.items()}


def _absolute(value: object, folder: Path) -> object:
    # A folder that happens to be called "embedded" does not hide the model or data of that name.
    if not isinstance(value, str) or value in MODELS:
        return value
    path = folder / expanded(value)
    return str(absolute(path)) if path.exists() else value


def override(settings: Settings, changes: Mapping[str, object]) -> Settings:
    """Return the settings with some of them changed, each named as `section.setting`.

    Raises:
        UsageError: if a value is refused, or no setting has that name.
    """
    values = settings.model_dump()
    for name, value in changes.items():
        *sections, key = name.split(".")
        target = values
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):  # a setting, which has no settings of its own
                raise _unknown(name)
        target[key] = value
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise refusal(error) from None


def refusal(error: ValidationError, *, where: str = "") -> UsageError:
    """Turn the first error that pydantic found into one for people.

    Args:
        where: Put before the message, for example `ccot.yaml, line 3: `.
    """
    errors = error.errors()
    first = errors[0]
    if first["type"] == "extra_forbidden":
        return _unknown(".".join(map(str, first["loc"])), where=where)
    name = _setting_of(first)
    # Of a list, the element, unless it is one that is missing.
    element = _element_of(first) if name and first["type"] != "missing" else []
    shown = ".".join([name or "settings", *map(str, element)])
    got = "" if isinstance(first["input"], dict) else f" (got {first['input']!r:.80})"  # A dict is a whole section.
    # A value that may be of several kinds has an error for each; other elements of a list have errors of their own.
    of_value = [each for each in errors if (_setting_of(each), _element_of(each)) == (name, _element_of(first))]
    reasons = dict.fromkeys(map(_in_plain_words, of_value))
    *others, last = reasons
    said = " or ".join([*(each.removesuffix(" is needed") for each in others), last])
    return UsageError(f"{where}{shown}: {said}{got}", fix=_fix_for(name))


def _setting_of(error: ErrorDetails) -> str:
    """Return the name of the setting that was refused, without its parts, or the kinds that it may have."""
    names, parts = {*_setting_names()}, [str(part) for part in error["loc"]]
    return next((name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in names), "")


def _element_of(error: ErrorDetails) -> list[int]:
    """Return which element of a list was refused, as its number; empty for a value that is no element."""
    return [part for part in error["loc"] if isinstance(part, int)]


def _unknown(name: str, *, where: str = "") -> UsageError:
    nearest = get_close_matches(name, _setting_names(), n=1)
    fix = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(Settings.model_fields)}"
    return UsageError(f"{where}no setting is called {name}", fix=fix)


_KINDS = {
    "int": "a whole number is needed",
    "float": "a number is needed",
    "finite": "a number is needed",
    "bool": "true or false is needed",
    "string": "a text is needed",
    "tuple": "a list is needed",
    "model": "settings are needed, each as name: value",
}
"""What to say of a value of the wrong kind, by the first word of pydantic's name for the error."""


def _grouped(limit: float) -> str:
    return f"{limit:,}".removesuffix(".0")


def _in_plain_words(error: ErrorDetails) -> str:
    limits = error.get("ctx", {})
    match error["type"]:
        case "greater_than":
            return f"a number above {limits['gt']:g} is needed"
        case "greater_than_equal":
            return f"a number of at least {limits['ge']:g} is needed"
        case "less_than_equal":
            return f"a number of at most {_grouped(limits['le'])} is needed"
        case "literal_error":
            return f"{limits['expected']} is needed"
        case "missing" | "too_short":
            return "more values are needed"
        case "too_long":
            return "fewer values are needed"
        case "string_too_short":
            return "a text that is not empty is needed"
    reason = error["msg"].removeprefix("Value error, ")
    return _KINDS.get(error["type"].partition("_")[0], f"{reason[:1].lower()}{reason[1:]}")


def _fix_for(name: str) -> str:
    """Say what a setting is by default, or what settings a section has."""
    value: object = Settings().model_dump(mode="json")
    for part in filter(None, name.split(".")):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, dict):
        return f"{name} has {', '.join(value)}" if name else f"there are {', '.join(value)}"
    return f"the default is {json.dumps(value, ensure_ascii=False)}"


def _setting_names() -> list[str]:
    sections = Settings().model_dump()
    return [*sections, *by_dotted_name(sections)]
