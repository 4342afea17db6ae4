#!/bin/sh
# Installs the load clients of other people, each into a virtual environment of its own.
#   install_clients.sh FOLDER sglang-0.5.9|guidellm|aiperf …
# vLLM's client and SGLang's new one come with their engines: install.sh beside this. What is there already is kept:
# FOLDER/NAME/installed says so. PYTHON is the interpreter (3.11), PIP_ARGS goes to pip, as in install.sh.
set -eu

folder=$1
shift
python=${PYTHON:-python3.11}

install() {  # $1 environment, then packages
  environment=$1 && shift
  # shellcheck disable=SC2086  # PIP_ARGS are words
  "$environment/bin/python" -m pip --quiet --disable-pip-version-check install ${PIP_ARGS:-} "$@"
}

for name in "$@"; do
  environment=$folder/$name
  [ ! -e "$environment/installed" ] || continue
  echo "installing $name into $environment …"
  "$python" -m venv --clear "$environment"
  case $name in
    sglang-0.5.9)  # the last one whose client is a single file with a few dependencies
      install "$environment" --no-deps sglang==0.5.9
      install "$environment" aiohttp numpy requests tqdm transformers pybase64 datasets pillow ipython ;;
    guidellm) install "$environment" torch==2.13.0 guidellm==0.8.1 ;;
    aiperf) install "$environment" aiperf==0.13.0 ;;
    *) echo "no client $name" >&2; exit 2 ;;
  esac
  touch "$environment/installed"
done
