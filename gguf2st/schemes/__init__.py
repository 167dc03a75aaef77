"""Output formats for quantized weights. `targets` says which type may become which; `SCHEMES` has them by name.

Importing this package imports neither numpy nor torch nor numba: planning reads it.
"""

from gguf2st.schemes.base import Packed, Part, Scheme
from gguf2st.schemes.targets import MODES, SCHEMES, is_exact, targets

__all__ = ["MODES", "SCHEMES", "Packed", "Part", "Scheme", "is_exact", "targets"]
