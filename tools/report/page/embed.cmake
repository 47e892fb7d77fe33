# Puts the files of a report's page into a C++ source: cmake -D OUT=... -D PAGE=folder -D LIBRARY=d3.min.js -P embed.cmake
# Without LIBRARY the source has an empty one, and the program says so when it is asked for a report.
function(add_bytes name)
  set(hex "")
  foreach(file IN LISTS ARGN)
    file(READ "${file}" bytes HEX)
    string(APPEND hex "${bytes}")
  endforeach()
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND source "constexpr unsigned char ${name}[] = {${bytes}0};\n")
  string(APPEND source "constexpr unsigned long ${name}_size = ${size};\n")
  set(source "${source}" PARENT_SCOPE)
endfunction()

set(source "// Made by tools/report/page/embed.cmake.\n#include \"tools/report/page_files.hpp\"\n\nnamespace sextant {\nnamespace {\n")
add_bytes(page_html "${PAGE}/report.html")
add_bytes(page_style "${PAGE}/report.css")
add_bytes(page_scripts "${PAGE}/charts.js" "${PAGE}/bars.js" "${PAGE}/lines.js" "${PAGE}/timeline.js" "${PAGE}/page.js")
add_bytes(page_library ${LIBRARY})
add_bytes(page_licence "${PAGE}/d3_licence.txt")
string(APPEND source "std::string_view text(const unsigned char* bytes, unsigned long size) {
  return {reinterpret_cast<const char*>(bytes), size};
}
}  // namespace

PageFiles page_files() {
  return {text(page_html, page_html_size), text(page_style, page_style_size), text(page_scripts, page_scripts_size),
          text(page_library, page_library_size), text(page_licence, page_licence_size)};
}
}  // namespace sextant
")
file(WRITE "${OUT}" "${source}")
