# SPDX-License-Identifier: Apache-2.0
# Debian packages by CPack, one a component. scripts/deb builds them: compiled with Debian's flags, and named after the system that
# they are built on, since another one has other libraries.
file(STRINGS /etc/os-release system REGEX "^VERSION_ID=")
string(REGEX REPLACE "[^0-9.]" "" system "${system}")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME neotier)
set(CPACK_PACKAGE_VERSION ${NEOTIER_VERSION})
set(CPACK_DEBIAN_PACKAGE_RELEASE 1~deb${system})
set(CPACK_PACKAGE_CONTACT "The NeoTier maintainers <neotier@packages.invalid>")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL Runtime Development Tools Kernel)
set(CPACK_STRIP_FILES ON)
# The configuration is in /etc, whatever the prefix.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libneotier${NEOTIER_ABI})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
# CPack's own scripts call ldconfig, as Debian had it once.
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_LIST_DIR}/deb/libneotier/triggers)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "objects, KV blocks and experts over tiers of memory
libneotier keeps objects of those who serve large language models in GPU
memory, DRAM, CXL memory and on SSDs, where a placement policy wants them, and
moves them.

This package has the shared library.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libneotier-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  "${CPACK_DEBIAN_RUNTIME_PACKAGE_NAME} (= ${NEOTIER_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "headers and examples of libneotier
libneotier keeps objects of those who serve large language models in GPU
memory, DRAM, CXL memory and on SSDs, where a placement policy wants them, and
moves them.

This package has what programs are built with: headers of the C interface,
files for pkg-config and CMake, examples.")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME neotier-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SHLIBDEPS ON)
# llama.cpp's backend links the library, which is found here and is a package of this source.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${NEOTIER_BIN}/../lib)
# groupadd; /bin/kill, by which the service is told to reload
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS
  "${CPACK_DEBIAN_RUNTIME_PACKAGE_NAME} (= ${NEOTIER_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}), passwd, procps")
set(CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_EXTRA "")
foreach(file conffiles postinst prerm postrm)
  list(APPEND CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_LIST_DIR}/deb/neotier-tools/${file})
endforeach()
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "daemon and command of NeoTier, memory tiers for LLM serving
neotierd shares one budget of memory tiers (GPU memory, DRAM, CXL memory, SSDs)
between several processes. The command neotier measures and replays placement
policies, shows what a daemon does, and sets the knobs of the kernel module.

The daemon is not started unless the administrator enables its service.")

set(CPACK_DEBIAN_KERNEL_PACKAGE_NAME neotier-dkms)
set(CPACK_DEBIAN_KERNEL_PACKAGE_SECTION kernel)
set(CPACK_DEBIAN_KERNEL_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_KERNEL_PACKAGE_DEPENDS dkms)
set(CPACK_DEBIAN_KERNEL_PACKAGE_RECOMMENDS linux-headers-amd64)
set(CPACK_DEBIAN_KERNEL_PACKAGE_SUGGESTS neotier-tools)
set(CPACK_DEBIAN_KERNEL_PACKAGE_CONTROL_EXTRA
  ${CMAKE_BINARY_DIR}/neotier-dkms/postinst ${CMAKE_BINARY_DIR}/neotier-dkms/prerm)
set(CPACK_COMPONENT_KERNEL_DESCRIPTION "kernel module of NeoTier, built by DKMS
neotier.ko moves pages between DRAM and CXL memory by what a device reports of
their use. DKMS builds it for each kernel that is installed with its headers,
Linux 6.1 or newer.

Nothing loads it but the administrator: modprobe neotier.")

# What a Debian package has besides: see there.
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/deb/finish.cmake)
set(CPACK_NEOTIER_ROOT ${NEOTIER_ROOT})
set(CPACK_NEOTIER_PACKAGES ${CPACK_DEBIAN_RUNTIME_PACKAGE_NAME} libneotier-dev neotier-tools neotier-dkms)
include(${CMAKE_CURRENT_LIST_DIR}/kernel-sources.cmake)
include(CPack)
