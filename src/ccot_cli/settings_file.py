"""Read `ccot.yaml`. Errors name the file and the line."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ccot_cli.config import PATH_SETTINGS, Settings, by_dotted_name
from ccot_cli.errors import UsageError
from ccot_cli.overrides import override, refusal, with_absolute_paths


class _StrictLoader(yaml.SafeLoader):
    """YAML without aliases (a few of them can expand to gigabytes) and repeated keys (which are mistakes)."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are refused", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is set twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def load_settings(path: Path) -> Settings:
    """Read a settings file; a setting that it leaves out has its default.

    Raises:
        UsageError: if it cannot be read or a setting is refused; names the line and the nearest known setting.
    """
    try:
        loader = _StrictLoader(path.read_bytes())
        root = loader.get_single_node()
        values = None if root is None else loader.construct_document(root)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", fix="check who owns it") from None
    # YAML raises RecursionError for a thousand brackets, ValueError for an impossible date, and the others for a value
    # that is not of the kind that its tag says.
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else f"{path}"
        reason = "a value is not of the kind that its tag says"
        if isinstance(error, yaml.YAMLError | ValueError | RecursionError):
            reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        fix = "repair the file; ccot init in another folder writes a sound one"
        raise UsageError(f"{where}: {reason}", fix=fix) from None
    if root is None:
        fix = "ccot init in another folder writes a sound one; {} in the file means all defaults"
        raise UsageError(f"{path} holds no settings", fix=fix)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        line = _line_of(root, error.errors()[0]["loc"])
        raise refusal(error, where=f"{path}, line {line}: ") from None
    values_by_name = by_dotted_name(settings.model_dump())
    written = {name: values_by_name[name] for name in PATH_SETTINGS}
    absolute = with_absolute_paths(written, path.parent)
    return settings if absolute == written else override(settings, absolute)


def setting_lines(path: Path) -> dict[str, int]:
    """Return the line of every setting that a settings file names, by dotted name; the file must have been read."""
    root = _StrictLoader(path.read_bytes()).get_single_node()
    lines: dict[str, int] = {}
    for key, value in root.value if isinstance(root, yaml.MappingNode) else []:
        inner = value.value if isinstance(value, yaml.MappingNode) else []
        lines |= {f"{key.value}.{each.value}": each.start_mark.line + 1 for each, _ in inner}
        if not inner:
            lines[key.value] = key.start_mark.line + 1
    return lines


def _line_of(node: yaml.Node | None, location: tuple[int | str, ...]) -> int:
    """Return the line number of a setting, or of the innermost section around it that the file has."""
    line = 1
    for part in location:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        pair = next(((key, value) for key, value in pairs if key.value == part), None)
        if pair is None:
            break
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line
