// Replicas whose source sends something else than the shard, whose disk is full here, or whose
// header is of another checkpoint.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/bytes.h"
#include "common/crc32c.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/shard_store.grpc.pb.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/peer_server.h"
#include "worker/agent/shard_fetcher.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::State;
using checkpoint_testing::TestHeader;
using checkpoint_testing::TestIdentity;
using testing::HasSubstr;

constexpr char kReplicaJob[] = "gpt-1";
constexpr size_t kMostPieceBytes = size_t{1} << 20;

using Pieces = std::vector<v1::ReadShardResponse>;

// Passes on what an honest source sends, changed.
class AlteringSource : public v1::ShardStore::Service {
 public:
  explicit AlteringSource(const std::string& honest)
      : stub_(v1::ShardStore::NewStub(
            grpc::CreateChannel(honest, grpc::InsecureChannelCredentials()))) {}

  grpc::Status DescribeShard(grpc::ServerContext*, const v1::DescribeShardRequest* request,
                             v1::DescribeShardResponse* response) override {
    ++asked_;
    grpc::ClientContext context;
    const grpc::Status status = stub_->DescribeShard(&context, *request, response);
    if (alter_description) alter_description(*response);
    return status;
  }
  grpc::Status ReadShard(grpc::ServerContext*, const v1::ReadShardRequest* request,
                         grpc::ServerWriter<v1::ReadShardResponse>* writer) override {
    grpc::ClientContext context;
    const auto reader = stub_->ReadShard(&context, *request);
    Pieces pieces(1);
    while (reader->Read(&pieces.back())) pieces.emplace_back();
    pieces.pop_back();
    const grpc::Status status = reader->Finish();
    if (alter_pieces) alter_pieces(pieces);
    for (const v1::ReadShardResponse& piece : pieces) {
      if (!writer->Write(piece)) break;  // the reader has seen enough
    }
    return status;
  }

  int asked() const { return asked_; }
  // Set while nothing is read.
  std::function<void(v1::DescribeShardResponse&)> alter_description;
  std::function<void(Pieces&)> alter_pieces;

 private:
  const std::unique_ptr<v1::ShardStore::Stub> stub_;
  std::atomic<int> asked_{0};
};

// A tensor of which each of two ranks has four pieces.
State LargeState() {
  constexpr int64_t kElements = 2 * 4 * (int64_t{1} << 20) / 4;
  checkpoint_testing::TestTensor tensor;
  tensor.whole = {
      .name = "w", .dtype = FileDType::kF32, .shape = {kElements}, .first = 0, .count = kElements};
  tensor.bytes.resize(SliceBytes(tensor.whole));
  for (size_t i = 0; i < tensor.bytes.size(); ++i) {
    tensor.bytes[i] = static_cast<std::byte>(i / kMostPieceBytes);
  }
  return {tensor};
}

class ReplicaFaultsTest : public testing::Test {
 protected:
  ReplicaFaultsTest() {
    const std::string path = holder_directory_.Path("checkpoints");
    std::filesystem::create_directories(path);
    {
      auto store = CheckpointStore::Open(path, {.identity = TestIdentity()});
      EXPECT_TRUE(store.ok()) << store.status();
      EXPECT_TRUE(checkpoint_testing::Save(**store, 10, 1, 2, LargeState()).ok());
    }
    EXPECT_TRUE(holder_.OpenJob(kReplicaJob, holder_directory_.path(), TestIdentity()).ok());
    EXPECT_TRUE(registry_.OpenJob(kReplicaJob, directory_.path(), TestIdentity()).ok());
    honest_ = Serve(MakeShardService(holder_, "honest"));
    source_ = new AlteringSource(honest_->address());
    altering_ = Serve(PeerService(source_));
  }
  static std::unique_ptr<PeerServer> Serve(PeerService service) {
    std::vector<PeerService> services;
    services.push_back(std::move(service));
    auto server = PeerServer::Start("127.0.0.1:0", {}, std::move(services));
    EXPECT_TRUE(server.ok()) << server.status();
    return server.ok() ? *std::move(server) : nullptr;
  }
  static v1::CheckpointRef ReplicaRef() {
    v1::CheckpointRef ref;
    ref.set_job(kReplicaJob);
    ref.set_step(10);
    ref.set_attempt(1);
    return ref;
  }
  v1::DesiredReplica Wanted(const std::vector<const PeerServer*>& sources) const {
    v1::DesiredReplica replica;
    *replica.mutable_ref() = ReplicaRef();
    replica.set_rank(1);
    replica.set_manifest_crc32c(holder_.CrcOf(ReplicaRef(), 1).value());
    for (const PeerServer* source : sources) replica.add_sources(source->address());
    return replica;
  }
  absl::Status Fetch(const std::vector<const PeerServer*>& sources) {
    return fetcher_.Fetch(Wanted(sources), /*input=*/false, cancellation_, [](int64_t) {});
  }

