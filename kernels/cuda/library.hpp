// A vendor's library, loaded when it is first needed: linking cuBLASLt costs every start of the program 0.1 s
// and more (0.5 GB), and a machine without it can still plan. Where it is not found, the reason is an answer.
#pragma once

#include <initializer_list>
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

// The first of these that is there, or else the first with its reason. A version before the headers' serves where it has the
// same functions: a machine's CUDA may be older than its driver.
inline Library first_found(std::initializer_list<std::string> names) {
  for (const std::string& name : names)
    if (Library library(name); library.found()) return library;
  return Library(*names.begin());
}

}  // namespace sextant::cuda
