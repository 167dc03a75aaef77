"""Hostile input, made by rule and by seed: an input is named by (target, seed, index) and made again from it.

    draft.py       a GGUF taken apart, so that its pieces can lie
    hostile.py     numbers, texts and arrays that break programs
    ggufs.py       mutations of a GGUF: metadata.py, tensors.py, vocabulary.py, and broken bytes
    texts.py       mutations of expressions, arch maps, JSON
    folders.py     mutations of a checkpoint folder
    seeds.py       the sound files that mutations start from
    targets.py     what is called with an input: reading.py, planning.py, converting.py, commands.py
    promises.py    what must hold when an input is accepted
    harness.py     runs inputs under limits of time and memory, and tells a fault from a refusal
    coverage.py    the same targets, guided by coverage

`scripts/fuzz.py` runs any number of them; tests/test_fuzz.py runs a few of each target.
"""
