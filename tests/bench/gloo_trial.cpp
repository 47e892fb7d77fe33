// The same figures of Gloo (libgloo-dev), by which docs/performance.md decides for the own transport.
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/transport_trial.hpp"

int main() {
  char folder[] = "/tmp/gloo-trial-XXXXXX";
  if (!mkdtemp(folder)) return 1;
  const int rank = fork() == 0 ? 1 : 0;
  gloo::transport::tcp::attr attributes("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(folder);
  gloo::rendezvous::Context context(rank, 2);
  context.connectFullMesh(store, device);
  sextant::bench::measure_transport(
      "gloo", rank, 1,
      [&](std::size_t bytes, const void* data) {
        auto buffer = context.createUnboundBuffer(const_cast<void*>(data), bytes);
        buffer->send(1 - rank, 1);
        buffer->waitSend();
      },
      [&](std::size_t bytes, void* data) {
        auto buffer = context.createUnboundBuffer(data, bytes);
        buffer->recv(1 - rank, 1);
        buffer->waitRecv();
      });
  if (rank != 0) return 0;
  wait(nullptr);
  std::filesystem::remove_all(folder);
}
