// Pages of lists that are sorted by a text: a token names the last entry of the page before, so
// that entries that come or go in between disturb nothing.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_PAGES_H_
#define NIBBLE_SERVER_CONTROLLER_PAGES_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/nibble/v1/common.pb.h"

namespace nibble {

struct Page {
  int32_t size = 100;
  std::string after;  // empty: from the start
};

inline constexpr int32_t kDefaultPage = 100;
inline constexpr int32_t kMaxPage = 1000;

// A size above kMaxPage is lowered to it: the caller reads on with the token. InvalidArgument: the
// size is negative, or the token does not begin with `list` as those of this list do.
inline absl::StatusOr<Page> ReadPage(const v1::PageRequest& request, const std::string& list) {
  if (request.size() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page.size: ", request.size(), "; allowed: 0 and more"));
  }
  Page page;
  if (request.size() > 0) page.size = std::min(request.size(), kMaxPage);
  if (request.token().empty()) return page;
  if (!absl::StartsWith(request.token(), list + ":")) {
    return absl::InvalidArgumentError(
        absl::StrCat("page.token: '", request.token().substr(0, 80), "' is none of this list"));
  }
  page.after = request.token().substr(list.size() + 1);
  return page;
}

inline std::string PageToken(const std::string& list, const std::string& last) {
  return absl::StrCat(list, ":", last);
}

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_PAGES_H_
