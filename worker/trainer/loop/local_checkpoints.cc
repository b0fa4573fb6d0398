#include "worker/trainer/loop/local_checkpoints.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errno_error.h"
#include "common/status_macros.h"
#include "worker/trainer/loop/run_reporter.h"
#include "worker/weights/checkpoint_weights.h"

namespace nibble {
namespace {

int64_t SteadyMilliseconds() { return static_cast<int64_t>(1000 * SteadySeconds()); }

void AddSkipped(const GoodCheckpoint& good, std::vector<std::string>& notices) {
  for (const SkippedCheckpoint& skipped : good.skipped) {
    notices.push_back(
        absl::StrCat("checkpoint of step ", skipped.step,
                     " is damaged and was skipped: ", std::string(skipped.status.message())));
  }
}

absl::StatusOr<InitialWeights> FindIn(const InitSpec& init) {
  absl::StatusOr<std::string> path = FindStore(init.path);
  if (!path.ok()) return path.status();
  NIBBLE_ASSIGN_OR_RETURN(const StoreIdentity identity, CheckpointStore::IdentityOf(*path));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointStore> store,
                          CheckpointStore::Open(*path, {.identity = identity, .read_only = true}));
  InitialWeights weights = {.store = *std::move(path), .step = init.step};
  if (init.step >= 0) {
    NIBBLE_ASSIGN_OR_RETURN(const Verification verified, store->Verify(init.step));
    if (!verified.ok()) return verified.ToStatus();
    return weights;
  }
  NIBBLE_ASSIGN_OR_RETURN(const GoodCheckpoint good, store->LatestGood());
  weights.step = good.reader->manifest().header.step;
  AddSkipped(good, weights.notices);
  return weights;
}

}  // namespace

absl::StatusOr<InitialWeights> FindInitialWeights(const InitSpec& init) {
  absl::StatusOr<InitialWeights> weights = FindIn(init);
  if (weights.ok()) return weights;
  return absl::Status(weights.status().code(),
                      absl::StrCat("init_from.path: ", std::string(weights.status().message())));
}

std::string CheckpointDirectory(const JobSpec& spec) {
  return OutputDirectory(spec) + "/checkpoints";
}

absl::StatusOr<std::unique_ptr<LocalCheckpoints>> LocalCheckpoints::Open(
    const JobSpec& spec, const StartFrom& from, std::function<void(const std::string&)> trouble) {
  const std::string path = CheckpointDirectory(spec);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return ErrnoError(error.value(), absl::StrCat("output.directory: cannot make ", path));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<CheckpointStore> store,
      CheckpointStore::Open(path, {.identity = {.cluster = "", .job = spec.name},
                                   .retention = {.keep_last = spec.checkpoints.keep_last,
                                                 .keep_every = spec.checkpoints.keep_every}}));
  std::unique_ptr<LocalCheckpoints> local(new LocalCheckpoints);
  local->store_ = std::move(store);
  const CheckpointStore::OpenReport& report = local->store_->open_report();
  local->notices_ = report.problems;
  if (!report.removed.empty()) {
    local->notices_.push_back(absl::StrCat("removed ", report.removed.size(),
                                           " unfinished checkpoints, ", report.removed_bytes,
                                           " bytes"));
  }
  local->attempt_ = local->store_->attempt() + 1;
  if (from.step.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(const Verification verified, local->store_->Verify(*from.step));
    if (!verified.ok()) return verified.ToStatus();
    local->resume_step_ = from.step;
  } else if (!from.fresh) {
    absl::StatusOr<GoodCheckpoint> good = local->store_->LatestGood();
    if (good.ok()) {
      local->resume_step_ = good->reader->manifest().header.step;
      AddSkipped(*good, local->notices_);
    } else if (!absl::IsNotFound(good.status())) {
      return good.status();
    }
  }
  NIBBLE_RETURN_IF_ERROR(
      local->Serve(static_cast<int32_t>(spec.resources.ranks), std::move(trouble)));
  return local;
}

absl::Status LocalCheckpoints::Serve(int32_t ranks,
                                     std::function<void(const std::string&)> trouble) {
  NIBBLE_ASSIGN_OR_RETURN(host_, CheckpointHost::Start({.store = store_.get(),
                                                        .attempt = attempt_,
                                                        .ranks = ranks,
                                                        .clock = SteadySeconds,
                                                        .trouble = std::move(trouble)}));
  std::error_code error;
  // Not in the job's directory: a socket's path may have at most 107 characters.
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  if (error) return ErrnoError(error.value(), "TMPDIR: finding the temporary directory");
  std::string directory = temporary / "nibble-link-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    return ErrnoError(errno, absl::StrCat("TMPDIR: making ", directory));
  }
  socket_directory_ = directory;
  NIBBLE_ASSIGN_OR_RETURN(link_, LinkHost::Start({.address = directory + "/link",
                                                  .attempt = attempt_,
                                                  .ranks = ranks,
                                                  .clock = SteadyMilliseconds,
                                                  .snapshots = host_.get()}));
  return absl::OkStatus();
}

LocalCheckpoints::~LocalCheckpoints() {
  link_.reset();
  std::error_code ignored;
  if (!socket_directory_.empty()) std::filesystem::remove_all(socket_directory_, ignored);
}

}  // namespace nibble
