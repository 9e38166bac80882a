# SPDX-License-Identifier: Apache-2.0
# cmake --install: what programs run with (component Runtime) and what they are built with (Development). The prefix may be moved
# afterwards: the files refer to one another, never to the prefix, unless a GNUInstallDirs folder was given as an absolute path.
include(CMakePackageConfigHelpers)

install(TARGETS neotier_shared EXPORT neotier
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Runtime NAMELINK_COMPONENT Development)
install(FILES include/neotier.h include/neotier_client.h include/neotier_kv.h include/neotier_moe.h include/neotier_slots.h
  ${NEOTIER_ROOT}/policies/placement/neotier_placement.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT Development)
install(FILES ${NEOTIER_ROOT}/examples/engine.c ${NEOTIER_ROOT}/examples/client.c
  DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/libneotier-dev/examples COMPONENT Development)

# Only a shared library is installed: it has nothing that who links it must link too.
set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/neotier)
install(EXPORT neotier FILE neotierConfig.cmake NAMESPACE neotier:: DESTINATION ${cmake_folder} COMPONENT Development)
# Of one soname, and later versions of it serve older programs; neotier.h says how.
write_basic_package_version_file(neotierConfigVersion.cmake VERSION ${NEOTIER_VERSION} COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/neotierConfigVersion.cmake DESTINATION ${cmake_folder} COMPONENT Development)

set(pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE ${pc_folder})
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH up /prefix/${pc_folder} /prefix)
  string(REGEX REPLACE "/$" "" up ${up})
  set(pc_prefix "\${pcfiledir}/${up}")
endif()
# An absolute folder takes the prefix' place.
cmake_path(APPEND pc_libdir "\${prefix}" "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND pc_includedir "\${prefix}" "${CMAKE_INSTALL_INCLUDEDIR}")
configure_file(neotier.pc.in neotier.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/neotier.pc DESTINATION ${pc_folder} COMPONENT Development)
