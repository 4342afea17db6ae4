"""Station: ``Variant`` → ``Verdict``: what a variant compiles to, before any GPU time is spent on it."""
