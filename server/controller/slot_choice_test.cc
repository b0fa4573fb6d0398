#include "server/controller/slot_choice.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::ElementsAre;

void Link(v1::Topology& topology, int32_t slot, int32_t other, v1::CardPath path, int nvlinks = 0) {
  v1::SlotLink& link = *topology.add_links();
  link.set_slot(slot);
  link.set_other(other);
  link.set_path(path);
  link.set_nvlinks(nvlinks);
}

// Eight cards behind one NVLink switch, four on each socket.
v1::Topology SwitchedHost() {
  v1::Topology topology;
  for (int32_t slot = 0; slot < 8; ++slot) {
    topology.add_slots()->set_numa_node(slot / 4);
    for (int32_t other = slot + 1; other < 8; ++other) {
      Link(topology, slot, other, v1::CARD_PATH_NVLINK, 18);
    }
  }
  return topology;
}

// Four cards in two pairs with NVLink bridges: 0 with 2, and 1 with 3.
v1::Topology BridgedPairs() {
  v1::Topology topology;
  for (int32_t slot = 0; slot < 4; ++slot) topology.add_slots()->set_numa_node(0);
  Link(topology, 0, 1, v1::CARD_PATH_SWITCH);
  Link(topology, 0, 2, v1::CARD_PATH_NVLINK, 4);
  Link(topology, 0, 3, v1::CARD_PATH_NODE);
  Link(topology, 1, 2, v1::CARD_PATH_NODE);
  Link(topology, 1, 3, v1::CARD_PATH_NVLINK, 4);
  Link(topology, 2, 3, v1::CARD_PATH_SWITCH);
  return topology;
}

TEST(SlotChoiceTest, WithoutATopologyTheFirstSlotsAreTaken) {
  EXPECT_THAT(CloseSlots({}, {1, 3, 5, 7}, 2), ElementsAre(1, 3));
  EXPECT_THAT(CloseSlots(BridgedPairs(), {1, 3, 90}, 2), ElementsAre(1, 3));
}

TEST(SlotChoiceTest, CardsThatNvLinkConnectsAreTakenTogether) {
  EXPECT_THAT(CloseSlots(BridgedPairs(), {0, 1, 2, 3}, 2), ElementsAre(0, 2));
  EXPECT_THAT(CloseSlots(BridgedPairs(), {0, 1, 3}, 2), ElementsAre(1, 3));
}

TEST(SlotChoiceTest, BehindASwitchTheSlotsOfOneNodeAreTaken) {
  EXPECT_THAT(CloseSlots(SwitchedHost(), {2, 3, 4, 5, 6, 7}, 4), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(CloseSlots(SwitchedHost(), {0, 1, 2, 3, 4, 5, 6, 7}, 4), ElementsAre(0, 1, 2, 3));
}

TEST(SlotChoiceTest, AWholeNodeIsKeptForALargerGang) {
  EXPECT_THAT(CloseSlots(SwitchedHost(), {2, 3, 4, 5, 6, 7}, 2), ElementsAre(2, 3));
  EXPECT_THAT(CloseSlots(SwitchedHost(), {3, 4, 5, 6, 7}, 1), ElementsAre(3));
}

TEST(SlotChoiceTest, AnyNumberOfSlotsIsTakenOnceAndAscending) {
  for (const v1::Topology& topology : {SwitchedHost(), BridgedPairs()}) {
    std::vector<int32_t> free;
    for (int32_t slot = 0; slot < topology.slots_size(); ++slot) free.push_back(slot);
    for (size_t count = 0; count <= free.size(); ++count) {
      const std::vector<int32_t> slots = CloseSlots(topology, free, count);
      EXPECT_EQ(slots.size(), count);
      EXPECT_TRUE(std::is_sorted(slots.begin(), slots.end()));
      EXPECT_EQ(std::adjacent_find(slots.begin(), slots.end()), slots.end());
    }
  }
}

TEST(SlotChoiceTest, LinksOfSlotsThatDoNotExistAreIgnored) {
  v1::Topology topology = BridgedPairs();
  Link(topology, -1, 3, v1::CARD_PATH_NVLINK, 4);
  Link(topology, 2, 99, v1::CARD_PATH_NVLINK, 4);
  EXPECT_THAT(CloseSlots(topology, {0, 1, 2, 3}, 2), ElementsAre(0, 2));
}

}  // namespace
}  // namespace nibble
