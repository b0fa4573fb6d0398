#include "kernels/late/late_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace nibble {
namespace {

std::unique_ptr<LateDevice> MakeDevice(uint64_t seed = 1, size_t bytes = size_t{1} << 24) {
  auto device = LateDevice::Create({.memory_bytes = bytes, .seed = seed});
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

// A device buffer with these values, and its copy back.
Buffer OnDevice(LateBackend& backend, const std::vector<float>& values) {
  Buffer buffer = *backend.memory().Allocate(values.size() * sizeof(float));
  EXPECT_TRUE(
      backend.memory().CopyIn(buffer.data(), values.data(), values.size() * sizeof(float)).ok());
  return buffer;
}
std::vector<float> Values(LateBackend& backend, const Buffer& buffer) {
  std::vector<float> values(buffer.bytes() / sizeof(float));
  EXPECT_TRUE(backend.memory().CopyOut(values.data(), buffer.data(), buffer.bytes()).ok());
  return values;
}

// y += x.
absl::Status Add(LateDevice& device, const Buffer& x, const Buffer& y) {
  const auto n = static_cast<int64_t>(x.bytes() / sizeof(float));
  return device.ops().elementwise().Run(Accumulate{.from = ConstMatrix::Of(x.data<float>(), 1, n),
                                                   .to = MutableMatrix::Of(y.data<float>(), 1, n)});
}

TEST(LateDeviceDeathTest, TheHostFaultsWhereItTouchesDeviceMemory) {
  const std::unique_ptr<LateDevice> device = MakeDevice();
  const Buffer buffer = OnDevice(device->backend(), {1, 2});
  EXPECT_DEATH(buffer.data<float>()[1] = 3, "");
  EXPECT_DEATH(std::printf("%f", buffer.data<float>()[0]), "");
}

TEST(LateDeviceDeathTest, TheHostFaultsWhereItTouchesPinnedMemoryThatACopyStillUses) {
  const std::unique_ptr<LateDevice> device = MakeDevice();
  LateBackend& backend = device->backend();
  const Buffer on_device = OnDevice(backend, {1, 2});
  const Buffer pinned = *backend.pinned().Allocate(8);
  ASSERT_TRUE(backend.transfers().CopyOut(pinned.data(), on_device.data(), 8).ok());
  EXPECT_DEATH(std::printf("%f", pinned.data<float>()[0]), "");
  ASSERT_TRUE(backend.Synchronize().ok());
  EXPECT_EQ(pinned.data<float>()[1], 2);
  ASSERT_TRUE(backend.transfers().CopyIn(on_device.data(), pinned.data(), 8).ok());
  EXPECT_EQ(pinned.data<float>()[1], 2);
  EXPECT_DEATH(pinned.data<float>()[1] = 3, "");
}

TEST(LateDevice, AnOperationRunsAfterItsCall) {
  const std::unique_ptr<LateDevice> device = MakeDevice();
  const Buffer x = OnDevice(device->backend(), {1, 2}), y = OnDevice(device->backend(), {10, 20});
  ASSERT_TRUE(Add(*device, x, y).ok());
  EXPECT_GT(device->backend().waiting(), 0u);
  EXPECT_EQ(Values(device->backend(), y), (std::vector<float>{11, 22}));
  EXPECT_EQ(device->backend().waiting(), 0u);
}

TEST(LateDevice, ABadRequestIsRefusedInItsCall) {
  const std::unique_ptr<LateDevice> device = MakeDevice();
  EXPECT_TRUE(absl::IsInvalidArgument(device->ops().elementwise().Run(
      Accumulate{.from = ConstMatrix::Of(nullptr, 1, 2), .to = MutableMatrix::Of(nullptr, 1, 2)})));
  EXPECT_EQ(device->backend().waiting(), 0u);
}

TEST(LateDevice, TheStepOfRandomBitsIsReadWhenTheQuantisationRuns) {
  const std::unique_ptr<LateDevice> device = MakeDevice();
  LateBackend& backend = device->backend();
  std::vector<float> values(4 * 64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 37) * 0.13f;
  const Buffer x = OnDevice(backend, values);
  const Buffer step = *backend.memory().Allocate(sizeof(uint64_t));
  const Buffer pinned = *backend.pinned().Allocate(sizeof(uint64_t));
  QuantizedTensor::Options options;
  options.spec.rounding = Rounding::kStochastic;
  options.rows = 4;
  options.cols = 64;
  const auto codes = [&](uint32_t given, const uint64_t* in_memory) {
    QuantizedTensor out = *QuantizedTensor::Create(backend.memory(), options);
    EXPECT_TRUE(backend
                    .Quantize({.x = ConstMatrix::Of(x.data<float>(), 4, 64),
                               .row = {.out = &out, .random = {.step = given}, .step = in_memory}})
                    .ok());
    std::vector<uint8_t> bytes(out.code_bytes());
    EXPECT_TRUE(backend.memory().CopyOut(bytes.data(), out.codes(), bytes.size()).ok());
    return bytes;
  };
  *pinned.data<uint64_t>() = 5;
  ASSERT_TRUE(backend.compute().CopyIn(step.data(), pinned.data(), sizeof(uint64_t)).ok());
  EXPECT_EQ(codes(1, step.data<uint64_t>()), codes(5, nullptr));
  EXPECT_NE(codes(1, nullptr), codes(5, nullptr));
}

TEST(LateDevice, WithoutAnEventTheQueuesHaveNoOrder) {
  // Some seeds copy before the addition, some after it.
  int before = 0, after = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const std::unique_ptr<LateDevice> device = MakeDevice(seed);
    LateBackend& backend = device->backend();
    const Buffer x = OnDevice(backend, {1}), y = OnDevice(backend, {10});
    const Buffer pinned = *backend.pinned().Allocate(4);
    ASSERT_TRUE(Add(*device, x, y).ok());
    ASSERT_TRUE(backend.transfers().CopyOut(pinned.data(), y.data(), 4).ok());
    ASSERT_TRUE(backend.Synchronize().ok());
    ++(pinned.data<float>()[0] == 10 ? before : after);
  }
  EXPECT_GT(before, 0);
  EXPECT_GT(after, 0);
}

TEST(LateDevice, AnEventGivesTheQueuesAnOrder) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const std::unique_ptr<LateDevice> device = MakeDevice(seed);
    LateBackend& backend = device->backend();
    const Buffer x = OnDevice(backend, {1}), y = OnDevice(backend, {0});
    const Buffer pinned = *backend.pinned().Allocate(4);
    const std::unique_ptr<Event> added = *backend.NewEvent(), copied = *backend.NewEvent();
    for (int i = 1; i <= 300; ++i) {
      // Not before the last copy has read y.
      ASSERT_TRUE(backend.compute().WaitFor(*copied).ok());
      ASSERT_TRUE(Add(*device, x, y).ok());
      ASSERT_TRUE(backend.compute().Record(*added).ok());
      ASSERT_TRUE(backend.transfers().WaitFor(*added).ok());
      ASSERT_TRUE(backend.transfers().CopyOut(pinned.data(), y.data(), 4).ok());
      ASSERT_TRUE(backend.transfers().Record(*copied).ok());
      if (i % 100 != 0) continue;
      ASSERT_TRUE(backend.Wait(*copied).ok());
      EXPECT_EQ(pinned.data<float>()[0], i);
    }
  }
}

