#!/usr/bin/env bash
# The demonstration: a broker, two channels, four publishers, four subscriber processes, and faults
# while messages flow. It proves from what the subscribers really received that every promise was
# kept; then Spark audits the journal and all clients' histories. Sets itself up on the first run;
# after that it takes well under a minute.
#
#   ./run_demo.sh                     run it
#   ./run_demo.sh --report FILE.html  where the audit's page goes
#   ./run_demo.sh --no-audit          leave the audit out: about ten seconds, no Java needed
#   ./run_demo.sh --seed 7            publish something else
#   ./run_demo.sh --keep              keep the folder with store, logs, histories and report
#   ./run_demo.sh --json FILE         also write figures, checks and the audit's answer there
#   ./run_demo.sh --help              show this
#
# Exit code: 0 all is as promised and the audit says valid; 1 something is not, or a step failed;
# 2 the audit could not tell (no Java, for one), or wrong usage; 128 and the signal's number when it
# was interrupted.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)" || exit 1
extras="test,spark"
for argument in "$@"; do
    case "$argument" in
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
        --no-audit) extras="test" ;;
    esac
done
# shellcheck source=scripts/setup_env.sh
. "$here/scripts/setup_env.sh"
setup_env "$extras" || exit 1
if [ "$extras" != "test" ]; then
    ensure_java || say "The demonstration goes on without; its audit will be unknown."
fi
# Files are named from where the caller stands (-P: whose folders are not taken for ours).
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -P -m simulations.demo "$@"
