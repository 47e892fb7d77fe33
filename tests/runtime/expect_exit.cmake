# cmake -DEXPECTED=7 -DCOMMAND=... -P expect_exit.cmake: passes when COMMAND ends with that exit code.
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE code TIMEOUT 50)
if(NOT code EQUAL EXPECTED)
  message(FATAL_ERROR "exit code ${code}, expected ${EXPECTED}")
endif()
