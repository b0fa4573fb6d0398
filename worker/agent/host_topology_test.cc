#include "worker/agent/host_topology.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/slot_plan.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A host with two sockets of 32 cores with two hardware threads each, the threads of core N being N
// and 64 + N, and eight cards, four on each socket, behind one NVLink switch.
class TwoSocketHost : public testing::Test {
 protected:
  static constexpr int kThreads = 128;
  static constexpr const char* kCards[] = {"0000:1b:00.0", "0000:43:00.0", "0000:52:00.0",
                                           "0000:61:00.0", "0000:9d:00.0", "0000:c3:00.0",
                                           "0000:d1:00.0", "0000:df:00.0"};

  TwoSocketHost() {
    Write("sys/devices/system/node/online", "0-1");
    Write("sys/devices/system/node/node0/cpulist", "0-31,64-95");
    Write("sys/devices/system/node/node1/cpulist", "32-63,96-127");
    Write("sys/devices/system/node/node2/cpulist", "");  // memory without cores
    Write("sys/devices/system/cpu/online", "0-127");
    for (int cpu = 0; cpu < kThreads; ++cpu) {
      Write(absl::StrCat("sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"),
            absl::StrCat(cpu % 64, ",", 64 + cpu % 64));
    }
    for (int card = 0; card < 8; ++card) {
      Write(absl::StrCat("sys/bus/pci/devices/", kCards[card], "/numa_node"),
            absl::StrCat(card / 4));
    }
    Write("sys/bus/pci/devices/0000:02:00.0/numa_node", "-1");
    allowed_.resize(kThreads);
    std::iota(allowed_.begin(), allowed_.end(), 0);
  }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path at = std::filesystem::path(root()) / path;
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << text << "\n";
  }
  std::string root() const { return directory_.path(); }
  std::vector<HostNode> Nodes() const {
    const auto nodes = ReadHostNodes(root(), allowed_);
    EXPECT_TRUE(nodes.ok()) << nodes.status();
    return nodes.value_or(std::vector<HostNode>());
  }
  std::vector<Card> Cards() const {
    std::vector<Card> cards;
    for (int i = 0; i < 8; ++i) {
      Card& card = cards.emplace_back(
          Card{.id = absl::StrCat(i), .name = "NVIDIA H100 80GB HBM3", .pci = kCards[i]});
      card.reaches.assign(8, {.path = v1::CARD_PATH_NVLINK, .nvlinks = 18});
      card.reaches[static_cast<size_t>(i)] = {};
    }
    return cards;
  }
  std::vector<int> CardNodes() const {
    std::vector<int> nodes;
    for (const char* card : kCards) nodes.push_back(NumaNodeOf(root(), card));
    return nodes;
  }

  file_testing::TempDirectory directory_;
  std::vector<int> allowed_;
};

TEST(HostTopologyTest, ListsOfCpusAreReadAndWritten) {
  for (const char* list : {"", "0", "0-3", "0-1,3", "0-31,64-95", "5,7,9"}) {
    const auto cpus = ParseCpuList(list);
    ASSERT_TRUE(cpus.ok()) << cpus.status();
    EXPECT_EQ(CpuListText(*cpus), list);
  }
  EXPECT_THAT(*ParseCpuList("2-3,0,3\n"), ElementsAre(0, 2, 3));
  for (const char* bad : {"a", "1-", "-1", "3-1", "0-1-2", "0,,1", "0-99999999", "65536"}) {
    const auto cpus = ParseCpuList(bad);
    EXPECT_TRUE(absl::IsInvalidArgument(cpus.status())) << bad;
    EXPECT_THAT(std::string(cpus.status().message()), HasSubstr(bad));
  }
}

TEST(HostTopologyTest, ThisMachineHasThreadsAndNodes) {
  const auto allowed = AllowedThreads();
  ASSERT_TRUE(allowed.ok()) << allowed.status();
  ASSERT_FALSE(allowed->empty());
  const auto nodes = ReadHostNodes("", *allowed);
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  std::vector<int> threads;
  for (const HostNode& node : *nodes) {
    for (const int thread : node.Threads()) threads.push_back(thread);
  }
  std::sort(threads.begin(), threads.end());
  EXPECT_EQ(threads, *allowed);
}

TEST_F(TwoSocketHost, NodesHaveTheCoresAndThreadsOfTheirSocket) {
  const std::vector<HostNode> nodes = Nodes();
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].number, 0);
  EXPECT_EQ(nodes[1].number, 1);
  EXPECT_EQ(nodes[0].cores.size(), 32u);
  EXPECT_THAT(nodes[1].cores[0], ElementsAre(32, 96));
  EXPECT_EQ(CpuListText(nodes[1].Threads()), "32-63,96-127");
}

TEST_F(TwoSocketHost, ThreadsThatTheProcessMayNotUseAreLeftOut) {
  allowed_ = {0, 1, 64, 65, 127};
  const std::vector<HostNode> nodes = Nodes();
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_THAT(nodes[0].cores, ElementsAre(ElementsAre(0, 64), ElementsAre(1, 65)));
  EXPECT_THAT(nodes[1].cores, ElementsAre(ElementsAre(127)));
  allowed_ = {3};
  EXPECT_EQ(Nodes().size(), 1u);
}

