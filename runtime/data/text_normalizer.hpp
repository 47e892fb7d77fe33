// What a tokenizer does to a text before it is cut: the normalizers of Hugging Face's tokenizers, one after the other. Values.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/split_pattern.hpp"
#include "runtime/data/unicode_forms.hpp"

namespace sextant {

// False when nothing changes; what is in `out` then means nothing. Texts are UTF-8, and not empty.
using NormalizerStep = std::function<bool(std::string_view text, std::string& out)>;

NormalizerStep unicode_form_step(UnicodeForm form);
NormalizerStep lower_case_step();
NormalizerStep strip_accents_step();               // drops combining marks
NormalizerStep strip_step(bool left, bool right);  // white space
NormalizerStep prepend_step(std::string front);
NormalizerStep replace_step(std::string what, std::string by);  // `what` is not empty
NormalizerStep replace_step(SplitPattern what, std::string by);
NormalizerStep byte_letters_step();  // GPT-2's alphabet

class TextNormalizer {
 public:
  struct Scratch {
    std::string now, next;
  };

  void add(NormalizerStep step) { steps_.push_back(std::move(step)); }
  // `text` itself, or what stands in the scratch until it is used again.
  std::string_view apply(std::string_view text, Scratch& scratch) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace sextant
