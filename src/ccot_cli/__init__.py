"""Compressed Chain of Thought: reason in few continuous tokens, answer in text."""

__version__ = "0.1.0"
