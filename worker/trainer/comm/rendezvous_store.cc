#include "worker/trainer/comm/rendezvous_store.h"

#include "absl/strings/str_cat.h"

namespace nibble {

absl::Status CheckRendezvousSizes(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > RendezvousStore::kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("rendezvous key of ", key.size(),
                                                   " bytes, not in [1, ",
                                                   RendezvousStore::kMaxKeyBytes, "]"));
  }
  if (value.size() > RendezvousStore::kMaxValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("rendezvous value of key ", std::string(key),
                                                   " has ", value.size(), " bytes, above ",
                                                   RendezvousStore::kMaxValueBytes));
  }
  return absl::OkStatus();
}

}  // namespace nibble
