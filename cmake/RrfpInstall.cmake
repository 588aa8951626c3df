# cmake --install: library, headers, CLI, man page, pkg-config file, CMake package.
