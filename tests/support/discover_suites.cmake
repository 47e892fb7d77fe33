# Writes a file for ctest with one test for each suite of a gtest program: PROGRAM, its NAME, OUT, and PROPERTIES of the tests.
# A process for each of some thousand cases costs more than most of them; what is printed of a failure names the case.
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE status TIMEOUT 60)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${NAME} could not list its tests (status ${status}): run ${PROGRAM} --gtest_list_tests")
endif()
string(REGEX MATCHALL "(^|\n)[A-Za-z0-9_/]+[.]" suites "${listed}")
string(STRIP "${suites}" suites)
if(NOT suites)
  message(FATAL_ERROR "${NAME} has no tests: ${listed}")
endif()
set(text "")
foreach(suite IN LISTS suites)
  string(REGEX REPLACE "[\n.]" "" suite "${suite}")
  string(APPEND text "add_test(\"${NAME}.${suite}\" \"${PROGRAM}\" \"--gtest_filter=${suite}.*\")\n"
         "set_tests_properties(\"${NAME}.${suite}\" PROPERTIES ${PROPERTIES})\n")
endforeach()
file(WRITE ${OUT} "${text}")
