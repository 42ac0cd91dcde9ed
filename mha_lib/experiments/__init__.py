"""The small models that chapters train: one task a file, and the training loop that they share."""
