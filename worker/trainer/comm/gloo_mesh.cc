#include "worker/trainer/comm/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/status_macros.h"
#include "worker/trainer/comm/gloo_transfers.h"
#include "worker/trainer/comm/rendezvous.h"
#include "worker/trainer/comm/signal_block.h"

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using BufferPtr = std::unique_ptr<gloo::transport::UnboundBuffer>;

constexpr uint64_t kFarewellTag = 0;
constexpr uint64_t kIntroductionTag = 1;
constexpr uint64_t kLifelineTag = 2;
constexpr Milliseconds kInstant{1};
constexpr Milliseconds kFarewellPatience{200};
constexpr Milliseconds kSettle{10};

// Gloo takes a negative time as its default and zero as infinite.
Milliseconds Left(Deadline deadline) {
  const Deadline now = Clock::now();
  return deadline > now ? std::chrono::ceil<Milliseconds>(deadline - now) : kInstant;
}

// Gloo's messages begin with "[file:line] " of its own source.
std::string Reason(const std::exception& error) {
  const std::string_view text = error.what();
  const size_t end = text.front() == '[' ? text.find("] ") : std::string_view::npos;
  return std::string(end == std::string_view::npos ? text : text.substr(end + 2));
}

// Adapts a rendezvous to Gloo: scoped to an attempt and bounded by a deadline. Keeps the first
// error, since Gloo's exceptions have only its text.
class StoreForGloo final : public gloo::rendezvous::Store {
 public:
  StoreForGloo(TcpStore& store, std::string attempt, Deadline deadline)
      : store_(store), attempt_(std::move(attempt)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    Check(store_.Set(Scoped(key), {data.data(), data.size()}, deadline_));
  }
  std::vector<char> get(const std::string& key) override {
    const absl::StatusOr<std::string> value = store_.Get(Scoped(key), deadline_);
    Check(value.status());
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) (void)get(key);
  }
  void wait(const std::vector<std::string>& keys, const Milliseconds&) override { wait(keys); }

  const absl::Status& status() const { return status_; }

 private:
  std::string Scoped(const std::string& key) const { return absl::StrCat(attempt_, "/gloo/", key); }
  void Check(const absl::Status& status) {
    status_.Update(status);
    if (!status.ok()) throw gloo::Exception(std::string(status.message()));
  }

  TcpStore& store_;
  const std::string attempt_;
  const Deadline deadline_;
  absl::Status status_;
};

// The first message between ranks: fixed in size, so that any version can read any other's.
struct Introduction {
  char magic[8];
  uint64_t attempt;
  int32_t rank;
  int32_t world;
};
constexpr char kGreetingMagic[8] = {'n', 'i', 'b', 'c', 'o', 'm', 'm', '1'};

}  // namespace

// The last message of a rank to each peer, into a receive that waits from the beginning.
struct GlooMesh::Farewell {
  enum Kind : int32_t { kNone, kFinished, kGaveUp };
  int32_t kind = kNone;
  int32_t culprit = -1;    // kGaveUp: the rank that it missed
  uint64_t exchanges = 0;  // that it took part in
};

// Destroyed in reverse order: buffers before the memory they receive into and before their context.
struct GlooMesh::Gloo {
  WaitTicker ticker;
  std::shared_ptr<gloo::transport::Device> device;
  std::unique_ptr<gloo::rendezvous::Context> context;
  // Per peer; the buffers are null for this rank.
  std::vector<Farewell> arriving;   // where a farewell is received
  std::vector<Farewell> farewells;  // kNone until it is known to have arrived
  std::vector<BufferPtr> farewell_buffers;
  // A receive without a sender: it fails when the connection does.
  std::vector<char> nothing;
  std::vector<BufferPtr> lifelines;
};

