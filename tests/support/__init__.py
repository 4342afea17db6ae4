"""What tests share: stand-ins whose truth is known."""
