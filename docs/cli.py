"""Write docs/cli.md: every command's help, as Typer writes it down (`make docs`)."""

import html
import re
import subprocess
import sys

COMMAND = [sys.executable, "-m", "typer", "ccot_cli.cli.app", "utils", "docs", "--name", "ccot", "--title", "Commands"]


def text() -> str:
    """The page; lines that show a command stand as code."""
    made = subprocess.run(COMMAND, capture_output=True, text=True, check=True).stdout
    page = re.sub(r"^(ccot )", r"    \1", html.unescape(made), flags=re.MULTILINE)
    # In the list of commands, Typer cuts their first sentences off.
    sentences = dict(re.findall(r"^## `ccot ([\w-]+)`\n\n(.+)$", page, re.MULTILINE))
    page = re.sub(
        r"^\* `([\w-]+)`: .*\.\.\.$",
        lambda found: f"* [`{found[1]}`](#ccot-{found[1]}): {sentences[found[1]]}",
        page,
        flags=re.MULTILINE,
    )
    return "\n".join(line.rstrip() for line in page.strip().splitlines()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
