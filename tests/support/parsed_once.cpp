// Has nothing of its own: headers that nearly every test includes are compiled with it (tests/CMakeLists.txt).
