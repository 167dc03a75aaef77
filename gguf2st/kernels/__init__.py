"""Batch decoders: (n_blocks, nbytes) uint8 -> (n_blocks, block) values. They know nothing of tensors or names."""
