"""Callbacks by which trainers tell muster of their steps. Each module needs the trainer's package, and nothing else does."""
