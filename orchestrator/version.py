"""The version, alone, so that nothing is imported to read it."""

VERSION = "0.1.0"
