#!/usr/bin/env bash
# Everything that must hold: lint, types, tests. Sets itself up on the first run. Needs Java for the
# tests of the audit and says so: tests that were left out in silence would prove nothing.
#
#   ./run_tests.sh                      all of it
#   ./run_tests.sh tests/command -k up  arguments go to pytest
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
# shellcheck source=scripts/setup_env.sh
. scripts/setup_env.sh
setup_env test,spark || exit 1
ensure_java || exit 1

failed=()
"$PYTHON" -m ruff check --quiet . || failed+=("ruff")
"$PYTHON" -m mypy --no-error-summary || failed+=("mypy")
# Each test has a store, ports and processes of its own, so two files may run at the same time. A file
# stays with one worker, which starts Spark once for it.
workers=()
[ "$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)" -ge 2 ] && workers=(-n 2 --dist loadfile)
"$PYTHON" -m pytest -q ${workers[@]+"${workers[@]}"} "$@" || failed+=("pytest")

if [ "${#failed[@]}" -gt 0 ]; then
    say "FAILED: ${failed[*]}"
    exit 1
fi
