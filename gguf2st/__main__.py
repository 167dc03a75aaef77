"""`python -m gguf2st`."""

from gguf2st.cli import main

main()
