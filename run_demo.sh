#!/usr/bin/env bash
# The demonstration: a broker, two channels, four publishers, four subscriber processes, and faults
# while messages flow. It proves from what the subscribers really received that every promise was
# kept. Sets itself up on the first run; after that it takes about ten seconds.
#
#   ./run_demo.sh               run it
#   ./run_demo.sh --seed 7      publish something else
#   ./run_demo.sh --keep        keep the folder with store, logs and histories
#   ./run_demo.sh --json FILE   also write figures and checks there
#   ./run_demo.sh --help        show this
#
# Exit code: 0 all is as promised; 1 something is not, or a step failed; 2 wrong usage; 128 and the
# signal's number when it was interrupted.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
for argument in "$@"; do
    case "$argument" in
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
    esac
done
. scripts/setup_env.sh
setup_env test || exit 1
exec "$PYTHON" -m simulations.demo "$@"
