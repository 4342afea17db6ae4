"""What an inventory may say of engines that span several nodes: each yield is a key and what is wrong there."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.inventory.yaml_tree import KeyPath
from orchestrator.records import Engine, Host, Target
from orchestrator.spanning import HEAD, RANK, placeholders_in


def misfits_of_host(host: Host) -> Iterator[tuple[str, str]]:
    """The numbers of a cluster's nodes, by key of ``slurm``."""
    slurm = host.slurm
    if slurm is not None and slurm.nodes % slurm.nodes_per_engine:
        size = slurm.nodes_per_engine
        yield "nodes_per_engine", f"wanted nodes: a multiple of {size}, found {slurm.nodes}; one engine needs {size}"


def misfits_of_span(target: Target, host: Host | None, engine: Engine | None) -> Iterator[tuple[KeyPath, str]]:
    """How a target's engine fits the number of nodes that its host gives to one."""
    if host is None or engine is None:
        return
    path, found = ("engines", engine.name), placeholders_in(engine)
    size = 1 if host.slurm is None else host.slurm.nodes_per_engine
    if size == 1:
        if found and engine.launcher.kind == "command":
            text = (
                f"{found[0]} is filled in on several nodes only, and target {target.name} has one on host {host.name}"
            )
            yield (*path, "command"), f"{text}: set nodes_per_engine under slurm"
        return
    spans = f"an engine that spans {size} nodes (target {target.name} on host {host.name})"
    if engine.launcher.kind != "command":
        yield (*path, "launcher"), f"orch itself starts {spans}: leave out launcher"
    elif RANK not in found or HEAD not in found:
        yield (*path, "command"), f"{spans} needs {RANK} and {HEAD} in command or env, to start another rank on each"
    if engine.restart_after_restore:
        text = f"not for {spans}: the watcher of one node cannot start the others; leave it out"
        yield (*path, "restart_after_restore"), text
