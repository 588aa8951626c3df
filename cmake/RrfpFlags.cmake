# Compiler flags of our own code, as one interface target.
add_library(rrfp_flags INTERFACE)
target_compile_options(rrfp_flags INTERFACE -Wall -Wextra -Wshadow -Wvla
  $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition>)
target_compile_definitions(rrfp_flags INTERFACE _GNU_SOURCE RRFP_VERSION_STRING="${PROJECT_VERSION}")
# clang reports every "omp simd" loop that it cannot vectorise under a sanitizer or without -O3.
target_compile_options(rrfp_flags INTERFACE $<$<COMPILE_LANG_AND_ID:C,Clang>:-Wno-pass-failed>)
if(RRFP_WERROR)
  target_compile_options(rrfp_flags INTERFACE -Werror)
endif()
if(RRFP_NATIVE)
  target_compile_options(rrfp_flags INTERFACE -march=native)
endif()
# Math errno and traps only hinder vectorising; value-changing options stay off.
target_compile_options(rrfp_flags INTERFACE -fno-math-errno -fno-trapping-math)
if(CMAKE_BUILD_TYPE STREQUAL "Release" OR CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  target_compile_options(rrfp_flags INTERFACE -O3)
endif()
if(NOT CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_definitions(rrfp_flags INTERFACE RRFP_DEBUG=1)
  target_compile_options(rrfp_flags INTERFACE -UNDEBUG) # RelWithDebInfo would drop assertions
endif()
if(RRFP_SANITIZE)
  target_compile_options(rrfp_flags INTERFACE -fsanitize=${RRFP_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(rrfp_flags INTERFACE -fsanitize=${RRFP_SANITIZE})
  target_compile_definitions(rrfp_flags INTERFACE RRFP_SANITIZED=1)
  # gcc 12 trusts frames that AddressSanitizer moves to the heap to be aligned to 64 bytes; they
  # are to 32, and a 512-bit move into one faults (gcc bug 110027).
  if(RRFP_SANITIZE MATCHES "address" AND CMAKE_C_COMPILER_ID STREQUAL "GNU"
     AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
    target_compile_options(rrfp_flags INTERFACE -mprefer-vector-width=256)
  endif()
endif()
if(RRFP_FUZZ)
  # Coverage of the whole library guides the fuzzers; only their own targets link a driver.
  target_compile_options(rrfp_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
