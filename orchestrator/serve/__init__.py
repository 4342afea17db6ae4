"""Starts, awaits and stops an engine on its host: Engine → EngineProcess.

Owns the engine's state folder on the host (``<scratch>/engines/<engine>-<port>/``: who was started, when, for which
digest, and its log). Never touches a target file, and never a process that orch did not start, or that does not run
under the unit, container or restart command that the inventory names: each is told by its pid together with its start
time. What differs from launcher to launcher is done on the host, by ``host/launch_*.py``. What the engine loaded is
``provenance.py``'s question.

    starting.py  start, by the line or by a launcher     waiting.py  until it is ready; its log
    looking.py   what lives now, and what is owed        ending.py   stop, and the watcher's script
    words.py     who is in the way, for people    ranks.py    all of these on every node that the engine spans
"""

from orchestrator.serve.ending import restore_script
from orchestrator.serve.looking import owes_start, processes, ran_before
from orchestrator.serve.ranks import gone, present, restore_scripts, running, start, stop, wait_ready
from orchestrator.serve.starting import require_restartable
from orchestrator.serve.waiting import N_TRACEBACK_LINES, log_evidence, log_tail

__all__ = [
    "N_TRACEBACK_LINES",
    "gone",
    "log_evidence",
    "log_tail",
    "owes_start",
    "present",
    "processes",
    "ran_before",
    "require_restartable",
    "restore_script",
    "restore_scripts",
    "running",
    "start",
    "stop",
    "wait_ready",
]
