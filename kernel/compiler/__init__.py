"""The compile program: says what a Triton kernel compiles to, on a machine without a GPU.

A process of its own, because it imports triton and executes the user's module. It reads one request (a JSON object on
one line) from standard input and answers with JSON lines on standard output, each flushed; everything else that it,
the user's module or the compiler has to say goes to standard error. Every job runs in a forked child: a crash or an
endless loop costs that job alone. It writes into one private temporary folder, and removes it.

Needs the standard library and triton, and nothing else of this project: this folder alone can be copied and run
(``python -m kernel.compiler`` from a checkout). Python 3.9 and Triton 3.2 are enough.

Where to look: ``program`` the request and the answers, ``pool`` the children, ``jobs`` one job, ``sources`` what is
compiled, ``stages`` Triton's own stages, ``facts`` what its outputs say, ``failures`` an error in one line.
"""

from __future__ import annotations

from .program import main

__all__ = ["main"]
