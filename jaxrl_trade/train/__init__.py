"""Training: the pure update and its host loop, checkpoints, logs, progress."""
