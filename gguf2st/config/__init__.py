"""config.json and generation_config.json: what a map's [config] table cannot say with arithmetic alone.

The functions in `FUNCTIONS` are called from maps (`"*rope" = "rope(head_dim)"`), get the file's scope first, and
return the config.json keys they are responsible for; a family with a rule of its own adds a module here. Old and new
spellings are written together, so that transformers 4.5x (rope_theta, rope_scaling, torch_dtype), 5.x (rope_parameters,
dtype) and vLLM read the same model.
"""

from gguf2st.config import (
    attention,
    classic,
    deci,
    deepseek_v4,
    encoders,
    falcon,
    gemma,
    glm_gptoss,
    granite,
    grok,
    hunyuan_afmoe,
    hunyuan_vl,
    hybrid,
    kimi,
    latent,
    layer_rules,
    ministral,
    mla,
    muse,
    openelm,
    partial,
    plamo,
    qwen4_exp,
    recent_moe,
    rope,
    step,
    windows,
)
from gguf2st.config.files import generation_config, nested, token_ids, with_dtype
from gguf2st.config.functions import FUNCTIONS, FileScope, Function, function
from gguf2st.config.pooling import embedding_files

__all__ = [
    "FUNCTIONS",
    "FileScope",
    "Function",
    "attention",
    "classic",
    "deci",
    "deepseek_v4",
    "embedding_files",
    "encoders",
    "falcon",
    "function",
    "gemma",
    "generation_config",
    "glm_gptoss",
    "granite",
    "grok",
    "hunyuan_afmoe",
    "hunyuan_vl",
    "hybrid",
    "kimi",
    "latent",
    "layer_rules",
    "ministral",
    "mla",
    "muse",
    "nested",
    "openelm",
    "partial",
    "plamo",
    "qwen4_exp",
    "recent_moe",
    "rope",
    "step",
    "token_ids",
    "windows",
    "with_dtype",
]
