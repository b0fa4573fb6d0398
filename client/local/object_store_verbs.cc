// `nibble checkpoint push | pull`: directories of checkpoints and exports in object storage.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/local/local_commands.h"
#include "client/shell/command_line.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/s3/copies.h"
#include "common/s3/directory_copy.h"
#include "common/s3/object_store.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

struct ObjectFlags {
  std::string directory;
  std::string place;
  bool overwrite = false;
  std::string print = "table";
};

absl::StatusOr<Reply> Copy(const ObjectFlags& flags, bool push) {
  NIBBLE_ASSIGN_OR_RETURN(s3::Place place, s3::ParsePlace(flags.place));
  NIBBLE_ASSIGN_OR_RETURN(s3::Options options, s3::OptionsFromEnvironment());
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<s3::ObjectStore> store,
                          s3::ObjectStore::Create(std::move(options)));
  if (!push) {
    // The place of a job: its newest copy.
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> copies, s3::ListCopies(*store, place));
    if (!copies.empty()) absl::StrAppend(&place.key, "/", copies.back());
  }
  NIBBLE_ASSIGN_OR_RETURN(const s3::Copied copied,
                          push ? s3::PushDirectory(*store, flags.directory, place, flags.overwrite)
                               : s3::PullDirectory(*store, place, flags.directory));
  Reply reply;
  reply.text =
      absl::StrCat(push ? "uploaded " : "downloaded ", copied.files, " files, ", copied.bytes,
                   " bytes, to ", push ? flags.place : flags.directory,
                   push ? "" : absl::StrCat(", from s3://", place.bucket, "/", place.key), "\n");
  reply.json = JsonText({{"files", copied.files}, {"bytes", copied.bytes}});
  return reply;
}

}  // namespace

void AddObjectStoreVerbs(Command checkpoint, int& exit_code) {
  constexpr char kFooter[] =
      "The credentials are those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; AWS_ENDPOINT_URL, "
      "AWS_REGION and AWS_CA_BUNDLE name the store.";
  const auto flags = std::make_shared<ObjectFlags>();
  const Command push = checkpoint.AddSubcommand(
      "push", "Upload a directory (a checkpoint, an export) to S3-compatible object storage");
  push.Add("DIRECTORY", flags->directory, "a step's directory of a checkpoint store, or an export")
      .Required();
  push.Add("PLACE", flags->place, "s3://BUCKET/PREFIX").Required();
  push.AddFlag("--overwrite", flags->overwrite, "replace a complete copy");
  AddOutputOption(push, flags->print);
  push.Footer(kFooter);
  push.OnParsed([flags, &exit_code] {
    exit_code = Finish("checkpoint push", flags->print, Copy(*flags, true));
  });
  const Command pull = checkpoint.AddSubcommand(
      "pull",
      "Download what 'push' has uploaded to a new directory; every file's SHA-256 is checked");
  pull.Add("PLACE", flags->place,
           "s3://BUCKET/PREFIX of a copy, or of a job whose newest copy is wanted")
      .Required();
  pull.Add("DIRECTORY", flags->directory, "directory to create").Required();
  AddOutputOption(pull, flags->print);
  pull.Footer(kFooter);
  pull.OnParsed([flags, &exit_code] {
    exit_code = Finish("checkpoint pull", flags->print, Copy(*flags, false));
  });
}

}  // namespace nibble
