#include "server/notify/post_plan.h"

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/decide.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

const PostResult kDelivered = {PostResult::Kind::kDelivered, ""};

class PostPlanTest : public testing::Test {
 protected:
  PostPlanTest() { cluster_.AddWorkers(4, 2); }

  // `urls`: each with "on: [submitted, started]".
  std::string Submit(const std::vector<std::string>& urls) {
    std::string notify = "notify:\n";
    for (const std::string& url : urls) {
      absl::StrAppend(&notify, "  - {url: \"", url, "\", on: [submitted, started]}\n");
    }
    v1::SubmitJobRequest request;
    request.set_request_id(cluster_.Id());
    request.set_spec_yaml(absl::StrCat(TestCluster::Spec("train", 2), notify));
    const std::function<absl::Status(const std::string&)> anywhere = [](const std::string&) {
      return absl::OkStatus();
    };
    Caller caller = cluster_.caller();
    caller.may_post = &anywhere;
    const auto decision = Decide(cluster_.state(), request, caller);
    EXPECT_EQ(decision.status(), absl::OkStatus());
    if (!decision.ok()) return "";
    EXPECT_EQ(cluster_.Apply(*decision->update), absl::OkStatus());
    return decision->response.job().id();
  }
  PostPlan::Turn Next() { return plan_.Next(cluster_.state(), now_ms_); }
  PlannedPost Post() {
    PostPlan::Turn turn = Next();
    EXPECT_TRUE(turn.post.has_value());
    return turn.post.value_or(PlannedPost());
  }
  PostPlan::End Fail(const PlannedPost& post) {
    return plan_.Ended(post, {PostResult::Kind::kFailed, "it answered 500"}, now_ms_);
  }
  void Store(const v1::PostsSettled& settled) {
    EXPECT_EQ(cluster_.Run(DecideSettled(cluster_.state(), {settled}, cluster_.caller())),
              absl::OkStatus());
  }

