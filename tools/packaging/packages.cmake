# What CPack makes of an installed tree: a .deb for this Debian (its libraries are dependencies), and a tarball that runs from any
# folder (built with SEXTANT_BUNDLE). tools/dev/make_packages.sh calls it with the options of each.
set(CPACK_PACKAGE_NAME sextant)
set(CPACK_PACKAGE_VENDOR "sextant's maintainers")
set(CPACK_PACKAGE_CONTACT "sextant's maintainers <maintainers@sextant.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "planner and simulator of parallel training layouts")
set(CPACK_PACKAGE_DESCRIPTION
"Finds the best parallel layout to train a LLaMA model on a cluster of GPUs,
predicts its step time, memory and cost, says why other layouts lost, and
runs the plan on CPU ranks or GPUs. Planning needs no GPU.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
string(TOLOWER ${CMAKE_SYSTEM_NAME} system)
set(CPACK_PACKAGE_FILE_NAME sextant-${PROJECT_VERSION}-${system}-${CMAKE_SYSTEM_PROCESSOR})

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "bash-completion, openmpi-bin, python3")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/tools/packaging/debian_files.cmake)
set(CPACK_SEXTANT_FOLDER ${PROJECT_SOURCE_DIR})
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_GENERATOR TGZ)
include(CPack)
