"""Gives every request of a load client a time limit where the client itself has none.

SGLang's and vLLM's client wait six hours for an answer that stalls. They ask with aiohttp, whose sessions take a limit
for a whole request: this file lowers it, and touches nothing else of them. A request that takes longer then fails as
any other does, and the client counts it as failed.

It is sent to the GPU host under the name ``sitecustomize.py``, in a folder of its own that ``driver.py`` puts first on
the client's ``PYTHONPATH``, so it works for a module, a script and a program that starts one of those. A
``sitecustomize`` that the client's environment has is run as if this one were not there. It must not import anything of
orch, and runs on Python 3.8 or newer.

Environment: ``ORCH_REQUEST_TIMEOUT_S``; ``ORCH_REQUEST_LIMIT_NOTE``, a file that then says which aiohttp has the limit.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any


def run_hidden() -> None:
    """Runs the ``sitecustomize`` that Python would have found without this folder."""
    own = Path(__file__).resolve().parent
    spec = PathFinder.find_spec("sitecustomize", [place for place in sys.path if Path(place).resolve() != own])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def limit_sessions(aiohttp: Any, timeout_s: float) -> None:
    """Makes every session of this process give up a request after so long, if it would not have done so before."""
    make = aiohttp.ClientSession.__init__

    @functools.wraps(make)
    def make_limited(session: Any, *args: Any, **named: Any) -> None:
        wished = named.get("timeout")
        if not isinstance(wished, aiohttp.ClientTimeout):
            wished = aiohttp.ClientTimeout()
        if not wished.total or wished.total > timeout_s:
            wished = copy.copy(wished)
            object.__setattr__(wished, "total", timeout_s)  # it is frozen; its class differs between versions
        make(session, *args, **{**named, "timeout": wished})

    aiohttp.ClientSession.__init__ = make_limited


def main() -> None:
    """The limit, when this process is a client's."""
    timeout_s = os.environ.get("ORCH_REQUEST_TIMEOUT_S")
    if timeout_s is None:
        return
    try:
        import aiohttp
    except ImportError:  # not the interpreter that asks
        return
    limit_sessions(aiohttp, float(timeout_s))
    Path(os.environ["ORCH_REQUEST_LIMIT_NOTE"]).write_text(f"aiohttp {aiohttp.__version__}")


if __name__ == "sitecustomize":
    try:
        run_hidden()
    finally:
        main()
