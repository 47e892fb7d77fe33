// cuDNN's backend interface as its manual describes it, for the operations that the project's graphs are made of. A graph
// is interpreted tensor by tensor, in fp32, with the roundings that its tensors' formats ask for. Longer than others:
// the interface is one, a descriptor, its attributes, and a case for each operation.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include <cudnn.h>

#include "tests/cuda/emulation/gpu.hpp"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace {

using Extents = std::array<std::int64_t, 4>;

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<int, std::vector<char>> attributes = {};

  template <class T>
  std::vector<T> list(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    std::vector<T> values(found == attributes.end() ? 0 : found->second.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), found->second.data(), found->second.size());
    return values;
  }
  template <class T>
  T get(cudnnBackendAttributeName_t name) const {
    T value;
    std::memcpy(&value, attributes.at(name).data(), sizeof value);
    return value;
  }
  const Descriptor* part(cudnnBackendAttributeName_t name) const {
    const auto found = list<void*>(name);
    return found.empty() ? nullptr : static_cast<const Descriptor*>(found.front());
  }
};

std::size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;  // enumerations
  }
}

struct Tensor {
  Extents extents, strides;
  cudnnDataType_t type;
  bool in_memory, by_value;
  std::int64_t id, alignment;

  explicit Tensor(const Descriptor& d)
      : type(d.get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
        in_memory(!d.get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)),
        by_value(d.get<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE)),
        id(d.get<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        alignment(d.get<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)) {
    std::ranges::copy(d.list<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS), extents.begin());
    std::ranges::copy(d.list<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES), strides.begin());
  }
  std::size_t elements() const {
    return static_cast<std::size_t>(extents[0] * extents[1] * extents[2] * extents[3]);
  }
  std::size_t place(const Extents& i) const {
    return static_cast<std::size_t>(i[0] * strides[0] + i[1] * strides[1] + i[2] * strides[2] +
                                    i[3] * strides[3]);
  }
};

// Calls f(index, number of the element in row-major order).
template <class F>
void for_each(const Extents& e, F&& f) {
  std::size_t n = 0;
  Extents i{};
  for (i[0] = 0; i[0] < e[0]; ++i[0])
    for (i[1] = 0; i[1] < e[1]; ++i[1])
      for (i[2] = 0; i[2] < e[2]; ++i[2])
        for (i[3] = 0; i[3] < e[3]; ++i[3]) f(i, n++);
}

