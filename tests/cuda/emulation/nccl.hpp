// What tests ask of the emulated NCCL.
#pragma once

namespace emulation {

void break_links();  // from now on every communicator says that a peer is gone

}  // namespace emulation
