"""One GET from the host itself: straight, without a proxy, with a deadline."""

from __future__ import annotations

import http.client
from typing import Optional, Tuple
from urllib.parse import urlsplit


def get(url: str, timeout_s: float, max_bytes: int) -> Tuple[Optional[int], bytes]:
    """The status and the first bytes of the answer; without an answer None and the reason as text."""
    parts = urlsplit(url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", (parts.path or "/") + ("?" + parts.query if parts.query else ""))
        response = connection.getresponse()
        return response.status, response.read(max_bytes)
    except (OSError, http.client.HTTPException) as exc:
        return None, (str(exc) or type(exc).__name__).encode("utf-8", "backslashreplace")
    finally:
        connection.close()
