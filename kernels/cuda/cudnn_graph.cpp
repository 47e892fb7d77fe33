#include "kernels/cuda/cudnn_graph.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <fmt/format.h>

#include "core/base/error.hpp"
#include "kernels/cuda/library.hpp"

namespace sextant::cuda {
namespace {

struct Api {
  Library library{"libcudnn.so." + std::to_string(CUDNN_MAJOR)};
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnGetErrorString) error_text = nullptr;
  decltype(&cudnnGetLastErrorString) last_error = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) make = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy = nullptr;
  decltype(&cudnnBackendSetAttribute) set = nullptr;
  decltype(&cudnnBackendGetAttribute) get = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;

  Api() {
    if (!library.found()) return;
    library.get(version, "cudnnGetVersion");
    library.get(error_text, "cudnnGetErrorString");
    library.get(last_error, "cudnnGetLastErrorString");
    library.get(create, "cudnnCreate");
    library.get(set_stream, "cudnnSetStream");
    library.get(make, "cudnnBackendCreateDescriptor");
    library.get(destroy, "cudnnBackendDestroyDescriptor");
    library.get(set, "cudnnBackendSetAttribute");
    library.get(get, "cudnnBackendGetAttribute");
    library.get(finalize, "cudnnBackendFinalize");
    library.get(execute, "cudnnBackendExecute");
  }
};

const Api& api() {
  static const Api instance;
  return instance;
}

std::string reason(cudnnStatus_t status) {
  std::array<char, 512> last{};
  api().last_error(last.data(), last.size());
  return fmt::format("{} {}", api().error_text(status), last.data());
}

void require(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) throw BackendError(fmt::format("cuDNN, {}: {}", what, reason(status)));
}

// One handle per GPU, kept until the process ends; its stream is set before each use, under the lock.
std::mutex handle_mutex;
cudnnHandle_t handle_of(int device) {
  static auto* handles = new std::map<int, cudnnHandle_t>;
  cudnnHandle_t& handle = (*handles)[device];
  if (!handle) require(api().create(&handle), "a handle");
  return handle;
}

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    require(api().make(type, &made_), "a descriptor");
  }
  ~Descriptor() { api().destroy(made_); }
  Descriptor(const Descriptor&) = delete;
  cudnnBackendDescriptor_t get() const { return made_; }

  template <class T>
  void list(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T* values,
            std::int64_t n = 1) {
    require(api().set(made_, name, type, n, values), "an attribute");
  }
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    list(name, type, &value);
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, other.get());
  }
  cudnnStatus_t try_finalize() { return api().finalize(made_); }
  void finalize(const char* what) { require(try_finalize(), what); }

 private:
  cudnnBackendDescriptor_t made_ = nullptr;
};

cudnnDataType_t type_of(CudnnType type) {
  switch (type) {
    case CudnnType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case CudnnType::fp32:
      return CUDNN_DATA_FLOAT;
    case CudnnType::int32:
      return CUDNN_DATA_INT32;
    case CudnnType::boolean:
      return CUDNN_DATA_BOOLEAN;
  }
  throw BackendError("cuDNN: a type");
}

Extents4 packed(const Extents4& e) { return {e[1] * e[2] * e[3], e[2] * e[3], e[3], 1}; }

}  // namespace

struct CudnnGraph::State {
  std::vector<std::unique_ptr<Descriptor>> tensors, parts, operations;
  std::vector<std::pair<Tensor, float>> constants;
  std::unique_ptr<Descriptor> gpu, graph, heuristics;
  std::vector<std::unique_ptr<Descriptor>> configurations;  // best first
  std::size_t tried = 0;                                    // of them, for a plan
  struct Plan {
    std::unique_ptr<Descriptor> descriptor;
    std::int64_t workspace = 0;  // bytes
  };
  std::vector<Plan> plans;
  std::size_t used = 0;  // of the plans
  std::int64_t most_workspace = 0;

