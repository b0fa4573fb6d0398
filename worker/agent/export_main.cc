// nibble-export: writes a checkpoint of a run as a Hugging Face directory, for the daemon.
//
//   nibble-export --run DIRECTORY --step N --destination DIRECTORY
//
// A program of its own: its memory is freed when it ends, and the tokenizer's library cannot
// be in one process with the daemon's (worker/trainer/data/sentencepiece_library.h).
//
// Exit codes: 0 done, 1 error, 2 usage, 3 the checkpoint is damaged. Its last line names what it
// wrote, or the error.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/command_line/command_line.h"
#include "common/counted.h"
#include "common/process/standard_descriptors.h"
#include "common/version/build_version.h"
#include "worker/interop/hf_export.h"
#include "worker/weights/checkpoint_weights.h"

namespace {

constexpr int kError = 1;
constexpr int kUsage = 2;
constexpr int kDamaged = 3;

absl::StatusOr<std::string> Export(const std::string& run, int64_t step,
                                   const std::string& destination) {
  const absl::StatusOr<std::unique_ptr<nibble::CheckpointWeights>> weights =
      nibble::CheckpointWeights::Open(run, step);
  if (!weights.ok()) return weights.status();
  const absl::StatusOr<nibble::HfExportReport> report = nibble::ExportHf(
      **weights, destination,
      {.dtype = nibble::FileDType::kBF16, .context = (*weights)->spec().data.sequence});
  if (!report.ok()) return report.status();
  return absl::StrCat(nibble::Counted(report->tensors, "tensor"), ", ",
                      nibble::Counted(report->bytes, "byte"), " in ",
                      nibble::Counted(report->shards, "file"),
                      report->tokenizer ? ", with the tokenizer" : "");
}

}  // namespace

int main(int argc, char** argv) {
  nibble::ReserveStandardDescriptors();
  std::string run, destination;
  int64_t step = 0;
  nibble::CommandLine app("Writes a checkpoint as a Hugging Face directory", "nibble-export");
  app.SetVersion("nibble-export " + nibble::BuildVersion());
  app.Add("--run", run, "The run's directory, which has its checkpoints").Required();
  app.Add("--step", step, "Of the checkpoint").Required();
  app.Add("--destination", destination, "Directory to make").Required();
  if (const std::optional<int> ended = app.Parse(argc, argv, kUsage)) return *ended;
  const absl::StatusOr<std::string> exported = Export(run, step, destination);
  const std::string text = exported.ok() ? *exported : std::string(exported.status().message());
  std::printf("%s\n", text.c_str());
  if (exported.ok()) return 0;
  return absl::IsDataLoss(exported.status()) ? kDamaged : kError;
}
