// nibble-export: writes a checkpoint of a run as a Hugging Face directory, for the daemon.
//
//   nibble-export --run DIRECTORY --step N --destination DIRECTORY
//
// A program of its own: what it needs of memory is gone with it, and the tokenizer's library cannot
// be in one process with the daemon's (worker/trainer/data/sentencepiece_library.h).
//
// Exit codes: 0 done, 1 error, 2 usage, 3 the checkpoint is damaged. Its last line says what it
// wrote, or what is wrong.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/counted.h"
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
  std::string run, destination;
  int64_t step = 0;
  CLI::App app("Writes a checkpoint as a Hugging Face directory", "nibble-export");
  app.add_option("--run", run, "The run's directory, which has its checkpoints")->required();
  app.add_option("--step", step, "Of the checkpoint")->required();
  app.add_option("--destination", destination, "Directory to make")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  const absl::StatusOr<std::string> exported = Export(run, step, destination);
  const std::string text = exported.ok() ? *exported : std::string(exported.status().message());
  std::printf("%s\n", text.c_str());
  if (exported.ok()) return 0;
  return absl::IsDataLoss(exported.status()) ? kDamaged : kError;
}
