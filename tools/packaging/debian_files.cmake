# Run by CPack on the tree that becomes a .deb: what Debian has in other places or forms than others do. Pages of the manual and the
# changelog are packed, zsh looks in vendor-completions, and every package states its copyright.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
set(usr "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr")
set(documents "${usr}/share/doc/sextant")
file(COPY_FILE "${CPACK_SEXTANT_FOLDER}/CHANGELOG.md" "${documents}/CHANGELOG.md")
file(GLOB packed "${usr}/share/man/man1/*.1")
execute_process(COMMAND gzip -9nf ${packed} "${documents}/CHANGELOG.md" COMMAND_ERROR_IS_FATAL ANY)
file(MAKE_DIRECTORY "${usr}/share/zsh/vendor-completions")
file(RENAME "${usr}/share/zsh/site-functions/_sextant" "${usr}/share/zsh/vendor-completions/_sextant")
file(REMOVE_RECURSE "${usr}/share/zsh/site-functions")
file(WRITE "${documents}/copyright"
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: sextant

Files: *
Copyright: 2026 sextant's maintainers
License: Apache-2.0
 On Debian systems the full text of the Apache License, Version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
")
