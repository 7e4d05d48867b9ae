"""Data sets: where their files lie, how they are read, and the batches of one rank."""
