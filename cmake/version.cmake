# SPDX-License-Identifier: Apache-2.0
# The one place of the version: of the programs, the packages and the shared library's file. CHANGELOG.md says what changed.
set(NEOTIER_VERSION 0.1.0)

# The soname is the ABI's number: it changes when an old program would misbehave.
set(abi_header ${CMAKE_CURRENT_LIST_DIR}/../userspace/libneotier/include/neotier.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${abi_header})
file(STRINGS ${abi_header} NEOTIER_ABI REGEX "^#define NEOTIER_ABI [0-9]+u$")
string(REGEX REPLACE "[^0-9]" "" NEOTIER_ABI "${NEOTIER_ABI}")
if(NOT NEOTIER_ABI)
  message(FATAL_ERROR "${abi_header}: expected a line '#define NEOTIER_ABI <number>u'")
endif()