TEST_F(TwoSocketHost, AKernelWithoutNumaHasNodeZero) {
  std::filesystem::remove_all(root() + "/sys/devices/system/node");
  const std::vector<HostNode> nodes = Nodes();
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].number, 0);
  EXPECT_EQ(nodes[0].cores.size(), 64u);
}

TEST_F(TwoSocketHost, AMalformedFileIsNamed) {
  Write("sys/devices/system/node/node0/cpulist", "many");
  const auto nodes = ReadHostNodes(root(), allowed_);
  EXPECT_THAT(std::string(nodes.status().message()), HasSubstr("node0/cpulist: 'many'"));
}

TEST_F(TwoSocketHost, APciDeviceHasItsNodeOrNone) {
  EXPECT_THAT(CardNodes(), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_EQ(NumaNodeOf(root(), "0000:02:00.0"), -1);
  EXPECT_EQ(NumaNodeOf(root(), "0000:ff:00.0"), -1);
  EXPECT_EQ(NumaNodeOf(root(), ""), -1);
}

TEST_F(TwoSocketHost, RanksArePinnedToTheNodeOfTheirCard) {
  const auto plan = PlanSlots(Nodes(), Cards(), CardNodes(), 8, Pinning::kNode);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->pins.size(), 8u);
  EXPECT_EQ(CpuListText(plan->pins[0].threads), "0-31,64-95");
  EXPECT_EQ(plan->pins[0].memory_node, 0);
  EXPECT_EQ(CpuListText(plan->pins[7].threads), "32-63,96-127");
  EXPECT_EQ(plan->pins[7].memory_node, 1);
  const v1::Topology& topology = plan->topology;
  ASSERT_EQ(topology.slots_size(), 8);
  EXPECT_EQ(topology.slots(5).pci(), "0000:c3:00.0");
  EXPECT_EQ(topology.slots(5).numa_node(), 1);
  EXPECT_EQ(topology.slots(5).cores(), "32-63,96-127");
  EXPECT_EQ(topology.nodes(0).cores(), "0-31,64-95");
  ASSERT_EQ(topology.links_size(), 28);
  EXPECT_EQ(topology.links(0).path(), v1::CARD_PATH_NVLINK);
  EXPECT_EQ(topology.links(0).nvlinks(), 18);
  EXPECT_THAT(plan->notices, IsEmpty());
}

TEST_F(TwoSocketHost, SlotsOfANodeDivideItsWholeCores) {
  const auto plan = PlanSlots(Nodes(), Cards(), CardNodes(), 8, Pinning::kCores);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(CpuListText(plan->pins[0].threads), "0-7,64-71");
  EXPECT_EQ(CpuListText(plan->pins[3].threads), "24-31,88-95");
  EXPECT_EQ(CpuListText(plan->pins[4].threads), "32-39,96-103");
  EXPECT_EQ(plan->pins[4].memory_node, 1);
}

TEST_F(TwoSocketHost, MoreSlotsThanCoresAreRefusedWithBothNumbers) {
  allowed_ = {0, 64, 32, 33};
  const auto plan = PlanSlots(Nodes(), {}, {}, 4, Pinning::kCores);
  EXPECT_TRUE(absl::IsInvalidArgument(plan.status()));
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("NUMA node 0 has 1 core for 2 slots; use --pin node"));
}

TEST_F(TwoSocketHost, CpuSlotsAreSpreadOverTheNodesAndALoneOneSpansThem) {
  auto plan = PlanSlots(Nodes(), {}, {}, 4, Pinning::kNode);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pins[1].memory_node, 0);
  EXPECT_EQ(plan->pins[2].memory_node, 1);
  plan = PlanSlots(Nodes(), {}, {}, 1, Pinning::kNode);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pins[0], SlotPin());
  EXPECT_EQ(plan->topology.slots(0).numa_node(), -1);
}

TEST_F(TwoSocketHost, WithOneNodeOrWithoutPinningRanksAreNotBound) {
  auto plan = PlanSlots(Nodes(), Cards(), CardNodes(), 8, Pinning::kNone);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pins[7], SlotPin());
  EXPECT_EQ(plan->topology.slots(7).numa_node(), 1);
  allowed_ = {0, 1, 2, 3};
  plan = PlanSlots(Nodes(), {}, {}, 2, Pinning::kNode);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pins[1], SlotPin());
  EXPECT_EQ(plan->topology.slots(1).numa_node(), 0);
}

TEST_F(TwoSocketHost, ACardOfAnUnknownNodeIsNamedAndItsRanksAreNotBound) {
  std::vector<int> nodes = CardNodes();
  nodes[2] = -1;
  const auto plan = PlanSlots(Nodes(), Cards(), nodes, 8, Pinning::kNode);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pins[2], SlotPin());
  EXPECT_THAT(plan->notices, ElementsAre(HasSubstr("slot 2's card 0000:52:00.0 is unknown")));
}

}  // namespace
}  // namespace nibble
