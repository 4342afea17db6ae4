"""Real engines and real load clients: what installs them, and whole experiments with them. See ``conftest.py``."""
