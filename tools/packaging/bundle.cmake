# Run by `cmake --install` where SEXTANT_BUNDLE is on: copies the shared libraries that `program` needs into library_folder, each
# under the name by which it is loaded, and their licences into licence_folder. The C library is the system's own.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${program}
     RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
     POST_EXCLUDE_REGEXES ".*/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv))\\.so[.0-9]*$")
if(missing)
  message(FATAL_ERROR "the program needs libraries that are not on this machine: ${missing}")
endif()
set(prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
file(REMOVE_RECURSE "${prefix}/${library_folder}")  # of an earlier build
file(MAKE_DIRECTORY "${prefix}/${library_folder}" "${prefix}/${licence_folder}")
find_program(dpkg_query dpkg-query)
foreach(library IN LISTS libraries)
  get_filename_component(name "${library}" NAME)
  file(REAL_PATH "${library}" real)
  file(COPY_FILE "${real}" "${prefix}/${library_folder}/${name}")
  message(STATUS "Bundled: ${prefix}/${library_folder}/${name}")
  set(owner "")
  if(dpkg_query)
    string(REGEX REPLACE "^/usr/lib/" "/lib/" former "${real}")  # where dpkg knows a package of before the folders were merged
    execute_process(COMMAND ${dpkg_query} -S "${real}" "${former}" OUTPUT_VARIABLE owner ERROR_QUIET)
    string(REGEX REPLACE "[:,].*" "" owner "${owner}")
  endif()
  if(owner AND EXISTS "/usr/share/doc/${owner}/copyright")
    file(COPY_FILE "/usr/share/doc/${owner}/copyright" "${prefix}/${licence_folder}/${owner}.txt")
  else()
    message(WARNING "no licence of ${real} was found: add it to ${licence_folder} before you hand the package on")
  endif()
endforeach()
