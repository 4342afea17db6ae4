"""Tests of orch; a package, so that they can share tests/support."""
