"""``python -m orchestrator`` is ``orch``."""

from orchestrator.cli import main

main()
