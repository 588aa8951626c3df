# cmake --install: library, headers, CLI, man page, pkg-config file, CMake package.
#
# The package files are written by hand instead of by install(EXPORT): the library's own link
# targets come from find modules of the build and would not exist for a user of the package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set_target_properties(rrfp PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
install(TARGETS rrfp ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/rrfp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")

if(TARGET rrfp_cli)
  file(RELATIVE_PATH RRFP_LIB_FROM_BIN "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(rrfp_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${RRFP_LIB_FROM_BIN}")
  install(TARGETS rrfp_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # Built programs under a sanitizer may refuse to start on some kernels; they are not installed.
  if(NOT RRFP_SANITIZE)
    add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/rrfp.1
      COMMAND rrfp_cli man > ${PROJECT_BINARY_DIR}/rrfp.1 DEPENDS rrfp_cli)
    add_custom_target(rrfp_man ALL DEPENDS ${PROJECT_BINARY_DIR}/rrfp.1)
    install(FILES ${PROJECT_BINARY_DIR}/rrfp.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  endif()
endif()

# What a static library leaves to the final link.
set(RRFP_PC_REQUIRES jansson libpcre2-8 nettle tomlplusplus)
if(RRFP_HAVE_UCX)
  list(APPEND RRFP_PC_REQUIRES ucx)
endif()
set(RRFP_LINK_NAMES jansson pcre2-8 nettle tomlplusplus)
if(RRFP_HAVE_UCX)
  list(APPEND RRFP_LINK_NAMES ucp uct ucs ucm)
endif()
if(RRFP_GEMM STREQUAL "onednn")
  set(RRFP_SYSTEM_NAMES dnnl)
elseif(RRFP_GEMM STREQUAL "openblas")
  set(RRFP_SYSTEM_NAMES)
  list(APPEND RRFP_PC_REQUIRES openblas)
  list(APPEND RRFP_LINK_NAMES openblas)
else()
  set(RRFP_SYSTEM_NAMES blis)
endif()
if(MPI_C_FOUND)
  list(APPEND RRFP_SYSTEM_NAMES mpi)
endif()
list(APPEND RRFP_SYSTEM_NAMES ${OpenMP_C_LIB_NAMES} stdc++ pthread m)
list(REMOVE_DUPLICATES RRFP_SYSTEM_NAMES)
list(APPEND RRFP_LINK_NAMES ${RRFP_SYSTEM_NAMES})

if(BUILD_SHARED_LIBS)
  set(RRFP_LIBRARY_KIND SHARED)
  set(RRFP_LIBRARY_FILE ${CMAKE_SHARED_LIBRARY_PREFIX}rrfp${CMAKE_SHARED_LIBRARY_SUFFIX})
  set(RRFP_LINK_NAMES)
else()
  set(RRFP_LIBRARY_KIND STATIC)
  set(RRFP_LIBRARY_FILE ${CMAKE_STATIC_LIBRARY_PREFIX}rrfp${CMAKE_STATIC_LIBRARY_SUFFIX})
endif()

string(REPLACE ";" " " RRFP_PC_REQUIRES "${RRFP_PC_REQUIRES}")
string(REPLACE ";" " -l" RRFP_PC_LIBS "-l${RRFP_SYSTEM_NAMES}")
file(RELATIVE_PATH RRFP_PREFIX_FROM_PC "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(${CMAKE_CURRENT_LIST_DIR}/rrfp.pc.in ${PROJECT_BINARY_DIR}/rrfp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/rrfp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(RRFP_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/rrfp)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/rrfpConfig.cmake.in
  ${PROJECT_BINARY_DIR}/rrfpConfig.cmake INSTALL_DESTINATION ${RRFP_PACKAGE_DIR}
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rrfpConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rrfpConfig.cmake ${PROJECT_BINARY_DIR}/rrfpConfigVersion.cmake
        DESTINATION ${RRFP_PACKAGE_DIR})
