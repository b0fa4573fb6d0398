#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/comm/rank_processes_testing.h"
#include "worker/trainer/comm/rendezvous.h"
#include "worker/trainer/comm/tcp_store_server.h"

namespace nibble {
namespace {

Deadline Later() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

using std::chrono::milliseconds;
using testing::HasSubstr;

Deadline In(milliseconds time) { return std::chrono::steady_clock::now() + time; }

std::unique_ptr<TcpStoreServer> Serve(TcpStoreServer::Limits limits = {}) {
  auto server = TcpStoreServer::Start("127.0.0.1:0", limits);
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

std::string AddressOf(const TcpStoreServer& server) {
  return "127.0.0.1:" + std::to_string(server.port());
}

std::unique_ptr<TcpStore> Client(const TcpStoreServer& server) {
  auto store = TcpStore::Connect(AddressOf(server), Later());
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

// A connection that sends any bytes.
class RawClient {
 public:
  explicit RawClient(const TcpStoreServer& server) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(server.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawClient() { (void)close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Send(const std::string& bytes) const {
    (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Everything the server sends until it closes the connection.
  std::string ReceiveUntilClosed() const {
    std::string received;
    char buffer[256];
    pollfd one = {fd_, POLLIN, 0};
    while (poll(&one, 1, 60'000) > 0) {
      const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
      if (got <= 0) return received;
      received.append(buffer, got);
    }
    ADD_FAILURE() << "the connection was not closed";
    return received;
  }

 private:
  const int fd_;
};

TEST(RendezvousTest, AtMostThreeRanksAreNamed) {
  EXPECT_EQ(NameRanks({2}), "rank 2");
  EXPECT_EQ(NameRanks({1, 2, 3}), "ranks 1, 2, 3");
  EXPECT_EQ(NameRanks({1, 2, 3, 4, 9}), "ranks 1, 2, 3 and 2 more");
}

// Every rank opens the rendezvous and meets the others; returns what each got.
std::vector<absl::Status> MeetAt(const std::string& address, int world) {
  std::vector<std::thread> ranks;
  std::vector<absl::StatusOr<Rendezvous>> opened;
  std::vector<absl::Status> met(world);
  for (int rank = 0; rank < world; ++rank) opened.emplace_back(absl::UnknownError(""));
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      opened[rank] = Rendezvous::Open(address, rank, Later());
      met[rank] =
          opened[rank].ok() ? opened[rank]->Meet("1", rank, world, Later()) : opened[rank].status();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return met;
}

TEST(RendezvousTest, RanksMeetAtAServerOfRankZero) {
  const ReservedPort port;
  for (const absl::Status& status : MeetAt("tcp:" + port.host_port(), 3)) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(RendezvousTest, RanksMeetAtAServerOfTheirLauncher) {
  const auto server = Serve();
  for (const absl::Status& status : MeetAt("served:" + AddressOf(*server), 3)) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(RendezvousTest, MissingRanksAreNamedAtTheDeadline) {
  const auto server = Serve();
  absl::StatusOr<Rendezvous> rendezvous =
      Rendezvous::Open("served:" + AddressOf(*server), 1, Later());
  ASSERT_TRUE(rendezvous.ok()) << rendezvous.status();
  const absl::Status status = rendezvous->Meet("1", 1, 3, In(milliseconds(300)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()),
            "rendezvous of attempt \"1\": ranks 0, 2 of 3 have not arrived");
}

TEST(TcpStoreTest, ValueSetByOneClientIsReadByAnother) {
  const auto server = Serve();
  const auto a = Client(*server), b = Client(*server);
  const std::string binary("\0\xff\n", 3);
  ASSERT_TRUE(a->Set("key", binary, Later()).ok());
  ASSERT_TRUE(a->Set("empty", "", Later()).ok());
  EXPECT_EQ(*b->Get("key", Later()), binary);
  EXPECT_EQ(*a->Get("key", Later()), binary);
  EXPECT_EQ(*b->Get("empty", Later()), "");
}

TEST(TcpStoreTest, ReaderWaitsForTheWriter) {
  const auto server = Serve();
  const auto reader = Client(*server), writer = Client(*server);
  absl::StatusOr<std::string> value;
  std::thread waiting([&] { value = reader->Get("key", Later()); });
  ASSERT_TRUE(writer->Set("key", "value", Later()).ok());
  waiting.join();
  EXPECT_EQ(*value, "value");
}

TEST(TcpStoreTest, GetFailsAtItsDeadlineAndTheConnectionStaysUsable) {
  const auto server = Serve();
  const auto store = Client(*server);
  const absl::Status status = store->Get("key", In(milliseconds(20))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rendezvous key key"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(store->Get("key", Deadline::min()).status()));
  ASSERT_TRUE(store->Set("key", "value", Later()).ok());
  EXPECT_EQ(*store->Get("key", Deadline::min()), "value");
}

TEST(TcpStoreTest, KeyIsWrittenOnce) {
  const auto server = Serve();
  const auto store = Client(*server);
  ASSERT_TRUE(store->Set("key", "first", Later()).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(store->Set("key", "second", Later())));
  EXPECT_EQ(*store->Get("key", Later()), "first");
}

TEST(TcpStoreTest, KeysAreComparedByteForByte) {
  const auto server = Serve();
  const auto store = Client(*server);
  const std::string keys[] = {"a/b", "a_2fb", "a.b", "../up", ".", "A/B"};
  for (const std::string& key : keys) ASSERT_TRUE(store->Set(key, key, Later()).ok()) << key;
  for (const std::string& key : keys) EXPECT_EQ(*store->Get(key, Later()), key);
}

TEST(TcpStoreTest, SizesBeyondTheLimitsAreRefusedWithTheBound) {
  const auto server = Serve();
  const auto store = Client(*server);
  const std::string big(tcp_store::kMaxValueBytes, 'x');
  EXPECT_TRUE(store->Set("big", big, Later()).ok());
  EXPECT_EQ(*store->Get("big", Later()), big);
  EXPECT_TRUE(absl::IsInvalidArgument(store->Set("bigger", big + "x", Later())));
  EXPECT_TRUE(absl::IsInvalidArgument(store->Set("", "x", Later())));
  EXPECT_TRUE(absl::IsInvalidArgument(store->Set(std::string(257, 'k'), "x", Later())));
}

TEST(TcpStoreTest, FullServerRefusesNewKeysAndKeepsTheOthers) {
  const auto server = Serve({.keys = 2, .bytes = 20});
  const auto store = Client(*server);
  EXPECT_TRUE(store->Set("a", "0123456789", Later()).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(store->Set("b", "0123456789", Later())));
  EXPECT_TRUE(store->Set("b", "", Later()).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(store->Set("c", "", Later())));
  EXPECT_EQ(*store->Get("a", Later()), "0123456789");
}

TEST(TcpStoreTest, ConnectionWithAnInvalidFrameIsClosedAndOthersAreNot) {
  const auto server = Serve();
  const auto store = Client(*server);
  const std::string good = tcp_store::EncodeRequest(tcp_store::Operation::kGet, "key", "", 0);
  std::vector<std::string> lines = {"GET / HTTP/1.1\r\nHost: nibble\r\n\r\n", std::string(20, '\0'),
                                    std::string(100'000, 'x')};
  for (const size_t at : {0, 3, 4, 5, 7, 9, 11}) {  // magic, version, operation, sizes
    lines.push_back(good);
    lines.back()[at] = '\x7f';
  }
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    std::string line(20 + random() % 100, '\0');
    for (char& c : line) c = static_cast<char>(random());
    lines.push_back(line);
  }
  for (const std::string& line : lines) {
    const RawClient client(*server);
    client.Send(line);
    EXPECT_EQ(client.ReceiveUntilClosed(), "");
  }
  ASSERT_TRUE(store->Set("key", "value", Later()).ok());
  EXPECT_EQ(*store->Get("key", Later()), "value");
}

TEST(TcpStoreTest, ConnectionWithAnIncompleteFrameIsClosedAfterFrameTime) {
  const auto server = Serve({.frame_time = milliseconds(50)});
  const RawClient silent(*server), half(*server), member(*server);
  half.Send(tcp_store::EncodeRequest(tcp_store::Operation::kSet, "key", "value", 0).substr(0, 22));
  EXPECT_EQ(half.ReceiveUntilClosed(), "");
  EXPECT_EQ(silent.ReceiveUntilClosed(), "");
  const auto store = Client(*server);
  EXPECT_TRUE(absl::IsDeadlineExceeded(store->Get("key", In(milliseconds(1))).status()));
}

TEST(TcpStoreTest, FrameMayArriveInPieces) {
  const auto server = Serve();
  const auto store = Client(*server);
  const RawClient slow(*server);
  const std::string frame = tcp_store::EncodeRequest(tcp_store::Operation::kSet, "key", "value", 0);
  for (const char c : frame) slow.Send(std::string(1, c));
  EXPECT_EQ(*store->Get("key", Later()), "value");
}

TEST(TcpStoreTest, ConnectionsBeyondTheLimitWait) {
  const auto server = Serve({.connections = 2, .frame_time = milliseconds(50)});
  const RawClient first(*server), second(*server);  // are silent, and are closed
  const auto store = Client(*server);
  EXPECT_TRUE(store->Set("key", "value", Later()).ok());
}

TEST(TcpStoreTest, ClientThatDisconnectsDuringAGetFreesItsConnection) {
  const auto server = Serve({.connections = 2});
  const std::string wait_an_hour =
      tcp_store::EncodeRequest(tcp_store::Operation::kGet, "key", "", 3'600'000);
  for (int i = 0; i < 10; ++i) RawClient(*server).Send(wait_an_hour);
  EXPECT_TRUE(Client(*server)->Set("key", "value", Later()).ok());
}

TEST(TcpStoreTest, ClientFindsAServerThatStartsLater) {
  const ReservedPort port;
  absl::StatusOr<std::unique_ptr<TcpStore>> store = absl::UnknownError("");
  std::thread client([&] { store = TcpStore::Connect(port.host_port(), Later()); });
  auto server = TcpStoreServer::Start(port.host_port());
  client.join();
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->Set("key", "value", Later()).ok());
}

TEST(TcpStoreTest, ConnectWithoutAServerFailsAtTheDeadline) {
  const ReservedPort port;
  const absl::Status status = TcpStore::Connect(port.host_port(), In(milliseconds(30))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(port.host_port() + ": Connection refused"));
}

TEST(TcpStoreTest, PortInUseIsNamed) {
  const auto server = Serve();
  const absl::Status status = TcpStoreServer::Start(AddressOf(*server)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(AddressOf(*server)));
}

TEST(TcpStoreTest, GetIsUnavailableOnceTheServerStops) {
  auto server = Serve();
  const auto store = Client(*server);
  ASSERT_TRUE(store->Set("key", "value", Later()).ok());
  absl::Status status;
  std::thread waiting([&] { status = store->Get("other", Later()).status(); });
  server.reset();
  waiting.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(store->Get("key", Later()).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace nibble
