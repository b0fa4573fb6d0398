#include "client/remote/worker_topology.h"

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(WorkerTopologyTest, AWorkerThatReportsNoneHasNoTable) { EXPECT_EQ(TopologyTable({}), ""); }

TEST(WorkerTopologyTest, CardsHaveAMatrixOfTheirPaths) {
  v1::Topology topology;
  for (int32_t slot = 0; slot < 3; ++slot) {
    v1::SlotPlace& place = *topology.add_slots();
    place.set_pci("0000:" + std::to_string(slot) + "7:00.0");
    place.set_numa_node(slot == 2 ? 1 : 0);
    place.set_cores(slot == 2 ? "32-63" : "0-31");
  }
  for (int32_t node = 0; node < 2; ++node) {
    topology.add_nodes()->set_node(node);
    topology.mutable_nodes(node)->set_cores(node == 0 ? "0-31" : "32-63");
  }
  v1::SlotLink& near = *topology.add_links();
  near.set_slot(0);
  near.set_other(1);
  near.set_path(v1::CARD_PATH_NVLINK);
  near.set_nvlinks(18);
  v1::SlotLink& far = *topology.add_links();
  far.set_slot(1);
  far.set_other(2);
  far.set_path(v1::CARD_PATH_SYSTEM);
  EXPECT_EQ(TopologyTable(topology),
            "SLOT  CARD          NUMA  CORES OF NODE  PINNED TO  TO 0  TO 1  TO 2\n"
            "   0  0000:07:00.0     0           0-31       0-31  -     NV18  -\n"
            "   1  0000:17:00.0     0           0-31       0-31  NV18  -     SYS\n"
            "   2  0000:27:00.0     1          32-63      32-63  -     SYS   -\n");
}

TEST(WorkerTopologyTest, SlotsWithoutCardsHaveNoMatrix) {
  v1::Topology topology;
  topology.add_slots()->set_numa_node(-1);
  EXPECT_EQ(TopologyTable(topology),
            "SLOT  CARD  NUMA  CORES OF NODE  PINNED TO\n"
            "   0     -     -              -          -\n");
}

}  // namespace
}  // namespace nibble
