# SPDX-License-Identifier: Apache-2.0
# The module's sources where DKMS looks for them, /usr/src/neotier-VERSION: what `make -C kmod stage` puts together. Not part of a
# plain `cmake --install`: a module belongs to a kernel, not to a prefix.
set(dkms ${CMAKE_CURRENT_LIST_DIR}/deb/neotier-dkms)

# One home for what was tested: kmod/compat.h. Linux 6.1 is the oldest.
set(compat ${CMAKE_CURRENT_LIST_DIR}/../kmod/compat.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${compat})
foreach(part MAJOR MINOR)
  file(STRINGS ${compat} tested_${part} REGEX "^#define NEOTIER_TESTED_${part} [0-9]+$")
  string(REGEX REPLACE "[^0-9]" "" tested_${part} "${tested_${part}}")
endforeach()
if(NOT tested_MAJOR EQUAL 7 OR NOT tested_MINOR MATCHES "^[0-9]+$")
  message(FATAL_ERROR "${compat}: NEOTIER_TESTED_MAJOR is ${tested_MAJOR}: write NEOTIER_KERNELS in ${CMAKE_CURRENT_LIST_FILE} anew")
endif()
foreach(minor RANGE ${tested_MINOR})
  list(APPEND minors ${minor})
endforeach()
list(JOIN minors | minors)
# A kernel without these stops the build there.
file(STRINGS ${compat} NEOTIER_CONFIGS REGEX "^#if !defined\\(CONFIG_")
string(REGEX MATCHALL "CONFIG_[A-Z_]+" NEOTIER_CONFIGS "${NEOTIER_CONFIGS}")
if(NOT NEOTIER_CONFIGS)
  message(FATAL_ERROR "${compat}: expected a line '#if !defined(CONFIG_...' with what a kernel must have")
endif()
list(JOIN NEOTIER_CONFIGS " " NEOTIER_CONFIGS)
set(NEOTIER_KERNELS "^(6\\.[1-9][0-9]*|7\\.(${minors}))[.-]")

foreach(file dkms.conf postinst prerm)
  configure_file(${dkms}/${file}.in ${CMAKE_BINARY_DIR}/neotier-dkms/${file} @ONLY)
endforeach()
install(CODE "
  set(staged \"${CMAKE_BINARY_DIR}/kernel-sources\")
  set(to \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/src/neotier-${NEOTIER_VERSION}\")
  file(REMOVE_RECURSE \"\${staged}\" \"\${to}\")
  execute_process(COMMAND make -s -C \"${NEOTIER_ROOT}/kmod\" stage BUILD=\${staged} COMMAND_ERROR_IS_FATAL ANY)
  file(MAKE_DIRECTORY \"\${to}\")
  # Links to the sources there, files here.
  execute_process(COMMAND cp -RL --no-preserve=all \"\${staged}/.\" \"\${to}\" COMMAND_ERROR_IS_FATAL ANY)"
  COMPONENT Kernel EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_BINARY_DIR}/neotier-dkms/dkms.conf DESTINATION src/neotier-${NEOTIER_VERSION}
  COMPONENT Kernel EXCLUDE_FROM_ALL)
