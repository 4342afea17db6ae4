"""The engine's command line, as one frozen record."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from kernel.engine.vocabulary import N_BYTE_TOKENS


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What an engine is started with.

    Attributes:
        host, port: where it listens.
        model_name: the name that requests send and ``/v1/models`` lists.
        layers, heads, hidden, vocab, seed: shape and seed of the random weights.
        max_model_len: most tokens of prompt and output together.
        max_batch: most sequences in one decode step.
        n_pages: KV pages of each layer's pool; page 0 is kept for padding.
        page_size: tokens a page.
        topk: most context tokens that one decode step attends to: the most recent ones.
        prefill_chunk: most prompt tokens computed between two decode steps.
        device: ``auto`` (CUDA where there is one), ``cpu`` or ``cuda``.
        threads: torch's threads on a CPU.
        kernel_module: dotted name of the module whose ``sparse_mla_decode`` runs.
    """

    host: str = "127.0.0.1"
    port: int
    model_name: str = "sparse-mla-random"
    layers: int = 4
    heads: int = 16
    hidden: int = 512
    vocab: int = 4096
    seed: int = 0
    max_model_len: int = 2048
    max_batch: int = 128
    n_pages: int = 1024
    page_size: int = 64
    topk: int = 512
    prefill_chunk: int = 256
    device: str = "auto"
    threads: int = 1
    kernel_module: str = "kernel.sparse_mla_decode"


def parse_options(argv: list[str] | None = None) -> EngineOptions:
    """The options, or argparse's exit 2 with the reason."""
    parser = argparse.ArgumentParser(
        prog="python -m kernel.engine",
        description="A small decode engine with random weights, serving OpenAI completions with a sparse-MLA kernel.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=_positive, required=True, help="port to listen on")
    parser.add_argument("--model-name", default=EngineOptions.model_name, help="the name that requests send")
    for name, text in {
        "layers": "layers",
        "heads": "query heads",
        "hidden": "width of the residual stream",
        "vocab": f"vocabulary; at least the {N_BYTE_TOKENS} bytes",
        "max_model_len": "most tokens of prompt and output together",
        "max_batch": "most sequences in one decode step",
        "n_pages": "KV pages; page 0 is kept for padding",
        "page_size": "tokens a KV page",
        "topk": "most context tokens of a decode step: the most recent",
        "prefill_chunk": "most prompt tokens computed between two decode steps",
        "threads": "torch threads on a CPU",
    }.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=_positive, default=getattr(EngineOptions, name), help=text)
    parser.add_argument("--seed", type=int, default=EngineOptions.seed, help="of the random weights")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where the model runs")
    parser.add_argument("--kernel-module", default=EngineOptions.kernel_module, help="dotted name of the kernel file")
    options = EngineOptions(**vars(parser.parse_args(argv)))
    if options.vocab < N_BYTE_TOKENS:
        parser.error(f"--vocab {options.vocab}: at least {N_BYTE_TOKENS}, for text prompts are bytes")
    if options.port > 65_535:
        parser.error(f"--port {options.port}: at most 65535")
    if options.n_pages < 2:
        parser.error(f"--n-pages {options.n_pages}: at least 2, for page 0 is kept for padding")
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number
