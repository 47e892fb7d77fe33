#!/usr/bin/env bash
# `sextant run` as MPI jobs of 2, 4 and 8 processes: a diagonal of the layouts, against ranks that are threads. With SEXTANT_WHOLE
# all of them, else one of each size.
# Usage: mpi_layouts.sh SEXTANT MPIEXEC
set -uo pipefail
sextant=$1
mpiexec=$2
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/mpi_common.sh"

# The numbers of both are equal to the last digit.
compared=0
while read -r ranks key more; do
  [[ -n ${SEXTANT_WHOLE:-} || $more != nightly ]] || continue
  "$sextant" simulate --model stories-260k --set model.n_layers=4 --cluster "1x${ranks}xcpu" --stack sextant \
    --seq-len 32 --global-batch 8 --plan "$key" -o some.json >/dev/null || fail "$key: no plan"
  rm -rf ran local
  "$mpiexec" -n "$ranks" "$sextant" run some.json --comm mpi --steps 2 -o ran >out 2>&1 </dev/null ||
    fail "$key: $ranks MPI ranks"
  "$sextant" run some.json --steps 2 -o local >out 2>&1 || fail "$key: $ranks threads"
  same_steps "$key"
  compared=$((compared + 1))
done <<'END'
2 tp2.sp.mbs2 nightly
2 pp2.mbs1.zb
4 tp2.sp.dp2.z3.mbs1.full.po
4 cp2.pp2.mbs2 nightly
4 dp4.z2.mbs1.sd2.b4K nightly
8 tp2.sp.pp2.vp2.dp2.z1.mbs1.b4K.oo50
8 tp2.cp2.dp2.z3.mbs2.sel nightly
END
wanted=3
[[ -z ${SEXTANT_WHOLE:-} ]] || wanted=7
[[ $compared -eq $wanted ]] || fail "$compared of $wanted layouts were compared"

finish
