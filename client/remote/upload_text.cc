#include "client/remote/upload_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/counted.h"
#include "common/text/text.h"

namespace nibble {
namespace {

bool IsCheckpoint(const v1::CheckpointRef& ref, const v1::CheckpointRef& other) {
  return ref.step() == other.step() && ref.attempt() == other.attempt();
}

std::string FailuresText(const v1::JobUploads& uploads, int64_t now_unix_ms) {
  const std::string last = absl::StrCat("of step ", uploads.failed().step(), ", ",
                                        AgoText(uploads.failed_unix_ms(), now_unix_ms));
  std::string text =
      uploads.failures() == 1
          ? absl::StrCat("the last upload, ", last, ", has failed: ", uploads.error())
          : absl::StrCat(uploads.failures(), " uploads in a row have failed, the last one, ", last,
                         ": ", uploads.error());
  if (uploads.retry_unix_ms() > now_unix_ms) {
    const double seconds = static_cast<double>(uploads.retry_unix_ms() - now_unix_ms) / 1000;
    absl::StrAppend(&text, "\nthe next try is due in ", DurationText(seconds));
  } else if (uploads.retry_unix_ms() > 0) {
    absl::StrAppend(&text, "\nthe next try is due");
  }
  return text;
}

}  // namespace

std::string UploadsText(const v1::JobUploads& uploads, int64_t now_unix_ms) {
  std::string text =
      uploads.copies().empty()
          ? absl::StrCat("no copy at ", uploads.place(), " yet")
          : absl::StrCat("the newest copy is of step ", uploads.copies().rbegin()->step(),
                         ", uploaded ", AgoText(uploads.uploaded_unix_ms(), now_unix_ms), "; ",
                         Counted(uploads.copies_size(), "checkpoint"), " at ", uploads.place());
  if (uploads.has_open()) {
    absl::StrAppend(&text, "\nstep ", uploads.open().step(), " is being uploaded");
  }
  if (uploads.failures() > 0) absl::StrAppend(&text, "\n", FailuresText(uploads, now_unix_ms));
  return text;
}

std::string UploadWord(const v1::JobUploads& uploads, const v1::CheckpointRef& ref) {
  if (uploads.has_open() && IsCheckpoint(uploads.open(), ref)) return "under way";
  if (std::any_of(uploads.copies().begin(), uploads.copies().end(),
                  [&](const v1::CheckpointRef& copy) { return IsCheckpoint(copy, ref); })) {
    return "uploaded";
  }
  return uploads.has_failed() && IsCheckpoint(uploads.failed(), ref) ? "failed" : "-";
}

}  // namespace nibble