  std::atomic<bool> full_{false};
  file_testing::WriteHook disk_{[this](const std::string&, int64_t) { return full_ ? ENOSPC : 0; }};
  const file_testing::TempDirectory holder_directory_, directory_;
  CheckpointRegistry holder_{{.clock = [] { return 0.0; }}};
  CheckpointRegistry registry_{{.clock = [] { return 0.0; }, .faults = &disk_}};
  std::unique_ptr<PeerServer> honest_, altering_;
  AlteringSource* source_ = nullptr;  // owned by altering_
  ShardFetcher fetcher_{
      {.registry = &registry_,
       .open_job = [](const std::string&, const StoreIdentity&) { return absl::OkStatus(); }}};
  Cancellation cancellation_;
};

TEST_F(ReplicaFaultsTest, PiecesThatAreNotThoseOfTheShardAreNeitherStoredNorVerified) {
  struct Case {
    absl::StatusCode code;
    std::function<void(Pieces&)> alter;
  };
  constexpr auto kLost = absl::StatusCode::kUnavailable;  // in transit
  constexpr auto kDamaged = absl::StatusCode::kDataLoss;
  const std::map<std::string, Case> cases = {
      {"repeated instead of the next", {kLost, [](Pieces& all) { all[2] = all[1]; }}},
      {"missing in the middle", {kLost, [](Pieces& all) { all.erase(all.begin() + 1); }}},
      {"missing at the beginning", {kLost, [](Pieces& all) { all.erase(all.begin()); }}},
      {"missing at the end", {kDamaged, [](Pieces& all) { all.pop_back(); }}},
      {"none", {kDamaged, [](Pieces& all) { all.clear(); }}},
      {"in another order", {kLost, [](Pieces& all) { std::swap(all[1], all[2]); }}},
      {"at an offset one too large",
       {kLost, [](Pieces& all) { all[1].set_offset_bytes(all[1].offset_bytes() + 1); }}},
      {"with another checksum",
       {kLost, [](Pieces& all) { all[3].set_crc32c(all[3].crc32c() + 1); }}},
      {"one more than there are",
       {kDamaged,
        [](Pieces& all) {
          all.push_back(all[0]);
          all.back().set_offset_bytes(4 * kMostPieceBytes);
        }}},
      {"the first of them twice at both offsets, so that only the manifest knows",
       {kDamaged,
        [](Pieces& all) {
          all[1] = all[0];
          all[1].set_offset_bytes(kMostPieceBytes);
        }}},
  };
  for (const auto& [name, one] : cases) {
    SCOPED_TRACE(name);
    source_->alter_pieces = [&alter = one.alter](Pieces& pieces) {
      ASSERT_EQ(pieces.size(), 4u);
      alter(pieces);
    };
    std::vector<std::string> notes;
    EXPECT_EQ(fetcher_.Verify(Wanted({altering_.get()}), cancellation_, notes).code(), one.code);
    EXPECT_EQ(Fetch({altering_.get()}).code(), one.code);
    EXPECT_TRUE(registry_.Report(1).empty());
    // Another source has the shard all the same.
    EXPECT_EQ(fetcher_.Verify(Wanted({altering_.get(), honest_.get()}), cancellation_, notes),
              absl::OkStatus());
    EXPECT_EQ(notes.size(), 1u);
  }
  EXPECT_EQ(Fetch({altering_.get(), honest_.get()}), absl::OkStatus());
}

