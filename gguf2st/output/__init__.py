"""What a checkpoint folder is made of: where it grows, its shards, its small files, and what may replace it."""