  TestCluster cluster_;
  int64_t now_ms_ = 5000;
  PostPlan plan_{
      {.backoff = {std::chrono::seconds(1), std::chrono::seconds(8), 3}, .give_up_ms = 60'000}};
};

TEST_F(PostPlanTest, ATargetGetsTheEventsOfAJobInOrderOneAtATime) {
  const std::string job = Submit({"http://a.org/x"});
  ASSERT_EQ(cluster_.Start(job), absl::OkStatus());
  const PlannedPost first = Post();
  EXPECT_EQ(first.event.kind(), v1::JOB_EVENT_KIND_SUBMITTED);
  EXPECT_EQ(first.origin, "http://a.org");
  EXPECT_FALSE(Next().post.has_value());
  const auto end = plan_.Ended(first, kDelivered, now_ms_);
  ASSERT_TRUE(end.settled.has_value());
  EXPECT_EQ(end.settled->through_event(), 1);
  EXPECT_EQ(end.settled->delivered(), 1);
  // Not yet settled in the store, but not posted twice.
  const PlannedPost second = Post();
  EXPECT_EQ(second.event.to(), v1::JOB_STATE_RUNNING);
  Store(*end.settled);
  Store(*plan_.Ended(second, kDelivered, now_ms_).settled);
  EXPECT_FALSE(Next().post.has_value());
  EXPECT_EQ(cluster_.Job(job).notify(0).delivered(), 2);
}

TEST_F(PostPlanTest, EveryTargetOfAJobGetsItsEvents) {
  Submit({"http://a.org/x", "http://b.org/x"});
  const PlannedPost one = Post();
  const PlannedPost two = Post();
  EXPECT_EQ(one.origin, "http://a.org");
  EXPECT_EQ(two.origin, "http://b.org");
  EXPECT_EQ(two.target, 1);
}

TEST_F(PostPlanTest, AHostHasOnePostInProgress) {
  Submit({"http://a.org/x", "http://a.org/y"});
  Submit({"http://a.org/z"});
  const PlannedPost one = Post();
  EXPECT_FALSE(Next().post.has_value());
  plan_.Ended(one, kDelivered, now_ms_);
  // Jobs take turns.
  EXPECT_EQ(Post().url, "http://a.org/z");
}

TEST_F(PostPlanTest, AFailingUrlIsRetriedAfterABackOffThatGrowsToItsBound) {
  const std::string job = Submit({"http://a.org/x"});
  for (const int64_t bound : {1000, 2000, 4000, 8000, 8000}) {
    const PlannedPost post = Post();
    EXPECT_EQ(Fail(post).first_failure, bound == 1000);
    const PostPlan::Turn turn = Next();
    EXPECT_FALSE(turn.post.has_value());
    EXPECT_GE(turn.wait_until_ms, now_ms_ + bound / 2);
    EXPECT_LE(turn.wait_until_ms, now_ms_ + bound);
    now_ms_ = turn.wait_until_ms;
  }
  ASSERT_EQ(cluster_.Start(job), absl::OkStatus());
  plan_.Ended(Post(), kDelivered, now_ms_);
  const PlannedPost next = Post();
  EXPECT_TRUE(Fail(next).first_failure);
  EXPECT_LE(Next().wait_until_ms, now_ms_ + 1000);
}

TEST_F(PostPlanTest, AFailingUrlDelaysNoOther) {
  Submit({"http://a.org/x", "http://b.org/x"});
  Fail(Post());
  EXPECT_EQ(Post().origin, "http://b.org");
}

TEST_F(PostPlanTest, GivingUpSettlesWaitingEventsAndLaterOnesAreStillPosted) {
  const std::string job = Submit({"http://a.org/x"});
  Fail(Post());
  now_ms_ += 40'000;
  ASSERT_EQ(cluster_.Start(job), absl::OkStatus());
  now_ms_ += 20'000;
  const PostPlan::Turn turn = Next();
  ASSERT_EQ(turn.given_up.size(), 1u);
  EXPECT_EQ(turn.given_up[0].through_event(), 1);
  EXPECT_EQ(turn.given_up[0].given_up(), 1);
  EXPECT_EQ(turn.given_up[0].problem(), "it answered 500");
  Store(turn.given_up[0]);
  ASSERT_TRUE(turn.post.has_value());
  EXPECT_EQ(turn.post->event.to(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster_.Job(job).notify(0).problem(), "it answered 500");
}

TEST_F(PostPlanTest, ARefusedPostIsNotRetried) {
  Submit({"http://a.org/x"});
  const auto end = plan_.Ended(Post(), {PostResult::Kind::kRefused, "it answered 302"}, now_ms_);
  ASSERT_TRUE(end.settled.has_value());
  EXPECT_EQ(end.settled->given_up(), 1);
  EXPECT_EQ(end.settled->problem(), "it answered 302");
  EXPECT_FALSE(Next().post.has_value());
}

TEST_F(PostPlanTest, AnotherProcessPostsUnsettledEventsAgain) {
  Submit({"http://a.org/x"});
  const PlannedPost post = Post();
  const auto end = plan_.Ended(post, kDelivered, now_ms_);
  PostPlan restarted{PostPlan::Options()};
  const auto again = restarted.Next(cluster_.state(), 9'000'000).post;
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->event.number(), post.event.number());
  Store(*end.settled);
  PostPlan later{PostPlan::Options()};
  EXPECT_FALSE(later.Next(cluster_.state(), 0).post.has_value());
  // The same if only the write has failed.
  const std::string other = Submit({"http://b.org/x"});
  const auto lost = plan_.Ended(Post(), kDelivered, now_ms_).settled;
  EXPECT_FALSE(Next().post.has_value());
  plan_.NotStored(*lost);
  EXPECT_EQ(Post().event.job(), other);
}

TEST_F(PostPlanTest, ADeadReceiverOfManyJobsCostsOneTryPerBackOff) {
  for (int i = 0; i < 300; ++i) Submit({"http://dead.org/x"});
  Submit({"http://a.org/x"});
  int tries = 0;
  for (int i = 0; i < 20; ++i) {
    const PostPlan::Turn turn = Next();
    if (!turn.post) break;
    if (turn.post->origin == "http://dead.org") {
      ++tries;
      Fail(*turn.post);
    } else {
      Store(*plan_.Ended(*turn.post, kDelivered, now_ms_).settled);
    }
  }
  EXPECT_EQ(tries, 1);
  EXPECT_EQ(cluster_.state().index().unsettled().size(), 300u);
}

TEST(PostBodyTest, ABodyHasTheDocumentedFields) {
  v1::Job job;
  job.set_name("train");
  job.set_owner("ann");
  job.set_next_step(900);
  job.mutable_shape()->set_steps(1000);
  v1::JobEvent event;
  event.set_job("train-7");
  event.set_number(31);
  event.set_time_unix_ms(1'700'000'000'123);
  event.set_kind(v1::JOB_EVENT_KIND_MOVED);
  event.set_to(v1::JOB_STATE_FAILED);
  event.set_text("a \"reason\"\n");
  event.set_author("coordinator");
  event.set_attempt(2);
  event.set_step(-1);
  EXPECT_EQ(PostBody("lab", job, event),
            "{\"id\":\"lab/train-7/31@1700000000123\",\"cluster\":\"lab\",\"job\":\"train-7\","
            "\"name\":\"train\",\"owner\":\"ann\",\"event\":\"failed\","
            "\"reason\":\"a \\\"reason\\\"\\n\",\"author\":\"coordinator\","
            "\"time\":\"2023-11-14T22:13:20.123Z\",\"step\":900,\"steps\":1000,\"attempt\":2}");
  event.set_kind(v1::JOB_EVENT_KIND_RECIPE);
  event.set_step(42);
  event.set_revision(3);
  const std::string body = PostBody("lab", job, event);
  EXPECT_THAT(body, HasSubstr("\"event\":\"recipe_changed\""));
  EXPECT_THAT(body, HasSubstr("\"step\":42,"));
  EXPECT_THAT(body, HasSubstr("\"revision\":3}"));
}

TEST(PostBodyTest, AnAlertsBodyHasTheAlert) {
  v1::JobEvent event;
  event.set_kind(v1::JOB_EVENT_KIND_ALERT);
  v1::JobAlert& alert = *event.mutable_alert();
  alert.set_name("NibbleRankSlow");
  alert.set_severity("warning");
  alert.set_summary("Rank 3 is slow");
  alert.set_starts_unix_ms(1'700'000'000'123);
  v1::Label& label = *alert.add_labels();
  label.set_key("rank");
  label.set_value("3");
  const std::string firing =
      "\"alert\":{\"name\":\"NibbleRankSlow\",\"status\":\"firing\",\"severity\":\"warning\","
      "\"summary\":\"Rank 3 is slow\",\"starts\":\"2023-11-14T22:13:20.123Z\","
      "\"labels\":{\"rank\":\"3\"}}}";
  const std::string body = PostBody("lab", v1::Job(), event);
  EXPECT_THAT(body, HasSubstr("\"event\":\"alert\""));
  EXPECT_THAT(body, HasSubstr(firing));
  alert.set_ends_unix_ms(1'700'000'060'123);
  const std::string resolved = PostBody("lab", v1::Job(), event);
  EXPECT_THAT(resolved, HasSubstr("\"status\":\"resolved\""));
  EXPECT_THAT(resolved, HasSubstr("\"ends\":\"2023-11-14T22:14:20.123Z\""));
}

// RFC 4231, test case 2.
TEST(PostBodyTest, ASignatureIsTheHmacOfTheBody) {
  EXPECT_EQ(PostSignature("Jefe", "what do ya want for nothing?"),
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

}  // namespace
}  // namespace nibble