GlooMesh::GlooMesh(const Options& options, std::unique_ptr<Gloo> gloo)
    : options_(options), gloo_(std::move(gloo)) {}

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::Connect(const Options& options, TcpStore& store,
                                                            Deadline deadline) {
  const BlockSigpipe block;
  StoreForGloo rendezvous(store, options.attempt, deadline);
  std::unique_ptr<Gloo> gloo;
  try {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = options.interface.empty() ? options.bind_address : "";
    attributes.iface = options.interface;
    {
      const BlockAllSignals in_new_threads;
      gloo = std::make_unique<Gloo>();
      gloo->device = gloo::transport::tcp::CreateDevice(attributes);
    }
    gloo->context = std::make_unique<gloo::rendezvous::Context>(options.rank, options.world);
    // Gloo waits five times as long for a connection.
    gloo->context->setTimeout(std::max(Left(deadline) / 5, kInstant));
    gloo->context->connectFullMesh(rendezvous, gloo->device);
    gloo->arriving.resize(options.world);
    gloo->farewells.resize(options.world);
    gloo->farewell_buffers.resize(options.world);
    gloo->nothing.resize(options.world);
    gloo->lifelines.resize(options.world);
    for (int peer = 0; peer < options.world; ++peer) {
      if (peer == options.rank) continue;
      BufferPtr& farewell = gloo->farewell_buffers[peer];
      farewell = gloo->context->createUnboundBuffer(&gloo->arriving[peer], sizeof(Farewell));
      farewell->recv(peer, kFarewellTag);
      BufferPtr& lifeline = gloo->lifelines[peer];
      lifeline = gloo->context->createUnboundBuffer(&gloo->nothing[peer], 1);
      lifeline->recv(peer, kLifelineTag);
    }
  } catch (const std::exception& error) {
    const std::string where = options.interface.empty() ? options.bind_address : options.interface;
    const std::string text = absl::StrCat("connecting rank ", options.rank, " of ", options.world,
                                          " over ", where, ": ", Reason(error));
    if (!rendezvous.status().ok()) return absl::Status(rendezvous.status().code(), text);
    return Clock::now() < deadline ? absl::UnavailableError(text)
                                   : absl::DeadlineExceededError(text);
  }
  std::unique_ptr<GlooMesh> mesh(new GlooMesh(options, std::move(gloo)));
  NIBBLE_RETURN_IF_ERROR(mesh->Introduce(deadline));
  return mesh;
}

absl::Status GlooMesh::Introduce(Deadline deadline) {
  Introduction mine = {{}, Fnv1a64(options_.attempt), options_.rank, options_.world};
  std::copy(std::begin(kGreetingMagic), std::end(kGreetingMagic), mine.magic);
  std::vector<Introduction> theirs(options_.world);
  const absl::Status status =
      Run(kIntroductionTag,
          {.count = 1,
           .window = 1,
           .send = [&](int, int64_t) { return std::as_bytes(std::span(&mine, 1)); },
           .receive = [&](int peer,
                          int64_t) { return std::as_writable_bytes(std::span(&theirs[peer], 1)); },
           .arrived = [](int64_t) {}},
          Left(deadline));
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("introducing rank ", options_.rank, " of ",
                                                    options_.world, ": ", status.message()));
  }
  for (int peer = 0; peer < options_.world; ++peer) {
    const Introduction& they = theirs[peer];
    if (peer == options_.rank) continue;
    if (!std::equal(std::begin(kGreetingMagic), std::end(kGreetingMagic), they.magic) ||
        they.rank != peer || they.world != options_.world || they.attempt != mine.attempt) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the peer connected to rank ", options_.rank, " as rank ", peer, " of ", options_.world,
          " introduced itself as rank ", they.rank, " of ", they.world, ", of attempt ",
          absl::Hex(they.attempt), " where this is ", absl::Hex(mine.attempt)));
    }
  }
  return absl::OkStatus();
}

absl::Status GlooMesh::Exchange(uint64_t tag, const Rows& rows) {
  if (!open_) return absl::FailedPreconditionError("the connections were closed by a failure");
  const BlockSigpipe block;
  ++exchanges_;
  return Run(tag, rows, options_.timeout);
}

absl::Status GlooMesh::Run(uint64_t tag, const Rows& rows, Milliseconds timeout) {
  Transfers transfers(*gloo_->context, gloo_->ticker, tag);
  const int world = options_.world;
  int peer = -1;  // with which messages are exchanged now
  bool timed_out = false;
  bool asked = false;  // to give up
  // Each rank begins with its successor, so that not all send to the same one.
  const auto for_each_peer = [&](auto&& act) {
    for (int i = 1; i < world; ++i) {
      peer = (options_.rank + i) % world;
      act(peer);
    }
  };
  const auto post = [&](int64_t row) {
    for_each_peer([&](int p) { transfers.Receive(p, rows.receive(p, row)); });
    for_each_peer([&](int p) { transfers.Send(p, rows.send(p, row)); });
  };
  const auto throw_if_lost = [&](int p) {
    if (Lost(p)) throw gloo::IoException("its connection has closed");
  };
  Deadline deadline = Clock::now() + timeout;
  const auto throw_if_asked = [&] {
    asked = options_.gives_up != nullptr && options_.gives_up();
    if (asked) throw gloo::IoException("asked to give up");
  };
  const auto look = [&] {
    throw_if_asked();
    timed_out = Clock::now() >= deadline;
    if (timed_out) throw gloo::IoException("timed out");
    const int waiting_for = peer;
    for_each_peer(throw_if_lost);
    peer = waiting_for;
  };
  try {
    throw_if_asked();
    // A group that has lost a rank fails even if this exchange does not need that rank.
    for_each_peer(throw_if_lost);
    for (int64_t row = 0; row < std::min(rows.window, rows.count); ++row) post(row);
    for (int64_t row = 0; row < rows.count; ++row) {
      for_each_peer([&](int p) { transfers.AwaitIn(p, look); });
      rows.arrived(row);
      for_each_peer([&](int p) { transfers.AwaitOut(p, look); });
      if (row + rows.window < rows.count) post(row + rows.window);
      deadline = Clock::now() + timeout;
    }
  } catch (const std::exception& error) {
    absl::Status status;
    if (asked) {
      status = FailAsLate(transfers, peer, " when this rank was asked to give up");
    } else if (timed_out) {
      status = FailAsLate(transfers, peer, absl::StrCat(" within ", timeout.count(), " ms"));
    } else {
      status = FailAsLost(peer, Reason(error));
    }
    transfers.Clear();
    Disconnect();
    return status;
  }
  return absl::OkStatus();
}

