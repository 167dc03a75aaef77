"""What each ggml type means: `layout` (byte fields, free of torch) and the torch reference decoders.

Importing this package does not import torch; `gguf2st.quants.reference` does.
"""
