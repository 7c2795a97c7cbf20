# Sourced by tools/demo, tools/test and tools/check: makes .venv in the checkout and keeps it current.
# Needs Python 3.11 or newer. Leaves the checkout as the current folder and the environment's
# interpreter in $python. A stamp in .venv records what was installed; while it fits, nothing is done.
# shellcheck shell=sh

set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "error: $1" >&2
    exit 1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in python3 python python3.14 python3.13 python3.12 python3.11; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    found="not installed"
    command -v python3 >/dev/null && found=$(python3 --version 2>&1)
    fail "forerun needs Python 3.11 or newer, and python3 here is: $found"
}

make_environment() {
    base=$(find_python)
    "$base" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        fail "$base has no venv module; on Debian or Ubuntu type: sudo apt install python3-venv"
    echo "making .venv with $("$base" --version)" >&2
    "$base" -m venv --clear .venv || fail "$base could not make .venv in $PWD; see above"
}

install_packages() {
    echo "installing what forerun needs into .venv (some minutes the first time)" >&2
    quiet=--quiet
    [ -t 2 ] && quiet=
    # shellcheck disable=SC2086 # an empty $quiet is no argument
    "$python" -m pip install --disable-pip-version-check --no-input $quiet -e '.[dev]' >&2 ||
        fail "pip could not install what pyproject.toml names; its own words stand above"
}

python=.venv/bin/python
is_new_enough "$python" && "$python" -m pip --version >/dev/null 2>&1 || make_environment
wanted=$("$python" --version; cat pyproject.toml tools/setup.sh | cksum)
if [ "$(cat .venv/forerun.stamp 2>/dev/null)" != "$wanted" ]; then
    install_packages
    echo "$wanted" >.venv/forerun.stamp
fi
