"""Start vLLM on a checkpoint, watch it, and say in plain words what it does and why it died.

    preflight  what vLLM will make of a configuration, without starting it
    launch     what to serve, with which vLLM, by which command
    process    one vLLM with all its children: output, CPU use, end
    phases     log lines -> where the start-up is, and what is normal there
    causes     log lines -> root cause and what to do
    watch      the life of an engine as events: phases, slow, ready, died, restart
    tasks      what a model does: generate, score, classify or embed
    smoke      one request of each such kind, with finite numbers
    session    all of it together
    proxy      a pass-through that answers 503 while the engine restarts (extra `gguf2st[proxy]`)

Nothing here prints; `gguf2st serve` does.
"""
