"""The inventory that ``orch init`` writes: a filled SGLang example with every key explained. Text only."""

from __future__ import annotations


def template() -> str:
    """A commented inventory.yaml that loads as it is; the user changes addresses and paths."""
    return _TEMPLATE


_TEMPLATE = """\
# yaml-language-server: $schema=inventory.schema.json
#
# What orch tunes, and where. Never a password or token here: the engine inherits the environment of the host's own
# login. Check the whole chain with `orch doctor`, then fetch the kernel with `orch pull`.
version: 1

# Machines reached by SSH. The name is used as the address, or as the alias in your ~/.ssh/config; so an entry may be
# empty: `gpu-a:`
hosts:
  gpu-a:
    # ssh: 10.0.0.7                   # address or alias, when it is not the name above
    # user: ubuntu                    # these four override your ssh configuration
    # port: 22
    # identity: ~/.ssh/id_ed25519
    # jump: me@gateway:22
    # known_hosts: known_hosts        # relative to this file
    # ssh_config: ssh_config
    # connect_timeout_s: 20
    # scratch_dir: /var/tmp/orch      # on the host: logs, results, caches
  # here:
  #   transport: local                # you work on the GPU host itself

# The program that serves, as it is started on the host. It runs without a shell: no $VARIABLES, no pipes.
engines:
  sglang:
    kind: sglang                      # or vllm, llama-server, transformers, kernel, other; says how it is asked
    python: /opt/sglang/bin/python    # the interpreter that runs the engine; orch asks it which file it would import
    command: >-
      /opt/sglang/bin/python -m sglang.launch_server
      --model-path /models/deepseek --host 127.0.0.1 --port 30000 --enable-metrics
    base_url: http://127.0.0.1:30000  # as seen from the host itself
    ready_timeout_s: 900
    # ready_path: /health             # answers 200 when ready; these two are known of the kind
    # cache_flush_path: /flush_cache  # for workloads with cache_policy: flush
    # model: deepseek                 # the name that requests send, where the engine asks for one
    # launcher: command               # or a mapping: systemd, container, manual; see docs/launchers.md
    # cwd: /opt/sglang
    # env: {TRITON_PRINT_AUTOTUNING: 1}
    # stop_signal: TERM               # TERM, INT or QUIT; KILL follows after stop_grace_s
    # stop_grace_s: 30
    # log: /var/log/sglang.log
    # loaded_path: /loaded            # where the engine itself can tell the digests that it loaded
    # restart_after_restore: true     # start it again when the host had to restore the file by itself
  # vllm:
  #   kind: vllm
  #   python: /opt/vllm/bin/python
  #   command: /opt/vllm/bin/vllm serve /models/deepseek --host 127.0.0.1 --port 8000
  #   base_url: http://127.0.0.1:8000

# The files to tune. The first holds the kernel: the name of its @triton.jit function. `host` and `engine` may be left
# out while there is one of each.
targets:
  flash_mla:
    host: gpu-a
    engine: sglang
    module: sglang.srt.layers.attention.flash_mla_sm120_triton  # as the engine imports the first file
    kernel: flash_mla_decode_kernel
    # check:                          # what `orch check` cannot read in the source: how the engine calls the kernel
    #   arguments:                    # by name or pattern: a type (quote one that begins with *), or the value passed
    #     q_ptr: "*bf16"
    #     "*_ptr": "*fp8e4nv"         # the first that fits counts, an exact name before any pattern
    #     "*_stride*": i32:16         # a multiple of 16; i32:1 is always 1
    #     sm_scale: fp32
    #     SPLITS: 8
    #   varies: [batch]               # what changes between launches, and should be in the autotune key
    #   reference: /opt/sglang/bin/python check_mla.py {file}  # judges a variant on the host; 0: it is right
    #   reference_timeout_s: 600
    #   arch: [sm_120, sm_90]         # where the host does not tell its own
    files:
      - /opt/sglang/lib/python3.12/site-packages/sglang/srt/layers/attention/flash_mla_sm120_triton.py
      # - path: /opt/sglang/lib/python3.12/site-packages/sglang/srt/layers/attention/another.py
      #   module: sglang.srt.layers.attention.another

# Loads. Every key has a default, so an entry may be empty.
workloads:
  short:
    input_tokens: 1024
    output_tokens: 512
    prompts_per_concurrency: 10       # measured requests = this x concurrency
    warmup_per_concurrency: 2         # discarded requests before each measured load
    cache_policy: flush               # or keep: the engine's prefix cache before each concurrency
    # client: sglang                  # or vllm, guidellm, aiperf; loadgen, orch's own, when left out
    # tokenizer: /models/deepseek     # these three only for those: what their prompts are made with,
    # client_command: /opt/sglang/bin/python -m sglang.benchmark.serving  # how they are called on the host,
    # client_env: {HF_HUB_OFFLINE: 1}                                     # and their environment
    # seed: 42
    # request_timeout_s: 120
    # load_timeout_s: 3600
  # by-vllm: {recipe: short, client: vllm, tokenizer: /models/deepseek}  # the same load by another client
"""
