"""Tests of the measured side: they need torch, and triton where they say so."""
