// Linked instead of mpi_communicator.cpp when no MPI was found.
#include "core/base/error.hpp"
#include "runtime/communicators/make_communicator.hpp"

namespace sextant {

bool mpi_available() { return false; }

std::unique_ptr<Communicator> make_mpi_world() {
  throw BackendError(
      "built without MPI: install it (Debian: libopenmpi-dev), configure again, or use local ranks");
}

}  // namespace sextant
