"""Finds what looks like a secret in an inventory, and never repeats it.

An inventory is committed, mailed and pasted. Passwords and tokens belong into the environment of the host's own
login; here they are refused by the name of their key, by their shape, or by the option that introduces them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from orchestrator.inventory.problems import Problem
from orchestrator.inventory.yaml_tree import KeyPath, Tree, dotted

ADVICE = "set it in the host's own environment (the login's profile), which the engine inherits"

# Anchored at the end, so that input_tokens, tokenizer and HF_TOKEN_PATH stay free.
_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:password|passwd|passphrase|pwd|secret|secret[_-]?key|token|api[_-]?key|apikey|access[_-]?key"
    r"|private[_-]?key|credentials?|auth)$",
    re.IGNORECASE,
)
_SHAPES = (
    ("a private key", re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")),
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{16,}")),
    ("an API key", re.compile(r"\b(?:sk|pk|nvapi|glpat)-[A-Za-z0-9_-]{16,}")),
    ("a GitHub token", re.compile(r"\b(?:gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{16,})")),
    ("a Slack token", re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}")),
    ("a cloud access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a signed web token", re.compile(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}")),
    ("a user and password in an address", re.compile(r"\w://[^\s/:@]+:[^\s/@]+@")),
)


def find_secrets(text: str, tree: Tree) -> list[Problem]:
    """Every secret-looking place of an inventory; ``text`` is searched too, for comments count."""
    return [*_by_shape(text, tree), *_by_name(tree)]


def _by_shape(text: str, tree: Tree) -> Iterator[Problem]:
    # the deepest path that begins on or before a line is what the line belongs to
    starts = sorted((line, len(path), path) for path, line in tree.lines.items())
    for number, line in enumerate(text.splitlines(), start=1):
        for what, shape in _SHAPES:
            if shape.search(line):
                owners = [path for start, _, path in starts if start <= number]
                is_comment = line.lstrip().startswith("#")
                key = "" if is_comment or not owners else dotted(owners[-1])
                yield Problem(number, key, f"looks like {what}; {ADVICE}")


def _by_name(tree: Tree) -> Iterator[Problem]:
    for path, value, is_key_value in _leaves(tree.root, ()):
        words = _words(value, path)
        is_argument = path[2:4] == ("check", "arguments")  # a kernel may well have one called stride_token
        if is_key_value and not is_argument and value not in (None, "") and _SECRET_NAME.search(str(path[-1])):
            yield Problem(tree.line_of(path), dotted(path), f"looks like a secret; {ADVICE}")
        elif any(_introduces_secret(words, i) for i in range(len(words))):
            yield Problem(tree.line_of(path), dotted(path), f"holds a secret's value; {ADVICE}")


def _leaves(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, object, bool]]:
    """Scalars with their path and whether they are the value of a key; a list of scalars counts as one leaf."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(entry, (*path, key))
    elif isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
        for i, entry in enumerate(value):
            yield from _leaves(entry, (*path, i))
    elif path:
        yield path, value, isinstance(path[-1], str)


def _words(value: object, path: KeyPath) -> list[str]:
    """The arguments of a command; anything else has none."""
    if path[-1] not in {"command", "reference", "client_command"}:
        return []
    if isinstance(value, list):
        return [str(word) for word in value]
    try:
        return shlex.split(str(value))
    except ValueError:
        return str(value).split()


def _introduces_secret(words: list[str], i: int) -> bool:
    """Whether a word is ``--api-key`` with a value, ``--api-key=value`` or ``HF_TOKEN=value``."""
    name, equals, value = words[i].partition("=")
    if not _SECRET_NAME.search(name.lstrip("-")):
        return False
    if equals:
        return bool(value)
    return name.startswith("--") and i + 1 < len(words) and not words[i + 1].startswith("-")
