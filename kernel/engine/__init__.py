"""A small, real decode engine around the kernel: continuous batching, paged packed KV, OpenAI completions over HTTP.

Where each thing lives, in the order in which a request meets it:
    options.py      the command line
    server.py       HTTP: routes, streaming, signals
    protocol.py     OpenAI JSON ↔ checked records; every refusal
    vocabulary.py   text ↔ token ids
    worker.py       the thread that steps the model, and its mailbox
    scheduler.py    who runs in the next step; admission by pages
    pages.py        which pages are free
    loading.py      the kernel module, imported so that its digest cannot lie
    runner.py       sequences → tensors → tokens
    model.py        the network, with random weights from a seed
    graphs.py       CUDA graphs of the decode step, one a batch bucket
    metrics.py      counters and the Prometheus text

torch is imported by the worker's thread alone (loading, runner, model, graphs), so that the port answers within a
second and says 503 until the engine is warm.
"""
