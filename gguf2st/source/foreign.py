"""What a file is, by its first bytes: a GGUF, or something else that was meant to be one."""

from struct import unpack_from

MAGIC = b"GGUF"
START_NBYTES = 512
"""How much of a file is read to tell what it is."""


def describe_foreign(start: bytes, size: int) -> tuple[str, str]:
    """What a file that is not a GGUF is: (message, hint).

    Args:
        start: its first bytes, up to START_NBYTES.
        size: of the whole file in bytes.
    """
    again = "download the file again"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if size == 0:
        return "the file is empty", again
    if start.startswith(b"version https://git-lfs"):
        return (
            "this is a Git LFS pointer, not the model",
            "run `git lfs pull` where it was cloned, or name the repository itself: org/repo:QUANT",
        )
    if text.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "this is a web page, not a GGUF", "a Hub file's own address contains /resolve/, not /blob/"
    if start.startswith(b"PK\x03\x04"):
        return "this is a zip archive or a PyTorch checkpoint, not a GGUF", "unzip it, or use the checkpoint as it is"
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"(\xb5/\xfd", b"7z\xbc\xaf")):
        return "this is a compressed archive, not a GGUF", "unpack it first"
    if start[8:9] == b"{" and 2 <= unpack_from("<Q", start)[0] <= size - 8:
        return "this is a safetensors file, not a GGUF", "it needs no conversion"
    if start.startswith((b"lmgg", b"fmgg", b"tjgg")):
        return "this is a GGML file from before GGUF (2023)", "get a GGUF conversion of the model"
    if not any(start):
        return "the file starts with zeros: an unfinished download", again
    if text and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start):
        return f"this is a text file, not a GGUF: {start.strip()[:80].decode().splitlines()[0]!r}", again
    return f"this is not a GGUF: it starts with {start[:4]!r} instead of {MAGIC!r}", again
