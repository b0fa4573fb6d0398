#include "worker/agent/checkpoint_upload.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/counted.h"
#include "common/files/files.h"
#include "common/s3/copies.h"
#include "common/s3/directory_copy.h"
#include "common/s3/object_store.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Links the file if there is one.
absl::Status LinkBeside(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::create_hard_link(from, to, error);
  if (!error || error == std::errc::no_such_file_or_directory) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("linking ", from, ": ", error.message()));
}

}  // namespace

absl::StatusOr<std::string> UploadCheckpoint(const CheckpointRegistry& registry,
                                             const std::string& job_directory,
                                             const v1::DesiredTask& task,
                                             std::function<bool()> cancelled) {
  const v1::CheckpointRef& ref = task.ref();
  NIBBLE_ASSIGN_OR_RETURN(const s3::Place prefix, s3::ParsePlace(task.destination()));
  NIBBLE_ASSIGN_OR_RETURN(s3::Options options, s3::OptionsFromEnvironment());
  options.cancelled = std::move(cancelled);
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<s3::ObjectStore> store,
                          s3::ObjectStore::Create(std::move(options)));

  // One upload of a job runs at a time; a daemon that ended in the middle of one has left its
  // links.
  const std::string stage = job_directory + "/upload";
  NIBBLE_RETURN_IF_ERROR(RemoveTree(stage));
  const absl::Cleanup remove = [&stage] { (void)RemoveTree(stage); };
  NIBBLE_RETURN_IF_ERROR(registry.LinkInto(ref, stage + "/checkpoints"));
  const std::string ordered = absl::StrCat("ordered-by-", ref.step(), "-", ref.attempt());
  for (const std::string& name : {std::string("order"), ordered}) {
    NIBBLE_RETURN_IF_ERROR(LinkBeside(job_directory + "/" + name, stage + "/" + name));
  }
  // Without the job's spec nobody could adopt the copy.
  if (!fs::exists(stage + "/order")) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: this worker does not know the spec of ", ref.job(),
                     ", without which its copy could not be adopted"));
  }

  const std::string name = s3::CopyName(ref.step(), ref.attempt());
  const s3::Place place = {prefix.bucket, absl::StrCat(prefix.key, "/", name)};
  NIBBLE_RETURN_IF_ERROR(s3::BeginCopy(
      *store, prefix, name,
      {.store = task.store(), .continues = task.continues(), .takes_over = task.takes_over()}));
  NIBBLE_ASSIGN_OR_RETURN(const s3::Copied copied,
                          s3::PushDirectory(*store, stage, place, /*overwrite=*/false));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> removed,
                          s3::AddCopy(*store, prefix, name,
                                      static_cast<size_t>(std::max(task.keep(), 1)), task.store()));
  return absl::StrCat(name, ", ", Counted(copied.files, "file"), ", ", copied.bytes, " bytes",
                      removed.empty() ? "" : "; removed ", absl::StrJoin(removed, ", "));
}

}  // namespace nibble
