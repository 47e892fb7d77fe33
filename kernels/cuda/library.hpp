// A vendor's library, loaded when it is first needed: linking cuBLASLt costs every start of the program 0.1 s
// and more (0.5 GB), and a machine without it can still plan. Where it is not found, the reason is an answer.
#pragma once

#include <string>

namespace sextant::cuda {

class Library {
 public:
  explicit Library(std::string name);  // "libcublasLt.so.13"
  const std::string& name() const { return name_; }
  bool found() const { return handle_ != nullptr; }
  const std::string& why_not() const { return why_not_; }

  // Sets `function` to the library's function of that name; throws BackendError when there is none.
  template <class F>
  void get(F& function, const char* symbol) const {
    function = reinterpret_cast<F>(find(symbol));
  }

 private:
  void* find(const char* symbol) const;
  std::string name_, why_not_;
  void* handle_ = nullptr;  // never closed: kernels may be under way until the process ends
};

}  // namespace sextant::cuda
