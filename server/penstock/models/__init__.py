"""Models: one decoder, and recipes that map families of checkpoints to it."""