TEST_F(ReplicaFaultsTest, ADescriptionThatFailsItsChecksumIsDamage) {
  const std::vector<std::function<void(v1::DescribeShardResponse&)>> alterations = {
      [](auto& one) { one.set_header_crc32c(one.header_crc32c() + 1); },
      [](auto& one) { one.set_header(one.header() + "x"); },
      [](auto& one) { one.set_manifest(one.manifest() + "x"); },
  };
  for (const auto& alteration : alterations) {
    source_->alter_description = alteration;
    EXPECT_EQ(Fetch({altering_.get()}).code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_TRUE(registry_.Report(1).empty());
}

TEST_F(ReplicaFaultsTest, AFullDiskHereIsReportedAsSuchAndNoOtherSourceIsAsked) {
  full_ = true;
  const absl::Status status = Fetch({honest_.get(), altering_.get()});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory_.path()));
  EXPECT_EQ(source_->asked(), 0);
  full_ = false;
  EXPECT_EQ(Fetch({honest_.get(), altering_.get()}), absl::OkStatus());
}

TEST_F(ReplicaFaultsTest, AHeaderOfAnotherCheckpointOrOfTooFewRanksIsRefused) {
  const ShardManifest shard = {.step = 10, .attempt = 1, .rank = 2};
  for (const CheckpointHeader& header :
       {TestHeader(11, 1, 3), TestHeader(10, 2, 3), TestHeader(10, 1, 2), TestHeader(10, 1, 1)}) {
    const absl::Status refused = registry_.AddReplica(kReplicaJob, header, shard, /*input=*/false);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("the shard of rank 2"));
  }
  EXPECT_TRUE(registry_.Report(1).empty());
  EXPECT_EQ(registry_.AddReplica(kReplicaJob, TestHeader(10, 1, 3), shard, /*input=*/false),
            absl::OkStatus());
}

TEST_F(ReplicaFaultsTest, AShardIsServedOnlyWhileItIsRegistered) {
  const auto stub = v1::ShardStore::NewStub(
      grpc::CreateChannel(honest_->address(), grpc::InsecureChannelCredentials()));
  const auto original = holder_.OpenShard(ReplicaRef(), 1);
  ASSERT_TRUE(original.ok()) << original.status();
  // The next attempt's: sealed in the holder's store.
  ShardManifest next = (*original)->manifest();
  next.attempt = 2;
  auto writer = holder_.BeginReplica(kReplicaJob, next);
  ASSERT_TRUE(writer.ok()) << writer.status();
  std::string bytes(next.bytes(), '\0');
  ASSERT_EQ((*original)->Read(
                0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())),
            absl::OkStatus());
  ASSERT_EQ((*writer)->Put(next.slices.at(0).slice, AsBytes(bytes)), absl::OkStatus());
  const auto sealed = (*writer)->Seal();
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  v1::ReadShardRequest request;
  *request.mutable_shard()->mutable_checkpoint() = ReplicaRef();
  request.mutable_shard()->mutable_checkpoint()->set_attempt(2);
  request.mutable_shard()->set_rank(1);
  const auto read = [&] {
    grpc::ClientContext context;
    const auto reader = stub->ReadShard(&context, request);
    v1::ReadShardResponse piece;
    while (reader->Read(&piece)) {
    }
    return reader->Finish().error_code();
  };
  ASSERT_TRUE(holder_.OpenShard(request.shard().checkpoint(), 1).ok()) << "its files are there";
  EXPECT_EQ(read(), grpc::StatusCode::NOT_FOUND);
  ASSERT_EQ(holder_.AddReplica(kReplicaJob, TestHeader(10, 2, 2), *sealed, /*input=*/false),
            absl::OkStatus());
  EXPECT_EQ(read(), grpc::StatusCode::OK);
}

}  // namespace
}  // namespace nibble
