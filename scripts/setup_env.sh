# Sourced by run_tests.sh and run_demo.sh: makes .venv in the repository and installs the project.
#
#   . scripts/setup_env.sh
#   setup_env test            # the extras of setup.cfg, separated by commas
#   "$PYTHON" -m pytest       # PYTHON is the Python of .venv from then on
#
# The first call takes a while. Later ones find the stamp of the last installation and do nothing,
# unless setup.cfg or pyproject.toml has changed since. To start over: rm -rf .venv
# To choose the Python that .venv is made with: PYTHON=/path/to/python3.12 ./run_tests.sh

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"

say() { printf '%s\n' "$*" >&2; }

# Prints the first Python that is new enough; fails when there is none.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

make_venv() {
    local python
    if ! python="$(find_python)"; then
        say "Fairlead needs Python 3.11 or newer, and none was found."
        say "Install one (Debian, Ubuntu: sudo apt install python3.11 python3.11-venv;"
        say "macOS: brew install python@3.12; anywhere: https://www.python.org/downloads),"
        say "or name it: PYTHON=/path/to/python3.11 $0"
        return 1
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        say "$python cannot make virtual environments: its venv module is not installed."
        say "Install it (Debian, Ubuntu: sudo apt install python3-venv) and run $0 again."
        return 1
    fi
    say "Making .venv with $("$python" --version 2>&1) (once) ..."
    "$python" -m venv --clear "$VENV" || return 1
    printf '*\n' > "$VENV/.gitignore"
}

# Installs the project with the given extras and leaves a stamp.
install_project() {
    local extras="$1" stamp="$2" sum="$3" log="$VENV/install-log.txt"
    say "Installing Fairlead with its [$extras] extras into .venv ..."
    if ! PIP_DISABLE_PIP_VERSION_CHECK=1 "$PYTHON" -m pip install --quiet --editable \
        "$ROOT[$extras]" > "$log" 2>&1; then
        cat "$log" >&2
        say "The installation failed; the reason stands above. It needs a package index:"
        say "check the network or pip's settings, then run $0 again."
        return 1
    fi
    printf '%s\n' "$sum" > "$stamp"
}

setup_env() {
    local extras="${1:-test}" stamp sum
    if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        make_venv || return 1
    fi
    PYTHON="$VENV/bin/python"
    stamp="$VENV/installed-$extras.txt"
    sum="$(cat "$ROOT/setup.cfg" "$ROOT/pyproject.toml" | cksum)"
    if [ "$(cat "$stamp" 2>/dev/null)" != "$sum" ]; then
        install_project "$extras" "$stamp" "$sum" || return 1
    fi
    export PATH="$VENV/bin:$PATH"
}