TEST(LateDevice, HostWorkRunsInItsTurnAndItsErrorIsTheQueues) {
  const std::unique_ptr<LateDevice> device = MakeDevice();
  LateBackend& backend = device->backend();
  const Buffer pinned = *backend.pinned().Allocate(4);
  const Buffer on_device = OnDevice(backend, {1});
  float seen = 0;
  ASSERT_TRUE(backend.transfers().CopyOut(pinned.data(), on_device.data(), 4).ok());
  ASSERT_TRUE(backend.transfers()
                  .Host([&] {
                    seen = pinned.data<float>()[0];
                    return absl::OkStatus();
                  })
                  .ok());
  ASSERT_TRUE(backend.Synchronize().ok());
  EXPECT_EQ(seen, 1);
  ASSERT_TRUE(
      backend.transfers().Host([] { return absl::UnavailableError("the peer ended"); }).ok());
  EXPECT_EQ(backend.Synchronize().message(), "the peer ended");
  EXPECT_EQ(Add(*device, on_device, on_device).message(), "the peer ended");
}

TEST(LateDevice, ACopyNeedsPinnedMemory) {
  const std::unique_ptr<LateDevice> device = MakeDevice();
  LateBackend& backend = device->backend();
  const Buffer on_device = OnDevice(backend, {1, 2});
  std::vector<float> pageable(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      backend.transfers().CopyOut(pageable.data(), on_device.data(), 8)));
  alignas(4096) static char own[4096];
  ASSERT_TRUE(backend.Pin(own, sizeof own).ok());
  EXPECT_TRUE(backend.transfers().CopyOut(own, on_device.data(), 8).ok());
  ASSERT_TRUE(backend.Synchronize().ok());
  ASSERT_TRUE(backend.Unpin(own).ok());
  EXPECT_FALSE(backend.transfers().CopyOut(own, on_device.data(), 8).ok());
}

TEST(LateDevice, MemoryIsLimitedAndReusedAndNeverZeroByChance) {
  const std::unique_ptr<LateDevice> device = MakeDevice(1, size_t{1} << 20);
  LateBackend& backend = device->backend();
  EXPECT_TRUE(absl::IsResourceExhausted(backend.memory().Allocate(size_t{2} << 20).status()));
  for (int i = 0; i < 3; ++i) {
    const Buffer most = *backend.memory().Allocate(size_t{900} << 10);
    EXPECT_TRUE(absl::IsResourceExhausted(backend.memory().Allocate(size_t{200} << 10).status()));
    EXPECT_NE(Values(backend, most)[1000], 0.0f);
  }
  EXPECT_EQ(backend.memory().used(), 0u);
}

TEST(LateDevice, AnEventThatWasNeverRecordedMarksTheBeginning) {
  const std::unique_ptr<LateDevice> device = MakeDevice();
  LateBackend& backend = device->backend();
  const std::unique_ptr<Event> event = *backend.NewEvent();
  ASSERT_TRUE(backend.transfers().WaitFor(*event).ok());
  EXPECT_TRUE(backend.Synchronize().ok());
  EXPECT_TRUE(backend.Wait(*event).ok());
}

}  // namespace
}  // namespace nibble
