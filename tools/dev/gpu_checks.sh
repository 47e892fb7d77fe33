#!/usr/bin/env bash
# Builds everything a machine with a GPU needs to check this project, into one folder that runs anywhere:
#   tools/dev/gpu_checks.sh FOLDER      then, over there:   python3 FOLDER/gpu_run.py --out results.json
# It needs the CUDA toolkit here and, over there, a driver and CUDA's libraries (cuBLAS, cuDNN, CUPTI), but no compiler, no
# CMake and no packages of ours; FOLDER.tar.gz is what to send, a third as large. Built without MPI and oneDNN and for any
# x86-64 processor.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
[[ $# -eq 1 ]] || fail "one argument: the folder to make" "for example: tools/dev/gpu_checks.sh build/gpu-bundle"
folder=$1
build=build/gpu
programs=(sextant cuda_math_test cuda_kernels_test cuda_training_test cuda_trace_test cuda_bench)

step "Building for any processor"
# shellcheck disable=SC2016  # $ORIGIN is for the loader
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSEXTANT_NATIVE=OFF -DONEDNN_INCLUDE_DIR=OFF \
  -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib' >/dev/null
cmake --build "$build" --target "${programs[@]}"

step "Collecting"
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib"
for program in "${programs[@]}"; do
  strip -o "$folder/bin/$program" "$build/bin/$program"
  # Every library but those of the system itself.
  ldd "$build/bin/$program" | awk '/=> \// {print $3}' |
    grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*|libresolv)\.so' |
    while read -r library; do cp -Ln "$library" "$folder/lib/"; done
done
cp -r tools/presets "$folder/presets"
cp -r tests/golden/families "$folder/families"
# The independent reference, for the test of every gradient, where it lies beside the sources.
for reference in ../shared/reference ../../shared/reference; do
  if [[ -f $reference/README.md ]]; then
    cp -r --no-preserve=mode "$reference" "$folder/reference"
    break
  fi
done
[[ -d $folder/reference ]] || say "no ../shared/reference beside the source tree: gradients will not be held against it"
cp tools/dev/gpu_run.py tools/dev/gpu_ab.py tools/dev/gpu_edge.py tools/dev/gpu_steps.py tools/dev/gpu_verdicts.py tools/dev/torch_llama.py \
  tools/dev/torch_gemms.py "$folder/"
tar -C "$(dirname "$folder")" -czf "${folder%/}.tar.gz" "$(basename "$folder")"
say "$(du -sh "$folder" | cut -f1) in $folder, $(du -h "${folder%/}.tar.gz" | cut -f1) in ${folder%/}.tar.gz"
