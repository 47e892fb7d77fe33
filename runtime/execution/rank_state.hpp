// The state of one rank: where the parameters, gradients and optimizer state of its buckets lie, how they get their first
// values, and how the owned ones are read back in model space. The layout of an optimizer buffer of n elements is master
// (absent when parameters are their own accumulator format), first moment, second moment, and, where the new parameters
// rest in another memory, a copy of them.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/graph/parameter_layout.hpp"
#include "kernels/kernel_table.hpp"
#include "runtime/execution/arena.hpp"
#include "runtime/weights/model_slice.hpp"

namespace sextant {

// An owned piece of one parameter: elements [begin, begin + n) of its slice, row-major.
struct OwnedPiece {
  const ModelSlice& slice;
  std::int64_t begin = 0;
};
enum class StateField : std::uint8_t { master, moment1, moment2 };
inline constexpr std::array kStateFields = {StateField::master, StateField::moment1, StateField::moment2};

class RankState {
 public:
  RankState(const ExecutionGraph&, const Arena&, const StackRules&, RankCoord);

  const ModelSpec& model() const { return graph_.model; }
  const ParameterLayout& layout() const { return layout_; }
  const Bucket& bucket(std::size_t b) const { return layout_.buckets[b]; }
  // Elements of the owned slice, of the bucket before it, and of every shard's slice.
  std::int64_t slice(std::size_t b) const { return part(b) * weights_[static_cast<std::size_t>(shard_)]; }
  std::int64_t slice_begin(std::size_t b) const { return part(b) * parts_before_; }
  std::vector<std::int64_t> slices(std::size_t b) const;
  std::int64_t on_host(std::size_t b) const { return host_share(graph_.plan.optimizer_offload, slice(b)); }
  std::int64_t on_device(std::size_t b) const { return slice(b) - on_host(b); }
  Dtype parameter_dtype() const { return parameter_; }
  Dtype accumulator() const { return accumulator_; }

  // The owned slice where it rests: of a whole bucket, the rank's part.
  TensorView owned_parameter(std::size_t b) const;
  TensorView owned_gradient(std::size_t b) const;
  TensorView whole_parameter(std::size_t b) const;  // not when fetched unit by unit
  TensorView host_gradient(std::size_t b) const;

  // Adam over the part that the device (or the host) updates.
  AdamwArgs adamw(std::size_t b, bool host) const;
  // New parameters that wait in an optimizer buffer to be copied to where they rest.
  TensorView pending_parameter(std::size_t b, bool host) const;

  // Calls for every range of the owned gradient that this rank alone stands for in a sum over the world.
  void for_each_counted(std::size_t b, const std::function<void(ElementRange)>&) const;

  // f(parameter of layout(), range of the owned slice) for every owned range of a parameter's elements.
  void for_each_piece(std::size_t b, const std::function<void(std::size_t parameter, ElementRange)>& f) const;
  const ModelSlice& slice_of(std::size_t parameter) const { return slices_[parameter]; }
  // The first element of an owned range in its slice.
  std::int64_t begin_in_slice(std::size_t b, std::size_t parameter, ElementRange range) const {
    return slice_begin(b) + range.begin - layout_.parameters[parameter].offset;
  }
  // Of all ranks that hold this piece, exactly one stores it; replicas share the work.
  bool stores(std::size_t b, std::size_t parameter) const;
  // The owned slice's state in the accumulator's format: its device part, or the host part behind it.
  TensorView field(std::size_t b, bool host, StateField) const;

  // First values of parameters and optimizer state. Weights with a recipe are made by `kernels` on `stream` where they
  // rest on the device; others are read into the host's memory and brought there. Blocks.
  void initialise(const WeightSource&, const KernelTable&, StreamId stream);
  // Makes the parameters from these master weights, which have been written to field() as well.
  void adopt_master(std::size_t b, bool host, const TensorView& master) const;
  void read_owned(StateField, const std::function<void(const OwnedPiece&, std::span<const double>)>&) const;

 private:
  struct Home {
    std::byte *parameter = nullptr, *gradient = nullptr, *optimizer = nullptr;
    std::byte *host_parameter = nullptr, *host_optimizer = nullptr, *host_gradient = nullptr;
    bool parameter_whole = false, gradient_whole = false;
  };
  void read_weights(const WeightSource&, const KernelTable&, StreamId);
  void make_weights(const WeightSource::Recipe&, const KernelTable&, StreamId);
  bool is_copy(const Parameter&) const;  // of the embedding, for a tied head on another stage
  TensorView row(std::byte* data, Dtype dtype, std::int64_t n) const { return {data, dtype, 1, n}; }
  std::int64_t part(std::size_t b) const { return bucket(b).elements / layout_.parts; }

  const ExecutionGraph& graph_;
  Device& device_;
  ParameterLayout layout_;
  Dtype parameter_, accumulator_;
  std::vector<int> weights_;  // by shard: its parts of every bucket
  int shard_ = 0, parts_before_ = 0, replica_ = 0, tp_rank_ = 0;
  std::vector<Home> homes_;                          // by bucket
  std::vector<ModelSlice> slices_;                   // by parameter
  std::vector<std::vector<ElementRange>> decay_[2];  // [host][bucket], from the part's first element
};

}  // namespace sextant
