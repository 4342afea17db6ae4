"""The order of the stations, and nothing else: one file a step.

    prepare    pull → workspace, store                         ``orch pull``
    deploy     intent → push → outcome                         ``orch push``
    trial      lease → restart → ready → prove → load → look   ``orch bench``
    conclude   revert → prove → engine                         ``orch revert``
    drift, status                                              look, and say what differs

Whatever ends a step early (an error, Ctrl-C, a lost line), the same way out is taken: the load and the engine that
were started are stopped, the record says what happened, and the host's own watcher stands behind all of it.
"""
