"""Hides secrets in argument vectors and environments before they leave the host or reach a log.

Counts of tokens are not secrets: ``MAX_NUM_BATCHED_TOKENS`` stays, ``HF_TOKEN`` does not.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Sequence

MASK = "***"
_SECRET_WORDS = frozenset(
    ["key", "apikey", "token", "secret", "password", "passwd", "passphrase", "credential", "credentials", "auth"]
)
_LOGIN_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
MIN_SECRET_LENGTH = 6


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of that name holds a secret, judged by its words."""
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


def mask_environment(environment: Mapping[str, str]) -> Dict[str, str]:
    """The same names; the values of secrets, and logins inside URLs, replaced."""
    return {
        name: MASK if is_secret_name(name) else _LOGIN_IN_URL.sub(MASK, value) for name, value in environment.items()
    }


def mask_arguments(arguments: Sequence[str]) -> List[str]:
    """The same arguments; what follows a secret option (``--api-key X`` or ``--api-key=X``) replaced."""
    masked = []
    hide_next = False
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        is_option = argument.startswith("-")
        if hide_next and not is_option:
            masked.append(MASK)
        elif is_option and equals and is_secret_name(option):
            masked.append(option + "=" + MASK)
        elif not is_option and equals and is_secret_name(option):  # env NAME=value program
            masked.append(option + "=" + MASK)
        else:
            masked.append(_LOGIN_IN_URL.sub(MASK, argument))
        hide_next = is_option and not equals and is_secret_name(option)
    return masked


def mask_lines(lines: Sequence[str], environment: Mapping[str, str]) -> List[str]:
    """The same lines without the values of the environment's secrets; shorter values are too common to replace."""
    secrets = [value for name, value in environment.items() if is_secret_name(name) and len(value) >= MIN_SECRET_LENGTH]
    masked = []
    for line in lines:
        for secret in secrets:
            line = line.replace(secret, MASK)
        masked.append(line)
    return masked