  enum class Held : std::uint8_t { in_memory, nowhere, by_value };  // nowhere: a virtual tensor
  Tensor tensor(const Extents4& extents, const Extents4& strides, CudnnType type, Held held) {
    const bool is_virtual = held == Held::nowhere, by_value = held == Held::by_value;
    auto made = std::make_unique<Descriptor>(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const auto id = static_cast<std::int64_t>(tensors.size()) + 1;  // 0 is no number for a tensor
    const std::int64_t alignment = type == CudnnType::boolean || by_value ? 4 : 16;
    made->set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type_of(type));
    made->list(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, extents.data(), 4);
    made->list(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.data(), 4);
    made->set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
    made->set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
    made->set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
    made->set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
    made->finalize("a tensor");
    tensors.push_back(std::move(made));
    return static_cast<Tensor>(tensors.size()) - 1;
  }
  const Descriptor& at(Tensor t) const { return *tensors.at(static_cast<std::size_t>(t)); }
  Descriptor& part(cudnnBackendDescriptorType_t type) {
    return *parts.emplace_back(std::make_unique<Descriptor>(type));
  }
  Descriptor& operation(cudnnBackendDescriptorType_t type) {
    return *operations.emplace_back(std::make_unique<Descriptor>(type));
  }
  void reduce(cudnnReduceTensorOp_t how, Tensor x, Tensor y) {
    Descriptor& reduction = part(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    reduction.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, how);
    reduction.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    reduction.finalize("a reduction");
    Descriptor& o = operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    o.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
    o.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x));
    o.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y));
    o.finalize("a reduction's operation");
  }
};

CudnnGraph::CudnnGraph() : state_(std::make_unique<State>()) {}
CudnnGraph::~CudnnGraph() = default;

CudnnGraph::Tensor CudnnGraph::input(const Extents4& extents, const Extents4& strides, CudnnType type) {
  return state_->tensor(extents, strides, type, State::Held::in_memory);
}
CudnnGraph::Tensor CudnnGraph::virtual_tensor(const Extents4& extents, CudnnType type) {
  return state_->tensor(extents, packed(extents), type, State::Held::nowhere);
}
CudnnGraph::Tensor CudnnGraph::virtual_tensor(const Extents4& extents, const Extents4& strides,
                                              CudnnType type) {
  return state_->tensor(extents, strides, type, State::Held::nowhere);
}
CudnnGraph::Tensor CudnnGraph::constant(float value) {
  const Tensor t = state_->tensor({1, 1, 1, 1}, {1, 1, 1, 1}, CudnnType::fp32, State::Held::by_value);
  state_->constants.emplace_back(t, value);
  return t;
}

void CudnnGraph::pointwise(CudnnPointwise how, Tensor x, Tensor b, Tensor y, Tensor t) {
  constexpr cudnnPointwiseMode_t kModes[] = {
      CUDNN_POINTWISE_ADD,          CUDNN_POINTWISE_SUB,       CUDNN_POINTWISE_MUL,
      CUDNN_POINTWISE_DIV,          CUDNN_POINTWISE_EXP,       CUDNN_POINTWISE_LOG,
      CUDNN_POINTWISE_IDENTITY,     CUDNN_POINTWISE_GEN_INDEX, CUDNN_POINTWISE_GEN_INDEX,
      CUDNN_POINTWISE_CMP_GT,       CUDNN_POINTWISE_CMP_GE,    CUDNN_POINTWISE_SUB,
      CUDNN_POINTWISE_BINARY_SELECT};
  Descriptor& mode = state_->part(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  mode.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, kModes[static_cast<std::size_t>(how)]);
  const bool compares = how == CudnnPointwise::greater || how == CudnnPointwise::greater_equal;
  mode.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
           compares                                  ? CUDNN_DATA_BOOLEAN
           : how == CudnnPointwise::index_difference ? CUDNN_DATA_INT32
                                                     : CUDNN_DATA_FLOAT);
  if (how == CudnnPointwise::row_index || how == CudnnPointwise::column_index)
    mode.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64,
             std::int64_t{how == CudnnPointwise::row_index ? 2 : 3});
  mode.finalize("a pointwise mode");
  Descriptor& o = state_->operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, state_->at(x));
  if (b != kNone) o.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, state_->at(b));
  if (t != kNone) o.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, state_->at(t));
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, state_->at(y));
  o.finalize("a pointwise operation");
}

void CudnnGraph::matmul(Tensor a, Tensor b, Tensor c) {
  Descriptor& product = state_->part(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  product.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  product.finalize("a product");
  Descriptor& o = state_->operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, state_->at(a));
  o.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, state_->at(b));
  o.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, state_->at(c));
  o.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, product);
  o.finalize("a product's operation");
}

void CudnnGraph::sum(Tensor x, Tensor y) { state_->reduce(CUDNN_REDUCE_TENSOR_ADD, x, y); }
void CudnnGraph::maximum(Tensor x, Tensor y) { state_->reduce(CUDNN_REDUCE_TENSOR_MAX, x, y); }

void CudnnGraph::reshape(Tensor x, Tensor y) {
  Descriptor& o = state_->operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, state_->at(x));
  o.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, state_->at(y));
  o.finalize("a transposition");
}

