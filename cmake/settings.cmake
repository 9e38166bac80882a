# SPDX-License-Identifier: Apache-2.0
# What all of the repository, and libneotier when it is built alone, is compiled with.
include_guard(GLOBAL)
get_filename_component(NEOTIER_ROOT ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# What a shared library or a module is meant to export says so itself.
foreach(language C CXX CUDA)
  set(CMAKE_${language}_VISIBILITY_PRESET hidden)
endforeach()
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

set(NEOTIER_SANITIZE "" CACHE STRING "Sanitizers for all C and C++ code: empty, 'address,undefined' or 'thread'")
if(NEOTIER_SANITIZE)
  # In instrumented code GCC takes members of libraries' objects for uninitialised. It may say so, and goes on.
  add_compile_options(-fsanitize=${NEOTIER_SANITIZE} -fno-omit-frame-pointer -Wno-error=maybe-uninitialized)
  add_link_options(-fsanitize=${NEOTIER_SANITIZE})
endif()
# The release build's programs are where the documents and scripts name them; any other build keeps its own to itself.
if(CMAKE_BINARY_DIR STREQUAL "${NEOTIER_ROOT}/build/release")
  set(NEOTIER_BIN ${NEOTIER_ROOT}/build/bin)
else()
  set(NEOTIER_BIN ${CMAKE_BINARY_DIR}/bin)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${NEOTIER_BIN})

# Warnings for our own code; generated code (Verilator's) does not link this.
add_library(neotier_warnings INTERFACE)
target_compile_options(neotier_warnings INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion)
# Errors only where they have been looked at: a newer compiler's false alarm is no reason for a stranger's build to fail.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(neotier_warnings INTERFACE -Werror)
endif()

# The GPU tier, where nvcc is; elsewhere its stand-in. NVIDIA's installer puts it on no path, scripts/bootstrap below build/.
include(CheckLanguage)
find_program(NEOTIER_NVCC nvcc PATHS /usr/local/cuda/bin ${NEOTIER_ROOT}/build/cuda/bin)
if(NOT CMAKE_CUDA_COMPILER AND NEOTIER_NVCC)
  set(CMAKE_CUDA_COMPILER ${NEOTIER_NVCC})
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # H100 and H200 as machine code, older and newer ones by what the driver makes of the PTX.
  set(CMAKE_CUDA_ARCHITECTURES 75-virtual 90)
endif()
check_language(CUDA)
if(CMAKE_CUDA_COMPILER AND NOT NEOTIER_SANITIZE) # CUDA's run time is not instrumented
  enable_language(CUDA)
  set(NEOTIER_HAVE_NVCC ON)
  # Not by FindCUDAToolkit: Debian 12's stops at CUDA 13, which has no nvToolsExt any more. The run time itself is linked, statically,
  # wherever something compiled by nvcc is.
  add_library(neotier_cudart INTERFACE)
  target_include_directories(neotier_cudart SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
endif()

# Without them what is installed is built, and no more.
option(BUILD_TESTING "Build the tests; they need GoogleTest" ON)
if(BUILD_TESTING)
  enable_testing()
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
