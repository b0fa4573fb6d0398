#include "worker/agent/cards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CardsTest, VisibleDevicesEndAtAnEmptyOrNegativeEntryAsInCuda) {
  EXPECT_THAT(VisibleEntries("2, GPU-1234 ,0"), ElementsAre("2", "GPU-1234", "0"));
  EXPECT_THAT(VisibleEntries("1,-1,0"), ElementsAre("1"));
  EXPECT_THAT(VisibleEntries("1,,0"), ElementsAre("1"));
  EXPECT_THAT(VisibleEntries(""), IsEmpty());
}

TEST(CardsTest, AWorkerTellsWhatHoldsForEachOfItsCards) {
  const Card small = {.id = "0", .name = "NVIDIA H100", .memory_bytes = 80, .capability = 90};
  const Card large = {.id = "1", .name = "NVIDIA B200", .memory_bytes = 180, .capability = 100};
  v1::Hardware hardware = HardwareOf({large, large});
  EXPECT_EQ(hardware.model(), "NVIDIA B200");
  EXPECT_EQ(hardware.memory_bytes(), 180);
  EXPECT_TRUE(hardware.fp4_tensor_cores());
  hardware = HardwareOf({large, small});
  EXPECT_EQ(hardware.model(), "several kinds of cards");
  EXPECT_EQ(hardware.memory_bytes(), 80);
  EXPECT_FALSE(hardware.fp4_tensor_cores());
  EXPECT_EQ(hardware.device(), v1::DEVICE_CUDA);
}

TEST(CardsTest, MoreSlotsThanCardsAreRefusedWithBothNumbers) {
  const Card card = {.id = "0", .name = "NVIDIA H200", .memory_bytes = 1, .capability = 90};
  EXPECT_TRUE(CheckSlots(1, {card}).ok());
  const absl::Status refused = CheckSlots(4, {card});
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("--slots: 4, but this machine has 1 card (NVIDIA H200)"));
}

TEST(CardsTest, CardsHaveAPciAddressAndAPathToEachOther) {
  const std::string library =
      absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"),
                   "/worker/agent/libfake_nvml.so");
  const absl::StatusOr<std::vector<Card>> cards = FindCards(nullptr, library);
  ASSERT_TRUE(cards.ok()) << cards.status();
  ASSERT_EQ(cards->size(), 2u);
  EXPECT_EQ((*cards)[0].pci, "0000:1b:00.0");
  EXPECT_EQ((*cards)[1].pci, "0000:43:00.0");
  ASSERT_EQ((*cards)[0].reaches.size(), 2u);
  EXPECT_EQ((*cards)[0].reaches[0].path, v1::CARD_PATH_UNSPECIFIED);
  EXPECT_EQ((*cards)[0].reaches[1].path, v1::CARD_PATH_BRIDGE);
  EXPECT_EQ((*cards)[1].reaches[0].path, v1::CARD_PATH_BRIDGE);
}

// On a machine with a driver the cards have names; on one without, the error says what is missing.
TEST(CardsTest, AMachineHasCardsOrItsErrorNamesTheDriver) {
  const absl::StatusOr<std::vector<Card>> cards = FindCards(nullptr);
  if (cards.ok()) {
    for (const Card& card : *cards) {
      EXPECT_FALSE(card.name.empty());
      EXPECT_GT(card.memory_bytes, 0);
      EXPECT_GT(card.capability, 0);
    }
  } else {
    EXPECT_THAT(std::string(cards.status().message()), HasSubstr("driver"));
  }
}

}  // namespace
}  // namespace nibble
