# SPDX-License-Identifier: Apache-2.0
# Run by CPack before it packs: copyright and changelogs of each package, and what Debian wants compressed.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC) # $SOURCE_DATE_EPOCH, where it is set
foreach(component package IN ZIP_LISTS CPACK_COMPONENTS_ALL CPACK_NEOTIER_PACKAGES)
  set(usr ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${component}${CPACK_INSTALL_PREFIX})
  if(NOT IS_DIRECTORY ${usr})
    message(FATAL_ERROR "${usr}: expected what component ${component} installs")
  endif()
  set(doc ${usr}/share/doc/${package})
  configure_file(${CPACK_NEOTIER_ROOT}/cmake/deb/copyright ${doc}/copyright COPYONLY)
  configure_file(${CPACK_NEOTIER_ROOT}/CHANGELOG.md ${doc}/changelog COPYONLY)
  file(WRITE ${doc}/changelog.Debian
    "neotier (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) stable; urgency=medium\n\n"
    "  * See changelog.gz.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  file(GLOB_RECURSE plain ${usr}/share/man/*.[1-8])
  foreach(file ${doc}/changelog ${doc}/changelog.Debian ${plain})
    # By name alone gzip would keep the time at which it is run.
    execute_process(COMMAND gzip -9 --no-name --force ${file} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endforeach()
