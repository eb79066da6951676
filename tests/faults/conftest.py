"""The trained workspace of the commands' tests."""

from cli.conftest import folder, here, model_folder, trained, trained_once

__all__ = ["folder", "here", "model_folder", "trained", "trained_once"]
