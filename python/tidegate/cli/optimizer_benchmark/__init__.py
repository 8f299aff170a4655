"""`tidegate bench optimizer`: steps of optimizers beside each other, interleaved in one process."""
