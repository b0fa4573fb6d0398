#include "worker/link/link_socket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/link/link_messages.h"

namespace nibble {
namespace {

class LinkSocketTest : public testing::Test {
 protected:
  LinkSocketTest() { Connect(); }
  void Connect() {
    int pair[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    near_ = std::make_unique<LinkSocket>(OwnedDescriptor(pair[0]));
    far_ = std::make_unique<LinkSocket>(OwnedDescriptor(pair[1]));
  }
  std::unique_ptr<LinkSocket> near_, far_;
};

TEST_F(LinkSocketTest, MessagesMayArriveInAnyPieces) {
  link::v1::ToDaemon message;
  message.mutable_snapshot()->set_step(7);
  near_->Queue(message);
  message.mutable_snapshot()->set_step(8);
  near_->Queue(message);
  ASSERT_EQ(near_->Send(), absl::OkStatus());
  char stream[256];
  const ssize_t size = recv(far_->descriptor(), stream, sizeof stream, 0);
  ASSERT_GT(size, 8);
  std::vector<int64_t> steps;
  for (ssize_t i = 0; i < size; ++i) {
    ASSERT_EQ(send(near_->descriptor(), stream + i, 1, 0), 1);
    ASSERT_EQ(far_->Receive([&](absl::string_view bytes) {
      link::v1::ToDaemon received;
      EXPECT_EQ(ParseLinkMessage(bytes, received), absl::OkStatus());
      steps.push_back(received.snapshot().step());
      return absl::OkStatus();
    }),
              absl::OkStatus());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{7, 8}));
}

TEST_F(LinkSocketTest, DescriptorsComeWithTheirMessages) {
  for (int64_t step = 1; step <= 3; ++step) {
    link::v1::ToDaemon message;
    message.mutable_snapshot()->set_step(step);
    OwnedDescriptor memory;
    if (step != 2) {
      memory = OwnedDescriptor(memfd_create("test", MFD_CLOEXEC));
      ASSERT_EQ(ftruncate(memory.get(), step), 0);
    }
    near_->Queue(message, std::move(memory));
  }
  ASSERT_EQ(near_->Send(), absl::OkStatus());
  std::vector<int64_t> sizes;
  ASSERT_EQ(far_->Receive([&](absl::string_view bytes) {
    link::v1::ToDaemon received;
    EXPECT_EQ(ParseLinkMessage(bytes, received), absl::OkStatus());
    if (received.snapshot().step() == 2) return absl::OkStatus();
    sizes.push_back(lseek(far_->TakeDescriptor().get(), 0, SEEK_END));
    return absl::OkStatus();
  }),
            absl::OkStatus());
  EXPECT_EQ(sizes, (std::vector<int64_t>{1, 3}));
}

TEST_F(LinkSocketTest, DescriptorsThatNoMessageHasAreBounded) {
  for (int i = 0; i < 5; ++i) {
    near_->Queue(link::v1::ToDaemon(), OwnedDescriptor(memfd_create("test", MFD_CLOEXEC)));
  }
  ASSERT_EQ(near_->Send(), absl::OkStatus());
  EXPECT_TRUE(
      absl::IsInvalidArgument(far_->Receive([](absl::string_view) { return absl::OkStatus(); })));
}

TEST_F(LinkSocketTest, AMessageOfTheAllowedLengthIsAwaitedAndALongerOneRefusedByItsHead) {
  const auto receive = [this](int64_t length) {
    std::string head;
    AppendLittle(head, static_cast<uint32_t>(length));
    EXPECT_EQ(send(near_->descriptor(), head.data(), head.size(), 0), ssize_t{4});
    return far_->Receive([](absl::string_view) { return absl::OkStatus(); });
  };
  const absl::Status refused = receive(kMaxLinkMessageBytes + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  Connect();
  EXPECT_EQ(receive(kMaxLinkMessageBytes), absl::OkStatus());
}

TEST(SocketNameTest, APathHasRoomForItsEnd) {
  const size_t most = sizeof(sockaddr_un::sun_path) - 1;
  EXPECT_TRUE(SocketName(std::string(most, 'x')).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(SocketName(std::string(most + 1, 'x')).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SocketName("").status()));
}

}  // namespace
}  // namespace nibble
