#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/crc32c.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/shard_store.grpc.pb.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/peer_server.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::BytesOf;
using checkpoint_testing::EvenSlices;
using checkpoint_testing::RandomState;
using checkpoint_testing::State;
using file_testing::TempDirectory;
using testing::HasSubstr;

constexpr char kJob[] = "gpt-1";

class ShardServiceTest : public testing::Test {
 protected:
  ShardServiceTest() : state_(RandomState(5, 6, 700'000)) {
    {
      std::filesystem::create_directories(directory_.path() + "/checkpoints");
      auto store = CheckpointStore::Open(directory_.path() + "/checkpoints",
                                         {.identity = checkpoint_testing::TestIdentity()});
      EXPECT_TRUE(store.ok()) << store.status();
      EXPECT_TRUE(checkpoint_testing::Save(**store, 10, 1, 2, state_).ok());
    }
    EXPECT_TRUE(
        registry_.OpenJob(kJob, directory_.path(), checkpoint_testing::TestIdentity()).ok());
    std::vector<PeerService> services;
    services.push_back(MakeShardService(registry_, "w1"));
    auto server = PeerServer::Start("127.0.0.1:0", {}, std::move(services));
    EXPECT_TRUE(server.ok()) << server.status();
    service_ = *std::move(server);
    stub_ = v1::ShardStore::NewStub(
        grpc::CreateChannel(service_->address(), grpc::InsecureChannelCredentials()));
  }

  static v1::ShardRef Ref(int32_t rank, int64_t attempt = 1) {
    v1::ShardRef ref;
    ref.mutable_checkpoint()->set_job(kJob);
    ref.mutable_checkpoint()->set_step(10);
    ref.mutable_checkpoint()->set_attempt(attempt);
    ref.set_rank(rank);
    return ref;
  }
  std::string Expected(int32_t rank) const {
    std::string all;
    for (const TensorSlice& slice : EvenSlices(state_, rank, 2)) {
      const auto bytes = BytesOf(state_, slice);
      all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return all;
  }
  grpc::Status Read(const v1::ShardRef& ref, int64_t offset, int64_t length, std::string& out) {
    grpc::ClientContext context;
    v1::ReadShardRequest request;
    *request.mutable_shard() = ref;
    request.set_offset_bytes(offset);
    request.set_length_bytes(length);
    const auto reader = stub_->ReadShard(&context, request);
    v1::ReadShardResponse piece;
    while (reader->Read(&piece)) {
      EXPECT_EQ(piece.offset_bytes(), offset + static_cast<int64_t>(out.size()));
      EXPECT_LE(piece.data().size(), size_t{1} << 20);
      EXPECT_EQ(piece.crc32c(), Crc32c({reinterpret_cast<const std::byte*>(piece.data().data()),
                                        piece.data().size()}));
      out += piece.data();
    }
    return reader->Finish();
  }

  TempDirectory directory_;
  const State state_;
  CheckpointRegistry registry_{{.clock = [] { return 0.0; }}};
  std::unique_ptr<PeerServer> service_;
  std::unique_ptr<v1::ShardStore::Stub> stub_;
};

TEST_F(ShardServiceTest, EveryShardIsServed) {
  for (const int32_t rank : {0, 1}) {
    std::string bytes;
    const grpc::Status status = Read(Ref(rank), 0, 0, bytes);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(bytes == Expected(rank)) << rank;
  }
}

TEST_F(ShardServiceTest, AnyRangeIsServed) {
  const std::string all = Expected(1);
  for (const auto& [offset, length] : {std::pair{1, 1}, {3, 1000}, {0, 7}}) {
    std::string bytes;
    EXPECT_TRUE(Read(Ref(1), offset, length, bytes).ok());
    EXPECT_TRUE(bytes == all.substr(static_cast<size_t>(offset), static_cast<size_t>(length)));
  }
  std::string bytes;
  EXPECT_EQ(Read(Ref(1), static_cast<int64_t>(all.size()), 1, bytes).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ShardServiceTest, TheDescriptionMatchesTheReport) {
  grpc::ClientContext context;
  v1::DescribeShardRequest request;
  *request.mutable_shard() = Ref(1);
  v1::DescribeShardResponse response;
  const grpc::Status status = stub_->DescribeShard(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const v1::ShardReport report = registry_.Report(1).at(1);
  EXPECT_EQ(response.manifest_crc32c(), report.manifest_crc32c());
  EXPECT_EQ(response.bytes(), report.bytes());
  EXPECT_EQ(response.manifest_crc32c(),
            Crc32c({reinterpret_cast<const std::byte*>(response.manifest().data()),
                    response.manifest().size()}));
}

TEST_F(ShardServiceTest, AShardThatIsNotHereIsNotFound) {
  std::string bytes;
  EXPECT_EQ(Read(Ref(2), 0, 0, bytes).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Read(Ref(0, 2), 0, 0, bytes).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ShardServiceTest, DamagedBytesAreNotSent) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 3));
    file.write("damage", 6);
  }
  std::string bytes;
  EXPECT_EQ(Read(Ref(0), 0, 0, bytes).error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_TRUE(bytes == Expected(0).substr(0, bytes.size()));
}

TEST_F(ShardServiceTest, ReadersBeyondTheBoundAreToldToAskElsewhere) {
  std::vector<PeerService> services;
  services.push_back(MakeShardService(registry_, "holder", {.most = 0}));
  auto full = PeerServer::Start("127.0.0.1:0", {}, std::move(services));
  ASSERT_TRUE(full.ok()) << full.status();
  stub_ = v1::ShardStore::NewStub(
      grpc::CreateChannel((*full)->address(), grpc::InsecureChannelCredentials()));
  std::string bytes;
  EXPECT_EQ(Read(Ref(0), 0, 0, bytes).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ShardServiceTest, AReaderThatTakesNothingIsCutOffAndToldToAskElsewhere) {
  const auto now_ms = std::make_shared<std::atomic<int64_t>>(0);
  std::vector<PeerService> services;
  services.push_back(
      MakeShardService(registry_, "holder",
                       {.most = 1, .look_ms = 10, .now_ms = [now_ms] { return now_ms->load(); }}));
  auto server = PeerServer::Start("127.0.0.1:0", {}, std::move(services));
  ASSERT_TRUE(server.ok()) << server.status();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  stub_ = v1::ShardStore::NewStub(grpc::CreateCustomChannel(
      (*server)->address(), grpc::InsecureChannelCredentials(), arguments));
  // More than a piece and gRPC's buffers.
  ASSERT_GT(Expected(0).size(), size_t{5} << 18);
  grpc::ClientContext context;
  v1::ReadShardRequest request;
  *request.mutable_shard() = Ref(0);
  const auto stalled = stub_->ReadShard(&context, request);
  v1::ReadShardResponse piece;
  ASSERT_TRUE(stalled->Read(&piece));
  // It has the only place. No time passes while an honest reader reads.
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  grpc::Status honest;
  do {
    *now_ms += 10'000;
    std::string bytes;
    honest = Read(Ref(0), 0, 1, bytes);
  } while (!honest.ok() && std::chrono::steady_clock::now() < end);
  EXPECT_TRUE(honest.ok()) << honest.error_message();
  while (stalled->Read(&piece)) {
  }
  const grpc::Status status = stalled->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("the reader of shards reads too slowly"));
}

TEST_F(ShardServiceTest, APortInUseIsAnError) {
  EXPECT_EQ(PeerServer::Start(service_->address(), {}, {}).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace nibble
