"""Names of what lies on the Hub, and the addresses that pages and download links have."""

import pytest

from gguf2st.hub.reference import Reference, parse_address, parse_reference


@pytest.mark.parametrize(
    ("src", "repo", "revision", "path", "quant"),
    [
        ("org/repo", "org/repo", "", "", ""),
        ("org/Qwen2.5-7B-GGUF:Q4_K_M", "org/Qwen2.5-7B-GGUF", "", "", "Q4_K_M"),
        ("org/repo:UD-Q4_K_XL", "org/repo", "", "", "UD-Q4_K_XL"),
        ("org/repo@v1.0", "org/repo", "v1.0", "", ""),
        ("org/repo@v1.0:Q4_0", "org/repo", "v1.0", "", "Q4_0"),
        ("org/repo:Q4_0@v1.0", "org/repo", "v1.0", "", "Q4_0"),
        ("org/repo:My model Q4.gguf", "org/repo", "", "", "My model Q4.gguf"),
        ("hf://org/repo", "org/repo", "", "", ""),
        ("hf:/org/repo/m.gguf", "org/repo", "", "m.gguf", ""),  # as pathlib writes it
        ("hf://models/org/repo", "org/repo", "", "", ""),
        ("hf://models/repo", "models/repo", "", "", ""),
        ("hf://org/repo/sub/m.gguf", "org/repo", "", "sub/m.gguf", ""),
        ("hf://org/repo/m.gguf@rev", "org/repo", "rev", "m.gguf", ""),
        ("hf://org/repo@rev/m.gguf", "org/repo", "rev", "m.gguf", ""),
        ("hf://org/repo@rev/a@b.gguf", "org/repo", "rev", "a@b.gguf", ""),
        ("hf://org/repo/a@b.gguf", "org/repo", "", "a@b.gguf", ""),
        ("hf://org/repo@refs/pr/3/m.gguf", "org/repo", "refs/pr/3", "m.gguf", ""),
        ("hf://org/repo/m.gguf@refs/pr/3", "org/repo", "refs/pr/3", "m.gguf", ""),
        ("hf://org/repo@a%2Fbranch/m.gguf", "org/repo", "a/branch", "m.gguf", ""),
        ("hf://org/repo@rev", "org/repo", "rev", "", ""),
        ("hf://org/repo@rev:Q4_0", "org/repo", "rev", "", "Q4_0"),
        ("hf://org/repo/sub:Q4_0", "org/repo", "", "sub", "Q4_0"),
        ("https://huggingface.co/org/repo", "org/repo", "", "", ""),
        ("https://huggingface.co/org/repo/", "org/repo", "", "", ""),
        ("huggingface.co/org/repo", "org/repo", "", "", ""),
        ("hf.co/org/repo:Q4_K_M", "org/repo", "", "", "Q4_K_M"),
        ("https://HF.co/org/repo", "org/repo", "", "", ""),
        ("https://huggingface.co/org/repo/tree/main", "org/repo", "main", "", ""),
        ("https://huggingface.co/org/repo/tree/main/Q4_0", "org/repo", "main", "Q4_0", ""),
        ("https://huggingface.co/org/repo/blob/main/m.gguf", "org/repo", "main", "m.gguf", ""),
        ("https://huggingface.co/org/repo/resolve/v1/a/my%20m.gguf?download=true", "org/repo", "v1", "a/my m.gguf", ""),
        ("https://huggingface.co/org/repo/raw/main/m.gguf", "org/repo", "main", "m.gguf", ""),
        ("https://huggingface.co/org/repo?show_file_info=m.Q4_0.gguf", "org/repo", "", "m.Q4_0.gguf", ""),
        ("https://huggingface.co/org/repo/tree/main?show_file_info=m.gguf", "org/repo", "main", "m.gguf", ""),
        ("https://huggingface.co/org/repo/blob/refs%2Fpr%2F1/m.gguf", "org/repo", "refs/pr/1", "m.gguf", ""),
        ("https://huggingface.co/org/repo/blob/refs/pr/1/m.gguf", "org/repo", "refs/pr/1", "m.gguf", ""),
    ],
)
def test_what_a_name_says(src: str, repo: str, revision: str, path: str, quant: str) -> None:
    assert parse_reference(src) == Reference(repo, revision, path, quant)


@pytest.mark.parametrize(
    "src",
    ["model.gguf", "repo", "a/b/c", "./a/b", "../a/b", "/a/b", "a b/c", r"C:\models\m.gguf", "C:/models/m", "~/m/x"],
)
def test_paths_are_no_such_names(src: str) -> None:
    assert parse_reference(src) is None


@pytest.mark.parametrize("revision", ["0123456789" * 4, "main", "refs/pr/1", "a/branch"])
@pytest.mark.parametrize("path", ["m.gguf", "sub dir/m@1 (2).Q4_K_M.GGUF", "a:b.gguf"])
def test_addresses_are_read_as_they_are_written(revision: str, path: str) -> None:
    reference = Reference("org/repo", revision, path)
    assert parse_address(reference.address) == reference