bool GlooMesh::Lost(int peer) {
  gloo::transport::UnboundBuffer& lifeline = *gloo_->lifelines[peer];
  try {
    // An aborted wait ends at once; it throws if the connection has failed before.
    lifeline.abortWaitRecv();
    (void)lifeline.waitRecv(options_.timeout);
    return false;
  } catch (const std::exception&) {
    // A rank that has finished its part in this exchange may have ended.
    const Farewell& farewell = ReceiveFarewell(peer);
    return farewell.kind != Farewell::kFinished || farewell.exchanges < exchanges_;
  }
}

// Called after the connection has failed: the farewell has arrived or never will.
const GlooMesh::Farewell& GlooMesh::ReceiveFarewell(int peer) {
  Farewell& farewell = gloo_->farewells[peer];
  if (farewell.kind != Farewell::kNone) return farewell;
  try {
    if (gloo_->farewell_buffers[peer]->waitRecv(kInstant)) farewell = gloo_->arriving[peer];
  } catch (const std::exception&) {
    // It did not leave with a farewell.
  }
  return farewell;
}

absl::Status GlooMesh::FailAsLate(Transfers& transfers, int peer, const std::string& why) {
  SendFarewells({Farewell::kGaveUp, peer, exchanges_});
  std::vector<int> missing = transfers.Unfinished();
  if (missing.empty() && peer >= 0) missing.push_back(peer);
  return absl::DeadlineExceededError(absl::StrCat(
      missing.empty() ? "not begun" : absl::StrCat("no answer from ", NameRanks(missing)), why));
}

absl::Status GlooMesh::FailAsLost(int peer, const std::string& what) {
  // The first loss noticed need not be the cause, whose farewell may arrive a moment later.
  std::this_thread::sleep_for(kSettle);
  std::vector<int> lost;
  std::string others;
  int culprit = -1;
  bool named = false;  // or known to be unknown
  for (int p = 0; p < options_.world; ++p) {
    if (p == options_.rank || (p != peer && !Lost(p))) continue;
    const Farewell& farewell = ReceiveFarewell(p);
    if (farewell.kind == Farewell::kNone) {
      lost.push_back(p);
    } else if (farewell.kind == Farewell::kFinished) {
      absl::StrAppend(&others, "; rank ", p, " has left after ", farewell.exchanges, " exchanges");
    } else {
      absl::StrAppend(&others, "; rank ", p, " gave up");
      if (farewell.culprit >= 0) absl::StrAppend(&others, ", missing rank ", farewell.culprit);
      culprit = farewell.culprit;
      named = true;
    }
  }
  if (!lost.empty()) culprit = lost[0];
  SendFarewells({Farewell::kGaveUp, culprit < 0 && !named ? peer : culprit, exchanges_});
  if (lost.empty()) return absl::UnavailableError(others.substr(2));
  return absl::UnavailableError(absl::StrCat("lost ", NameRanks(lost), " (", what, ")", others));
}

// Not by closeConnections(), which resets the connections and so discards the last messages.
void GlooMesh::Disconnect() {
  open_ = false;
  gloo_->lifelines.clear();
  gloo_->farewell_buffers.clear();
  gloo_->context.reset();
}

void GlooMesh::SendFarewells(const Farewell& farewell) {
  const Deadline deadline = Clock::now() + kFarewellPatience;
  std::vector<BufferPtr> sent(options_.world);
  Farewell copy = farewell;
  // A peer that cannot receive it has ended or will see the connection close.
  const auto for_each_peer = [&](auto&& act) {
    for (int peer = 0; peer < options_.world; ++peer) {
      if (peer == options_.rank) continue;
      try {
        act(peer);
      } catch (const std::exception&) {
        sent[peer] = nullptr;
      }
    }
  };
  for_each_peer([&](int peer) {
    sent[peer] = gloo_->context->createUnboundBuffer(&copy, sizeof(copy));
    sent[peer]->send(peer, kFarewellTag);
  });
  for_each_peer([&](int peer) {
    if (sent[peer] == nullptr) return;
    while (Clock::now() < deadline && !gloo_->ticker.WaitOut(*sent[peer])) {
    }
  });
}

GlooMesh::~GlooMesh() {
  const BlockSigpipe block;
  if (open_) SendFarewells({Farewell::kFinished, -1, exchanges_});
}

}  // namespace nibble
