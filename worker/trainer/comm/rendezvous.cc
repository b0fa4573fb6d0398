#include "worker/trainer/comm/rendezvous.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/trainer/comm/file_store.h"
#include "worker/trainer/comm/tcp_store.h"

namespace nibble {

absl::StatusOr<Rendezvous> Rendezvous::Open(const std::string& address, int rank,
                                            Deadline deadline) {
  if (absl::StartsWith(address, kFilePrefix)) {
    absl::StatusOr<std::unique_ptr<FileStore>> store =
        FileStore::Open(address.substr(sizeof(kFilePrefix) - 1));
    if (!store.ok()) return store.status();
    return Rendezvous(nullptr, *std::move(store));
  }
  const bool served = absl::StartsWith(address, kServedPrefix);
  if (!served && !absl::StartsWith(address, kTcpPrefix)) {
    return absl::InvalidArgumentError(absl::StrCat("rendezvous = \"", address,
                                                   "\" is neither file:/directory nor "
                                                   "tcp:host:port nor served:host:port"));
  }
  const std::string host_port =
      address.substr((served ? sizeof(kServedPrefix) : sizeof(kTcpPrefix)) - 1);
  std::unique_ptr<TcpStoreServer> server;
  if (rank == 0 && !served) {
    absl::StatusOr<std::unique_ptr<TcpStoreServer>> started = TcpStoreServer::Start(host_port);
    if (!started.ok()) return started.status();
    server = *std::move(started);
  }
  absl::StatusOr<std::unique_ptr<TcpStore>> store = TcpStore::Connect(host_port, deadline);
  if (!store.ok()) return store.status();
  return Rendezvous(std::move(server), *std::move(store));
}

absl::Status Rendezvous::Meet(const std::string& attempt, int rank, int world, Deadline deadline) {
  const auto key = [&](int r) { return absl::StrCat(attempt, "/arrived/", r); };
  const std::string mine = absl::StrCat("world ", world);
  if (absl::Status status = store_->Set(key(rank), mine, deadline); !status.ok()) {
    if (!absl::IsAlreadyExists(status)) return status;
    return absl::AlreadyExistsError(absl::StrCat("rank ", rank, " of attempt \"", attempt,
                                                 "\" has come before (", status.message(),
                                                 "); every attempt needs a name of its own"));
  }
  std::vector<int> missing;
  for (int r = 0; r < world; ++r) {
    const absl::StatusOr<std::string> theirs = store_->Get(key(r), deadline);
    if (absl::IsDeadlineExceeded(theirs.status())) {
      missing.push_back(r);
    } else if (!theirs.ok()) {
      return theirs.status();
    } else if (*theirs != mine) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", r, " came for ", *theirs, ", rank ", rank, " for ", mine));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("rendezvous of attempt \"", attempt, "\": ", NameRanks(missing), " of ", world,
                   missing.size() == 1 ? " has not come" : " have not come"));
}

std::string NameRanks(const std::vector<int>& ranks) {
  constexpr size_t kNamed = 3;
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  const size_t named = std::min(kNamed, ranks.size());
  std::string text =
      absl::StrCat("ranks ", absl::StrJoin(ranks.begin(), ranks.begin() + named, ", "));
  if (ranks.size() > named) absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  return text;
}

}  // namespace nibble