bool CudnnGraph::build(int device, std::int64_t most_workspace, const std::string& properties) {
  const std::lock_guard lock(handle_mutex);
  State& s = *state_;
  cudnnHandle_t handle = nullptr;
  if (properties.empty()) {
    handle = handle_of(device);
  } else {
    s.gpu = std::make_unique<Descriptor>(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    s.gpu->list(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, properties.c_str(),
                static_cast<std::int64_t>(properties.size()));
    s.gpu->finalize("properties of a GPU");
  }
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const auto& o : s.operations) operations.push_back(o->get());
  s.graph = std::make_unique<Descriptor>(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  s.graph->list(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations.data(),
                static_cast<std::int64_t>(operations.size()));
  if (handle) s.graph->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  if (const auto status = s.graph->try_finalize(); status != CUDNN_STATUS_SUCCESS) {
    why_ = "graph: " + reason(status);
    return false;
  }
  s.heuristics = std::make_unique<Descriptor>(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  s.heuristics->set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, *s.graph);
  s.heuristics->set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  if (s.gpu) s.heuristics->set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *s.gpu);
  if (const auto status = s.heuristics->try_finalize(); status != CUDNN_STATUS_SUCCESS) {
    why_ = "heuristics: " + reason(status);
    return false;
  }
  constexpr std::int64_t kMost = 8;
  std::vector<cudnnBackendDescriptor_t> found;
  for (std::int64_t i = 0; i < kMost; ++i) {
    s.configurations.push_back(std::make_unique<Descriptor>(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    found.push_back(s.configurations.back()->get());
  }
  std::int64_t count = 0;
  if (const auto status = api().get(s.heuristics->get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, kMost, &count, found.data());
      status != CUDNN_STATUS_SUCCESS || count == 0) {
    why_ = "no engine: " + reason(status);
    return false;
  }
  s.configurations.resize(static_cast<std::size_t>(std::min(count, kMost)));
  s.most_workspace = most_workspace;
  return next_plan(handle);  // why_ stays: a plan before this one was better
}

bool CudnnGraph::next_plan(void* handle) {
  State& s = *state_;
  while (s.tried < s.configurations.size()) {
    const std::size_t i = s.tried++;
    State::Plan made{std::make_unique<Descriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
    if (handle)
      made.descriptor->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE,
                           static_cast<cudnnHandle_t>(handle));
    else
      made.descriptor->set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *s.gpu);
    made.descriptor->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *s.configurations[i]);
    if (const auto status = made.descriptor->try_finalize(); status != CUDNN_STATUS_SUCCESS) {
      why_ = fmt::format("plan {}: {}", i, reason(status));
      continue;
    }
    std::int64_t one = 0;
    require(api().get(made.descriptor->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                      &one, &made.workspace),
            "a plan's workspace");
    if (made.workspace > s.most_workspace) {
      why_ = fmt::format("plan {}: it wants {} bytes of workspace, at most {} are given", i, made.workspace,
                         s.most_workspace);
      continue;
    }
    s.plans.push_back(std::move(made));
    return true;
  }
  return false;
}

std::size_t CudnnGraph::make_alternatives(int device, std::size_t most) {
  const std::lock_guard lock(handle_mutex);
  std::string why = why_;  // of the plan in use
  while (state_->plans.size() < most && next_plan(handle_of(device))) {
  }
  why_ = std::move(why);
  return state_->plans.size();
}

void CudnnGraph::use(std::size_t plan) { state_->used = plan; }

std::int64_t CudnnGraph::workspace_bytes() const { return state_->plans.at(state_->used).workspace; }

void CudnnGraph::run(const std::vector<Binding>& bindings, void* workspace, int device,
                     CUstream_st* stream) const {
  std::vector<std::int64_t> ids;
  std::vector<void*> data;
  for (const Binding& b : bindings)
    if (b.tensor != kNone) {
      ids.push_back(b.tensor + 1);
      data.push_back(b.data);
    }
  std::vector<float> values;
  values.reserve(state_->constants.size());
  for (const auto& [tensor, value] : state_->constants) {
    ids.push_back(tensor + 1);
    data.push_back(&values.emplace_back(value));
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const auto n = static_cast<std::int64_t>(ids.size());
  pack.list(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.data(), n);
  pack.list(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, data.data(), n);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize("addresses");
  const std::lock_guard lock(handle_mutex);
  const cudnnHandle_t handle = handle_of(device);
  require(api().set_stream(handle, stream), "a stream");
  require(api().execute(handle, state_->plans[state_->used].descriptor->get(), pack.get()), "attention");
}

std::string cudnn_version() {
  if (!api().library.found()) return "";
  const std::size_t v = api().version();
  return fmt::format("cuDNN {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

}  // namespace sextant::cuda
