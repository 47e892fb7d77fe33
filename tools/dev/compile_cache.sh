# shellcheck shell=bash
# source compile_cache.sh FOLDER: CMake compiles C++ through ccache, which keeps in FOLDER what it made and finds it again for the
# same sources at the same path, as long as the compiler and every header have the same contents. A header that is missing is
# missed as ever. The kernel's headers, which come with the C library's, are no part of that: a security update of them would have
# everything compiled once more that asks for a file's size.
export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}
export CCACHE_DIR=$1 CCACHE_COMPILERCHECK=content CCACHE_DEPEND=1 CCACHE_IGNOREHEADERS=/usr/include/linux CCACHE_MAXSIZE=4G CCACHE_SLOPPINESS=pch_defines,time_macros,locale
