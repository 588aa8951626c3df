# Libraries from the distribution, as one interface target.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(NETTLE REQUIRED IMPORTED_TARGET nettle)
pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)
find_package(OpenMP REQUIRED COMPONENTS C)

add_library(rrfp_dependencies INTERFACE)
target_link_libraries(rrfp_dependencies INTERFACE Threads::Threads PkgConfig::JANSSON
  PkgConfig::PCRE2 PkgConfig::NETTLE PkgConfig::TOMLPLUSPLUS OpenMP::OpenMP_C m)

# Stages in several processes; without UCX all stages are threads of one.
pkg_check_modules(UCX QUIET IMPORTED_TARGET ucx)
if(RRFP_UCX AND UCX_FOUND)
  target_link_libraries(rrfp_dependencies INTERFACE PkgConfig::UCX)
  target_compile_definitions(rrfp_dependencies INTERFACE RRFP_HAVE_UCX=1)
  set(RRFP_HAVE_UCX ON)
endif()

# Binding stages to processors.
pkg_check_modules(HWLOC QUIET IMPORTED_TARGET hwloc)
if(RRFP_HWLOC AND HWLOC_FOUND)
  target_link_libraries(rrfp_dependencies INTERFACE PkgConfig::HWLOC)
  target_compile_definitions(rrfp_dependencies INTERFACE RRFP_HAVE_HWLOC=1)
endif()

# Lets ranks started by mpirun find each other without variables.  Not under sanitizers: Open MPI
# patches memory functions when it is loaded, and programs under ThreadSanitizer then fault.
if(RRFP_MPI AND NOT RRFP_SANITIZE)
  find_package(MPI QUIET COMPONENTS C)
endif()
if(MPI_C_FOUND)
  target_link_libraries(rrfp_dependencies INTERFACE MPI::MPI_C)
  target_compile_definitions(rrfp_dependencies INTERFACE RRFP_HAVE_MPI=1 OMPI_SKIP_MPICXX=1)
endif()

if(RRFP_GEMM STREQUAL "onednn")
  find_package(dnnl REQUIRED CONFIG)
  target_link_libraries(rrfp_dependencies INTERFACE DNNL::dnnl)
  target_compile_definitions(rrfp_dependencies INTERFACE RRFP_GEMM_ONEDNN=1)
elseif(RRFP_GEMM STREQUAL "openblas")
  pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
  target_link_libraries(rrfp_dependencies INTERFACE PkgConfig::OPENBLAS)
  target_compile_definitions(rrfp_dependencies INTERFACE RRFP_GEMM_OPENBLAS=1
    RRFP_GEMM_VERSION="${OPENBLAS_VERSION}")
elseif(RRFP_GEMM STREQUAL "blis")
  # No pkg-config file: Debian keeps each threading flavour in a folder of its own, and
  # its cblas.h is apart from the one that the BLAS alternatives point to.
  find_library(BLIS_LIBRARY blis REQUIRED
    PATH_SUFFIXES blis-openmp blis-pthread blis-serial
      ${CMAKE_LIBRARY_ARCHITECTURE}/blis-openmp ${CMAKE_LIBRARY_ARCHITECTURE}/blis-pthread
      ${CMAKE_LIBRARY_ARCHITECTURE}/blis-serial)
  find_path(BLIS_INCLUDE blis.h REQUIRED
    PATH_SUFFIXES blis-openmp blis-pthread blis-serial blis
      ${CMAKE_LIBRARY_ARCHITECTURE}/blis-openmp ${CMAKE_LIBRARY_ARCHITECTURE}/blis-pthread
      ${CMAKE_LIBRARY_ARCHITECTURE}/blis-serial)
  target_link_libraries(rrfp_dependencies INTERFACE ${BLIS_LIBRARY})
  target_include_directories(rrfp_dependencies SYSTEM INTERFACE ${BLIS_INCLUDE})
  target_compile_definitions(rrfp_dependencies INTERFACE RRFP_GEMM_BLIS=1)
else()
  message(FATAL_ERROR "RRFP_GEMM=${RRFP_GEMM} is unknown; use onednn, openblas or blis")
endif()
