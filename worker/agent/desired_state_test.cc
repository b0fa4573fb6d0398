#include "worker/agent/desired_state.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace nibble {
namespace {

v1::StoreIdentity OrderingStore(const std::string& id, int64_t epoch = 1) {
  v1::StoreIdentity store;
  store.set_id(id);
  store.set_epoch(epoch);
  return store;
}

v1::ConnectResponse Response(v1::GangCommand command, int64_t stop_within_ms = 0) {
  v1::ConnectResponse response;
  *response.mutable_store() = OrderingStore("s");
  v1::DesiredGang& gang = *response.add_gangs();
  gang.set_job("a-1");
  gang.set_attempt(2);
  gang.set_command(command);
  gang.set_stop_within_ms(stop_within_ms);
  return response;
}

TEST(DesiredStateTest, ARepeatedOrderToStopDoesNotExtendItsDeadline) {
  const DesiredState first(nullptr, Response(v1::GANG_COMMAND_STOP, 500), 1000);
  const DesiredState second(&first, Response(v1::GANG_COMMAND_STOP, 9000), 1100);
  const DesiredState third(&second, Response(v1::GANG_COMMAND_STOP, 100), 1200);
  const std::vector<GangOrigin> here = {{"a-1", 2, OrderingStore("s")}};
  EXPECT_EQ(second.WantedGangs(here).at(0).stop_by_ms, 1500);
  EXPECT_EQ(third.WantedGangs(here).at(0).stop_by_ms, 1300);
  const DesiredState runs(&third, Response(v1::GANG_COMMAND_RUN), 1300);
  EXPECT_EQ(runs.WantedGangs(here).at(0).stop_by_ms, 0);
}

TEST(DesiredStateTest, AnOrderToStopRanksThatAreNotHereHasNoEffect) {
  const DesiredState stop(nullptr, Response(v1::GANG_COMMAND_STOP), 0);
  EXPECT_TRUE(stop.WantedGangs({}).empty());
  const DesiredState run(nullptr, Response(v1::GANG_COMMAND_RUN), 0);
  EXPECT_EQ(run.WantedGangs({}).size(), 1u);
}

TEST(DesiredStateTest, ForAnotherStoresGangOfTheSameNameOnlyAnOrderToStopApplies) {
  const std::vector<GangOrigin> here = {{"a-1", 2, OrderingStore("other")}};
  const DesiredState run(nullptr, Response(v1::GANG_COMMAND_RUN), 0);
  EXPECT_EQ(run.FindFor(here[0]), nullptr);
  EXPECT_NE(run.Find("a-1", 2), nullptr);
  EXPECT_TRUE(run.WantedGangs(here).empty());
  const DesiredState stop(nullptr, Response(v1::GANG_COMMAND_STOP), 0);
  EXPECT_NE(stop.FindFor(here[0]), nullptr);
  // An earlier epoch of the store means the same gang.
  EXPECT_NE(run.FindFor({"a-1", 2, OrderingStore("s", 0)}), nullptr);
  EXPECT_EQ(run.FindFor({"a-1", 3, OrderingStore("s")}), nullptr);
}

TEST(DesiredStateTest, AGangOfAnotherStoreOrEpochMayEndOnlyByAnOrderToRemoveItsOrphans) {
  v1::ConnectResponse response = Response(v1::GANG_COMMAND_RUN);
  v1::OrphanOrder& order = *response.add_orphans();
  order.set_job("c-3");
  *order.mutable_store() = OrderingStore("other");
  v1::OrphanOrder& own = *response.add_orphans();
  own.set_job("d-4");
  *own.mutable_store() = OrderingStore("s");  // names no orphan
  const DesiredState state(nullptr, response, 0);
  EXPECT_TRUE(state.MayEnd({"b-2", 1, OrderingStore("s")}));
  EXPECT_FALSE(state.MayEnd({"b-2", 1, OrderingStore("s", 2)}));
  EXPECT_FALSE(state.MayEnd({"b-2", 1, OrderingStore("other")}));
  EXPECT_TRUE(state.MayEnd({"c-3", 1, OrderingStore("other")}));
  EXPECT_FALSE(state.MayEnd({"d-4", 1, OrderingStore("other")}));
}

}  // namespace
}  // namespace nibble
