// The files of page/, as they were at the build.
//
// Ownership: static storage. Thread-safety: constant.
#ifndef NIBBLE_CLIENT_REPORT_PAGE_FILES_H_
#define NIBBLE_CLIENT_REPORT_PAGE_FILES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace nibble {

struct PageFile {
  absl::string_view path;  // "page/style.css"
  absl::string_view text;
};

absl::Span<const PageFile> PageFiles();

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REPORT_PAGE_FILES_H_
