// What `nibble model` has to say of a model, as text for people and JSON for programs.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_LOCAL_MODEL_REPORT_H_
#define NIBBLE_CLIENT_LOCAL_MODEL_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/memory.h"
#include "model/model_spec.h"
#include "model/outline.h"

namespace nibble {

struct ModelReport {
  ModelSpec spec;
  int64_t linears = 0;
  int64_t parameters = 0;
  std::vector<PartCount> parts;
  int64_t sequence = 0;
  int64_t ranks = 0;
  FlopsPerToken flops;
  MemoryPerRank memory;  // of a microbatch of one sequence
};

// The tokens of a sequence where nobody says: 2048, or what learned positions allow.
int64_t DefaultSequence(const ModelSpec& spec);

// InvalidArgument naming the field, its value and the bound: a spec that is not valid, a sequence
// longer than the learned positions, or EstimateMemory's bounds.
absl::StatusOr<ModelReport> MakeModelReport(const ModelSpec& spec, int64_t sequence, int64_t ranks);

// Both end with a newline. JSON gives whole numbers: parameters, operations, bytes.
std::string ModelReportText(const ModelReport& report);
std::string ModelReportJson(const ModelReport& report);

// One line (or one element of an array) per model.
std::string ModelListText(const std::vector<ModelReport>& reports);
std::string ModelListJson(const std::vector<ModelReport>& reports);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_MODEL_REPORT_H_
