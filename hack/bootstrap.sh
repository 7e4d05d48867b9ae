#!/bin/sh
# Prints the command that runs uv: the one on PATH, else one that this script gets from PyPI into the cache.
# Everything else that a fresh machine lacks is looked after by `python -m hack`. Used by the Makefile: UV := $(shell …).
set -eu
command -v uv && exit 0
cache=${GPUTRAINING_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gputraining}
own=$cache/uv/bin/uv
if [ ! -x "$own" ]; then
  say() { echo "$*" >&2; }
  if ! python3 -m venv --help >/dev/null 2>&1 || ! python3 -c 'import ensurepip' >/dev/null 2>&1; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
      say "uv is missing: install it (https://docs.astral.sh/uv/), or python3 with venv, or run as root on Debian"
      exit 1
    fi
    say "… installing python3-venv"
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        python3-venv ca-certificates; } >/tmp/gputraining-bootstrap.log 2>&1 \
      || { tail -20 /tmp/gputraining-bootstrap.log >&2; say "apt-get failed: is Debian's mirror reachable?"; exit 1; }
  fi
  say "… installing uv"
  mkdir -p "$cache"
  { python3 -m venv "$cache/uv" && "$cache/uv/bin/pip" install -q --disable-pip-version-check 'uv==0.13.8'; } >&2 \
    || { say "uv could not be installed: is PyPI reachable?"; exit 1; }
fi
echo "$own"
