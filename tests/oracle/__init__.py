"""Programs that know the right answer without our code: llama.cpp's converter, tokenizer and logits."""
