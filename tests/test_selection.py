"""Which file of many a word selects. The names are those that people give their files on the Hub."""

import pytest

from gguf2st.errors import SourceError
from gguf2st.source.selection import choose, group, is_companion, label, matching, missing_shards

NAMES = (
    "Qwen2.5-7B-Instruct-Q4_K_M.gguf",
    "Qwen2.5-7B-Instruct-UD-Q4_K_M.gguf",
    "Qwen2.5-7B-Instruct-UD-Q4_K_XL.gguf",
    "Qwen2.5-7B-Instruct-Q4_K_S-v2.gguf",
    "Qwen2.5-7B-Instruct-Q4_K_S.gguf",
    "Qwen2.5-7B-Instruct-Q4_0.gguf",
    "Qwen2.5-7B-Instruct-Q4_0_4_4.gguf",
    "Qwen2.5-7B-Instruct-IQ4_XS.gguf",
    "Qwen2.5-7B-Instruct.Q6_K.gguf",
    "BF16/Qwen2.5-7B-BF16-00001-of-00002.gguf",
    "BF16/Qwen2.5-7B-BF16-00002-of-00002.gguf",
    "Q3_K_XL/ggml-model-00001-of-00002.gguf",
    "Q3_K_XL/ggml-model-00002-of-00002.gguf",
    "Qwen2.5-7B-F16.GGUF",
    "gemma_q8_0.gguf",
    "m-MXFP4_MOE.gguf",
    "m-imatrix-Q5_K_M_imat.gguf",
    "mmproj-F16.gguf",
    "Qwen2.5-7B.mmproj-Q8_0.gguf",
    "imatrix_unsloth.gguf",
    "Qwen2.5-7B-imatrix.gguf",
)
CANDIDATES = group(dict.fromkeys(NAMES, 10**9))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Q4_K_M", "Qwen2.5-7B-Instruct-Q4_K_M.gguf"),
        ("q4_k_m", "Qwen2.5-7B-Instruct-Q4_K_M.gguf"),
        ("UD-Q4_K_M", "Qwen2.5-7B-Instruct-UD-Q4_K_M.gguf"),
        ("Q4_K_XL", "Qwen2.5-7B-Instruct-UD-Q4_K_XL.gguf"),
        ("Q4_K_S", "Qwen2.5-7B-Instruct-Q4_K_S.gguf"),
        ("Q4_0", "Qwen2.5-7B-Instruct-Q4_0.gguf"),
        ("Q4_0_4_4", "Qwen2.5-7B-Instruct-Q4_0_4_4.gguf"),
        ("iq4_xs", "Qwen2.5-7B-Instruct-IQ4_XS.gguf"),
        ("Q6_K", "Qwen2.5-7B-Instruct.Q6_K.gguf"),
        ("BF16", "BF16/Qwen2.5-7B-BF16-00001-of-00002.gguf"),
        ("F16", "Qwen2.5-7B-F16.GGUF"),
        ("Q8_0", "gemma_q8_0.gguf"),
        ("Q3_K_XL", "Q3_K_XL/ggml-model-00001-of-00002.gguf"),
        ("MXFP4", "m-MXFP4_MOE.gguf"),
        ("Q5_K_M", "m-imatrix-Q5_K_M_imat.gguf"),
        ("gemma", "gemma_q8_0.gguf"),
        ("qwen2.5-7b-f16.gguf", "Qwen2.5-7B-F16.GGUF"),
        ("BF16/Qwen2.5-7B-BF16-00002-of-00002.gguf", "BF16/Qwen2.5-7B-BF16-00001-of-00002.gguf"),
    ],
)
def test_one_is_selected(text: str, name: str) -> None:
    assert [c.names[0] for c in matching(CANDIDATES, text)] == [name]


@pytest.mark.parametrize("text", ["Q4", "Q4_K", "K_M", "Q3_K", "Q3_K_L", "Q1_0", "16", "mmproj", "imat"])
def test_parts_of_words_select_nothing(text: str) -> None:
    assert matching(CANDIDATES, text) == []


def test_two_that_fit_equally_are_both_given() -> None:
    found = matching(group({"Llama-8B-Q4_0.gguf": 1, "Llama-70B-Q4_0.gguf": 1}), "Q4_0")
    assert len(found) == 2


def test_labels_select_what_they_name() -> None:
    for candidate in CANDIDATES:
        assert matching(CANDIDATES, label(candidate, CANDIDATES)) == [candidate]
    assert label(CANDIDATES[0], CANDIDATES) == "BF16"
    two = group({"8B-Q4_0.gguf": 1, "70B-Q4_0.gguf": 1})
    assert [label(c, two) for c in two] == ["70B-Q4_0", "8B-Q4_0"]


@pytest.mark.parametrize("name", NAMES)
def test_companions_are_no_models(name: str) -> None:
    assert is_companion(name) == (name in NAMES[-4:])


def test_missing_shards_are_counted() -> None:
    (candidate,) = group({"m-00002-of-00003.gguf": 5})
    assert candidate.missing == ("m-00001-of-00003.gguf", "m-00003-of-00003.gguf")
    with pytest.raises(SourceError, match=r"here: 2 of 3 shards are missing$") as caught:
        raise missing_shards("here", candidate, hint="")
    assert caught.value.problems == candidate.missing


@pytest.mark.parametrize(("text", "example"), [("IQ4_XXS", "IQ4_XS"), ("Q6_L", "Q6_K"), ("nonsense", "Q4_K_M")])
def test_the_nearest_is_proposed(text: str, example: str) -> None:
    with pytest.raises(SourceError) as caught:
        choose(
            CANDIDATES, text, where="here", spell=lambda c: label(c, CANDIDATES), listing=lambda c: label(c, CANDIDATES)
        )
    assert caught.value.message == f"here has no {text}"
    assert caught.value.hint.endswith(f": {example}")
    assert "BF16 (2.0 GB, 2 shards)" in caught.value.problems
    assert len(caught.value.problems) == len(CANDIDATES)
