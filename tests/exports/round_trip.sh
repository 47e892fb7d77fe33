#!/usr/bin/env bash
# usage: round_trip.sh PYTHON SEXTANT TARGET: round_trip.py, refusals.py and changed_values.py with the python of
# SEXTANT_EXPORT_PYTHON.
set -euo pipefail
if [[ -z ${SEXTANT_EXPORT_PYTHON:-} ]]; then
  echo "SKIPPED: SEXTANT_EXPORT_PYTHON names no python with the packages of tests/exports/requirements.txt"
  exit 77
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$1" "$here/round_trip.py" "$2" "$SEXTANT_EXPORT_PYTHON" "$3"
"$1" "$here/refusals.py" "$2" "$SEXTANT_EXPORT_PYTHON" "$3"
exec "$1" "$here/changed_values.py" "$2" "$SEXTANT_EXPORT_PYTHON" "$3"
