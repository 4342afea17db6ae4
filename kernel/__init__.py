"""The measured side: a sparse-MLA decode kernel, its reference, its check, and a small engine that serves with it.

Everything that imports torch or triton lives here and nowhere else. Nothing here imports ``orchestrator``, so that a
copy of this folder alone runs on a GPU host: ``python -m kernel.check`` and ``python -m kernel.engine`` from the
folder that holds it.
"""
