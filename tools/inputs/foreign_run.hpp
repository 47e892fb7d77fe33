// The file of --from as part of a question: what it says where no option does, and what it leaves to the options.
#pragma once

#include <filesystem>
#include <string>

#include "tools/import/imported_run.hpp"
#include "tools/inputs/file_kind.hpp"
#include "tools/inputs/inputs.hpp"

namespace sextant {

// Variables that a script uses and does not set are this process's. `layers`: of the model that is named beside it, 0 where none is.
// Throws ConfigError.
ImportedRun read_foreign_run(const std::string& file, const std::filesystem::path& presets, int layers = 0);

// What the file does not say and an option must. Throws UsageError.
void require_beside(const ImportedRun&, const QuestionOptions&);

// Throws ConfigError where the vocabulary is not known, by the file or by --set.
void check_imported_model(const ImportedRun&, const ModelSpec&);

// Layout, batch and formats of the file. Where a layout is looked for, its own need not run on this cluster.
void use_run(const ImportedRun&, bool searches, Question&);

// What was read, assumed and not understood.
void add_import_notes(const ImportedRun&, Question&);

// Its layout against its batch, on this cluster. Throws ConfigError.
void check_imported_plan(const ImportedRun&, const Question&);

// A file of another framework where a plan is expected: says what it is, and its layout as a key where it states one that the cluster's
// GPUs can be. Throws ConfigError.
[[noreturn]] void refuse_foreign_plan(const std::string& file, const FileKind&, const std::string& cluster,
                                      const std::filesystem::path& presets);

}  // namespace sextant
