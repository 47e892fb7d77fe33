// An operation graph of cuDNN's backend interface, built tensor by tensor and operation by operation; the only
// place, with cudnn_graph.cpp, that knows that interface. Answers whether the library has an engine for a graph,
// and runs it. Extents are those of a batch of matrices: {batch, heads, rows, columns}.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct CUstream_st;

namespace sextant::cuda {

using Extents4 = std::array<std::int64_t, 4>;

enum class CudnnType : std::uint8_t { bf16, fp32, int32, boolean };
enum class CudnnPointwise : std::uint8_t {
  add,
  sub,
  mul,
  div,
  exp,
  log,
  identity,
  row_index,  // of a matrix
  column_index,
  greater,
  greater_equal,
  index_difference,  // of whole numbers
  select             // t ? x : b
};

class CudnnGraph {
 public:
  CudnnGraph();
  ~CudnnGraph();
  CudnnGraph(const CudnnGraph&) = delete;

  using Tensor = int;
  static constexpr Tensor kNone = -1;
  // In memory; its address is given to run() under the number that this returns.
  Tensor input(const Extents4& extents, const Extents4& strides, CudnnType);
  // Between operations only, row-major without gaps unless strides are given.
  Tensor virtual_tensor(const Extents4& extents, CudnnType = CudnnType::fp32);
  Tensor virtual_tensor(const Extents4& extents, const Extents4& strides, CudnnType);
  Tensor constant(float value);

  void pointwise(CudnnPointwise, Tensor x, Tensor b, Tensor y, Tensor t = kNone);
  void matmul(Tensor a, Tensor b, Tensor c);
  void sum(Tensor x, Tensor y);  // over the extents that are 1 in y
  void maximum(Tensor x, Tensor y);
  void reshape(Tensor x, Tensor y);  // here: a transposition

  // False when no engine takes the graph with so much workspace. why() then says what the library said, and otherwise why a
  // better plan was not taken. With properties of a GPU as the library writes them (JSON) it answers for that GPU, here or
  // not; such a graph cannot run.
  bool build(int device, std::int64_t most_workspace, const std::string& properties = "");
  const std::string& why() const { return why_; }
  // Plans of the engines that were proposed behind the first one that serves, up to so many in all: how many there are. The
  // first is in use until another is.
  std::size_t make_alternatives(int device, std::size_t most);
  void use(std::size_t plan);
  std::int64_t workspace_bytes() const;  // of the plan in use
  struct Binding {
    Tensor tensor;  // kNone: left out
    void* data;
  };
  void run(const std::vector<Binding>&, void* workspace, int device, CUstream_st*) const;

 private:
  bool next_plan(void* handle);  // of the next engine that serves; under the library's lock

  struct State;
  std::unique_ptr<State> state_;
  std::string why_;
};

std::string cudnn_version();  // "cuDNN 9.19.0"; empty where it is not found

}  // namespace sextant::cuda
