"""Stands in for ``sgl_kernel``, which is published for GPUs only: every name imports, and calling one says what it is.

SGLang on a CPU then takes its paths in plain torch: its control plane is the real one, its speed says nothing.
"""

__version__ = "0.4.10"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args, **_kwargs):
        raise RuntimeError(f"no kernels for a CPU are installed: sgl_kernel.{name} is a stand-in")

    missing.__name__ = name
    return missing