float rounded(float x, cudnnDataType_t type) {
  if (type != CUDNN_DATA_BFLOAT16 || std::isnan(x)) return x;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

// One run of a graph: values of its tensors, row-major.
class Run {
 public:
  Run(const Descriptor& graph, std::map<std::int64_t, void*> memory, std::map<std::int64_t, float> constants)
      : graph_(graph), memory_(std::move(memory)), constants_(std::move(constants)) {}

  void operator()() {
    for (void* operation : graph_.list<void*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
      const auto& o = *static_cast<const Descriptor*>(operation);
      switch (o.type) {
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
          pointwise(o);
          break;
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
          matmul(o);
          break;
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
          reduction(o);
          break;
        case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
          reshape(o);
          break;
        default:
          throw emulation::Fault("cuDNN: an operation that is not emulated");
      }
    }
  }

 private:
  using Values = std::vector<float>;

  const Values& read(const Tensor& t) {
    if (const auto known = values_.find(t.id); known != values_.end()) return known->second;
    Values& values = values_[t.id];
    values.resize(t.elements());
    if (t.by_value) {
      values[0] = constants_.at(t.id);
      return values;
    }
    if (!t.in_memory) throw emulation::Fault("cuDNN: a tensor is read before it is made");
    const void* data = memory_.at(t.id);
    for_each(t.extents, [&](const Extents& i, std::size_t n) {
      values[n] =
          t.type == CUDNN_DATA_BFLOAT16
              ? std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(data)[t.place(i)]} << 16)
              : static_cast<const float*>(data)[t.place(i)];
    });
    return values;
  }
  void write(const Tensor& t, Values values) {
    for (float& x : values) x = rounded(x, t.type);
    if (t.in_memory) {
      void* data = memory_.at(t.id);
      for_each(t.extents, [&](const Extents& i, std::size_t n) {
        if (t.type == CUDNN_DATA_BFLOAT16)
          static_cast<std::uint16_t*>(data)[t.place(i)] =
              static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[n]) >> 16);
        else
          static_cast<float*>(data)[t.place(i)] = values[n];
      });
    }
    values_[t.id] = std::move(values);
  }
  // The elements of a smaller tensor that stand for those of a larger: a head of keys serves as many heads of queries.
  class Shared {
   public:
    Shared(const Extents& of, const Extents& e) {
      std::int64_t step = 1;
      for (std::size_t k = 4; k-- > 0; step *= e[k]) {
        if (of[k] % e[k] != 0) throw emulation::Fault("cuDNN: extents that do not divide each other");
        for (std::int64_t i = 0; i < of[k]; ++i)
          part_[k].push_back(static_cast<std::size_t>(i / (of[k] / e[k]) * step));
      }
    }
    std::size_t operator()(const Extents& i) const {
      std::size_t n = 0;
      for (std::size_t k = 0; k < 4; ++k) n += part_[k][static_cast<std::size_t>(i[k])];
      return n;
    }

   private:
    std::array<std::vector<std::size_t>, 4> part_;  // of each index, in elements
  };

  // NOLINTNEXTLINE(readability-function-size): a case for each operation
  void pointwise(const Descriptor& o) {
    const Descriptor& how = *o.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = how.get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const Tensor y(*o.part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    const auto operand = [&](cudnnBackendAttributeName_t name) {
      if (!o.part(name)) throw emulation::Fault("cuDNN: a pointwise operation lacks an operand");
      const Tensor t(*o.part(name));
      return [values = &read(t), place = Shared(y.extents, t.extents)](const Extents& i) {
        return (*values)[place(i)];
      };
    };
    Values out(y.elements());
    const auto fill = [&](const auto& f) {
      for_each(y.extents, [&](const Extents& i, std::size_t n) { out[n] = f(i); });
    };
    const auto unary = [&](const auto& f) {
      fill([&, x = operand(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)](const Extents& i) { return f(x(i)); });
    };
    const auto binary = [&](const auto& f) {
      fill([&, x = operand(CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
            b = operand(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)](const Extents& i) { return f(x(i), b(i)); });
    };
    switch (mode) {
      case CUDNN_POINTWISE_ADD:
        binary([](float x, float b) { return x + b; });
        break;
      case CUDNN_POINTWISE_SUB:
        binary([](float x, float b) { return x - b; });
        break;
      case CUDNN_POINTWISE_MUL:
        binary([](float x, float b) { return x * b; });
        break;
      case CUDNN_POINTWISE_DIV:
        binary([](float x, float b) { return x / b; });
        break;
      case CUDNN_POINTWISE_CMP_GT:
        binary([](float x, float b) { return x > b ? 1.0f : 0.0f; });
        break;
      case CUDNN_POINTWISE_CMP_GE:
        binary([](float x, float b) { return x >= b ? 1.0f : 0.0f; });
        break;
      case CUDNN_POINTWISE_EXP:
        unary([](float x) { return std::exp(x); });
        break;
      case CUDNN_POINTWISE_LOG:
        unary([](float x) { return std::log(x); });
        break;
      case CUDNN_POINTWISE_IDENTITY:
        unary([](float x) { return x; });
        break;
      case CUDNN_POINTWISE_GEN_INDEX: {
        const auto axis = static_cast<std::size_t>(how.get<std::int64_t>(CUDNN_ATTR_POINTWISE_AXIS));
        static_cast<void>(operand(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));  // it must have been made
        fill([&](const Extents& i) { return static_cast<float>(i.at(axis)); });
        break;
      }
      case CUDNN_POINTWISE_BINARY_SELECT: {
        const auto chosen = operand(CUDNN_ATTR_OPERATION_POINTWISE_TDESC),
                   x = operand(CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
                   b = operand(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        fill([&](const Extents& i) { return chosen(i) != 0 ? x(i) : b(i); });
        break;
      }
      default:
        throw emulation::Fault("cuDNN: a pointwise mode that is not emulated");
    }
    write(y, std::move(out));
  }

  void matmul(const Descriptor& o) {
    const Tensor a(*o.part(CUDNN_ATTR_OPERATION_MATMUL_ADESC)), b(*o.part(CUDNN_ATTR_OPERATION_MATMUL_BDESC)),
        c(*o.part(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    if (a.extents[3] != b.extents[2] || a.extents[2] != c.extents[2] || b.extents[3] != c.extents[3])
      throw emulation::Fault("cuDNN: extents of a product disagree");
    const Values &left = read(a), &right = read(b);
    const auto rows = static_cast<std::size_t>(c.extents[2]), cols = static_cast<std::size_t>(c.extents[3]),
               inner = static_cast<std::size_t>(a.extents[3]);
    Values out(c.elements());
    const Extents matrices{c.extents[0], c.extents[1], 1, 1};
    for_each(matrices, [&](const Extents& i, std::size_t n) {
      const auto of = [&](const Tensor& t) {
        return Shared(matrices, {t.extents[0], t.extents[1], 1, 1})(i) *
               static_cast<std::size_t>(t.extents[2] * t.extents[3]);
      };
      const float *x = left.data() + of(a), *y = right.data() + of(b);
      float* z = out.data() + n * rows * cols;
      for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t k = 0; k < inner; ++k)
          for (std::size_t col = 0; col < cols; ++col)
            z[row * cols + col] += x[row * inner + k] * y[k * cols + col];
    });
    write(c, std::move(out));
  }

  void reduction(const Descriptor& o) {
    const Tensor x(*o.part(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
        y(*o.part(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    const bool sums =
        o.part(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
            ->get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_ADD;
    const Values& in = read(x);
    Values out(y.elements(), sums ? 0.0f : -INFINITY);
    const Shared place(x.extents, y.extents);
    for_each(x.extents, [&](const Extents& i, std::size_t n) {
      float& to = out[place(i)];
      to = sums ? to + in[n] : std::max(to, in[n]);
    });
    write(y, std::move(out));
  }

  // The same memory under other extents and strides.
  void reshape(const Descriptor& o) {
    const Tensor x(*o.part(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)),
        y(*o.part(CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
    if (x.elements() != y.elements())
      throw emulation::Fault("cuDNN: a reshape changes the number of elements");
    const Values& in = read(x);
    Values at(x.place({x.extents[0] - 1, x.extents[1] - 1, x.extents[2] - 1, x.extents[3] - 1}) + 1);
    for_each(x.extents, [&](const Extents& i, std::size_t n) { at[x.place(i)] = in[n]; });
    Values out(y.elements());
    for_each(y.extents, [&](const Extents& i, std::size_t n) { out[n] = at.at(y.place(i)); });
    write(y, std::move(out));
  }

  const Descriptor& graph_;
  std::map<std::int64_t, void*> memory_;
  std::map<std::int64_t, float> constants_;
  std::map<std::int64_t, Values> values_;
};

// As an engine asks for it: something, and room for what heads of queries make of a head of keys before it is summed.
std::int64_t workspace_of(const Descriptor& graph) {
  std::int64_t bytes = 4096;
  for (void* operation : graph.list<void*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    const auto& o = *static_cast<const Descriptor*>(operation);
    if (o.type != CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) continue;
    const Tensor x(*o.part(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
        y(*o.part(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    if (x.extents[1] != y.extents[1]) bytes += static_cast<std::int64_t>(4 * x.elements());
  }
  return bytes;
}
const Descriptor& graph_of(const Descriptor& plan) {
  return *plan.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
}

}  // namespace

extern "C" {

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t) { return "an error of cuDNN"; }
void cudnnGetLastErrorString(char* text, std::size_t bytes) { std::memset(text, 0, bytes); }
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  *made = new Descriptor{.type = type};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete static_cast<Descriptor*>(d);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t n, const void* values) {
  auto& d = *static_cast<Descriptor*>(descriptor);
  if (d.finalized) return CUDNN_STATUS_NOT_INITIALIZED;
  const auto* first = static_cast<const char*>(values);
  d.attributes[name].assign(first, first + static_cast<std::size_t>(n) * bytes_of(type));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  static_cast<Descriptor*>(descriptor)->finalized = true;
  return CUDNN_STATUS_SUCCESS;
}
// One engine for any graph; its configuration is the graph.
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t,
                                       std::int64_t, std::int64_t* n, void* values) {
  const auto& d = *static_cast<const Descriptor*>(descriptor);
  if (!d.finalized) return CUDNN_STATUS_NOT_INITIALIZED;
  *n = 1;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    if (std::getenv("SEXTANT_EMULATION_NO_ATTENTION")) return CUDNN_STATUS_NOT_SUPPORTED;
    auto& configuration = **static_cast<Descriptor**>(values);
    configuration.attributes = d.attributes;
    configuration.finalized = true;
    return CUDNN_STATUS_SUCCESS;
  }
  if (name != CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) return CUDNN_STATUS_NOT_SUPPORTED;
  const std::int64_t bytes = workspace_of(graph_of(d));
  std::memcpy(values, &bytes, sizeof bytes);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_,
                                  cudnnBackendDescriptor_t pack_) {
  const auto &plan = *static_cast<const Descriptor*>(plan_), &pack = *static_cast<const Descriptor*>(pack_);
  const Descriptor& graph = graph_of(plan);
  const auto ids = pack.list<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto data = pack.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  void* const workspace = pack.get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  std::map<std::int64_t, Tensor> tensors;
  for (void* operation : graph.list<void*>(CUDNN_ATTR_OPERATIONGRAPH_OPS))
    for (const auto& [name, value] : static_cast<const Descriptor*>(operation)->attributes) {
      void* part = nullptr;
      if (value.size() == sizeof part) std::memcpy(&part, value.data(), sizeof part);
      if (const auto* t = static_cast<const Descriptor*>(part);
          t && t->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && !t->get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL))
        tensors.emplace(t->get<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID), Tensor(*t));
    }
  std::map<std::int64_t, void*> memory;
  std::map<std::int64_t, float> constants;  // read now: they are the caller's
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Tensor& t = tensors.at(ids[i]);
    if (reinterpret_cast<std::uintptr_t>(data[i]) % static_cast<std::uintptr_t>(t.alignment) != 0)
      return CUDNN_STATUS_BAD_PARAM;
    if (t.by_value)
      constants[ids[i]] = *static_cast<const float*>(data[i]);
    else
      memory[ids[i]] = data[i];
  }
  if (memory.size() + constants.size() != tensors.size()) return CUDNN_STATUS_BAD_PARAM;
  const auto scribbled = static_cast<std::size_t>(workspace_of(graph));
  const auto work = [&graph, memory, constants, workspace, scribbled] {
    std::memset(workspace, 0xff, scribbled);
    Run(graph, memory, constants)();
    std::memset(workspace, 0xff, scribbled);
  };
  return emulation::enqueue(handle->stream, work) == cudaSuccess ? CUDNN_STATUS_SUCCESS
                                                                 : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
