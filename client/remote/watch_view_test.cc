#include "client/remote/watch_view.h"

#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/remote/job_text.h"
#include "common/text/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNow = 1'000'000'000'000;

v1::StepSample Sample(int64_t step, double loss) {
  v1::StepSample sample;
  sample.set_step(step);
  sample.set_loss(loss);
  sample.set_gradient_norm(0.5);
  sample.set_learning_rate(1e-3);
  sample.set_tokens_per_second(12'345);
  sample.set_step_seconds(0.5);
  sample.set_data_seconds(0.01);
  sample.set_forward_seconds(0.15);
  sample.set_backward_seconds(0.25);
  sample.set_reduce_seconds(0.05);
  sample.set_update_seconds(0.03);
  sample.set_revision(2);
  sample.set_updated(true);
  return sample;
}

v1::RecipeRevision Revision(int64_t number, int64_t first_step, const std::string& value,
                            const std::string& reason) {
  v1::RecipeRevision revision;
  revision.set_number(number);
  revision.set_first_step(first_step);
  revision.set_reason(reason);
  revision.mutable_recipe()->set_preset("nvfp4");
  if (value.empty()) return revision;
  v1::FieldSetting& setting = *revision.mutable_recipe()->add_set();
  setting.set_field("fprop");
  setting.set_value(value);
  return revision;
}

// A falling loss with a small wave on it.
double LossAt(int64_t step) {
  const auto at = static_cast<double>(step);
  return 2 + 4 * std::exp(-at / 60) + 0.05 * std::sin(at);
}

class WatchViewTest : public testing::Test {
 protected:
  WatchViewTest() {
    job_.set_id("train-7");
    job_.set_owner("ann");
    job_.set_state(v1::JOB_STATE_RUNNING);
    job_.set_goal(v1::JOB_GOAL_RUN);
    job_.set_state_since_unix_ms(kNow - 125'000);
    job_.mutable_scheduling()->set_queue("default");
    job_.mutable_shape()->set_steps(1000);
    job_.mutable_shape()->set_tokens_per_step(65'536);
    job_.set_next_step(100);
    job_.set_revision_in_force(2);
    v1::Attempt& attempt = *job_.mutable_attempt();
    attempt.set_number(1);
    attempt.set_world(2);
    v1::Placement& placement = *attempt.add_placements();
    placement.set_worker("w1");
    placement.add_slots(0);
    placement.add_slots(1);
    placement.set_phase(v1::RANK_PHASE_RUNNING);
    state_.SetJob(job_);
  }

  // Everything that a view can show: 400 steps of 1000.
  void FillState() {
    job_.set_next_step(400);
    state_.SetJob(job_);
    for (int i = 0; i < 400; ++i) state_.AddSample(Sample(i, LossAt(i)));
    state_.SetRevisions({Revision(1, 0, "", ""), Revision(2, 240, "bf16", ""),
                         Revision(3, 800, "mxfp8", "to recover")},
                        {{1, {4, 4, 4}}, {2, {16, 4, 4}}, {3, {8, 4, 4}}});
    v1::PrecisionSummary precision;
    precision.set_step(390);
    precision.set_operands(48);
    precision.set_mean_relative_error(0.0934);
    precision.set_most_underflow(0.125);
    precision.set_most_clipped(0.0004);
    for (int i = 0; i < 5; ++i) {
      v1::OperandPrecision& worst = *precision.add_worst();
      worst.set_layer(absl::StrCat("blocks.", i + 3, ".mlp.up"));
      worst.set_operand("wgrad.gradient");
      worst.set_format("nvfp4");
      worst.set_relative_error(0.14 - 0.01 * i);
      worst.set_underflow(0.125 / (i + 1));
      worst.set_clipped(0.0004 * i);
    }
    state_.SetPrecision(precision);
    std::vector<v1::RankPace> ranks(2);
    for (int rank = 0; rank < 2; ++rank) {
      ranks[rank].set_rank(rank);
      ranks[rank].set_worker("w1");
      ranks[rank].set_work_seconds(0.4 + 0.08 * rank);
    }
    state_.SetRanks(ranks);
    AddEvent(1, v1::JOB_EVENT_KIND_CHECKPOINT, "committed: 2 shards, 1.5 GB", 200);
    AddEvent(2, v1::JOB_EVENT_KIND_RECIPE, "revision 2 in effect from step 240", 240);
    AddEvent(3, v1::JOB_EVENT_KIND_ATTEMPT, "attempt 2 launched with 2 ranks on 1 worker", 300, 2);
  }

  void AddEvent(int64_t number, v1::JobEventKind kind, const std::string& text, int64_t step,
                int64_t attempt = 1) {
    v1::JobEvent event;
    event.set_number(number);
    event.set_time_unix_ms(kNow);
    event.set_kind(kind);
    event.set_text(text);
    event.set_step(step);
    event.set_attempt(attempt);
    event.set_author("coordinator");
    EXPECT_TRUE(state_.AddEvent(event));
    EXPECT_FALSE(state_.AddEvent(event));
  }

  std::string Render(const ViewStyle& style, const std::string& note = "") {
    std::string text = "\n";
    for (const StyledLine& line : RenderWatch(state_, options_, style, kNow, note)) {
      text += line.Text(false) + "\n";
    }
    return text;
  }
  std::string Render(int columns, int rows, const std::string& note = "") {
    return Render({.columns = columns, .rows = rows}, note);
  }

  v1::Job job_;
  WatchState state_;
  WatchOptions options_;
};

TEST_F(WatchViewTest, AnOrdinaryTerminalShowsEverythingInBrief) {
  FillState();
  EXPECT_EQ(Render(80, 24),
            R"(
train-7  running  2m05s  ann, queue default
[===============>                      ]  400/1000  40%  12.3k tok/s  eta 5m00s
loss      2.0043  gradient 0.5  lr 0.001
         │  ⠈⠑⢤⡀                                                               
       4 ┤     ⠉⠳⢤⡀                                                            
         │        ⠈⠓⠢⢤⣀⡀                                                       
         │             ⠉⠙⠒⠲⠤⢤⣀⣀⣀                                               
       2 ┤                      ⠉⠉⠉⠙⠒⠒⠒⠒⠒⠒⠔⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⢤⢤⢤⢤⣤⣤⡤⡠⣠⣤⣤⣤⣄⢄⣄⣄⣄⡤
         └┬────────────────┬────────────────┬────────────────┬────────────────┬
step      0               100              200              300
timeline  ░ r1 nvfp4 ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░│▓ r2 fprop=bf16 ▓▓▓▓▓▓▓▓▓▓▓
marks                                       c                R                 
recipe    r2  nvfp4, fprop=bf16  (fprop 16, dgrad 4, wgrad 4 bits)
          r3 from step 800  nvfp4, fprop=mxfp8: to recover
step      500 ms  ││forward 30%······│backward 50%·················│comm·│opt││
ranks     ▇█ ! slowest: rank 1 on w1, 480 ms of work, median 400 ms (+20%)
precision step 390: mean error 9.3%, max underflow 12.5%, max clipped 0.04%
  blocks.3.mlp.up wgrad.gradient nvfp4  err  14.0%  under  12.5%  clip     0%
  blocks.4.mlp.up wgrad.gradient nvfp4  err  13.0%  under   6.2%  clip  0.04%
  blocks.5.mlp.up wgrad.gradient nvfp4  err  12.0%  under   4.2%  clip  0.08%
attempt   1  2 ranks
01:46:40  revision 2 in effect from step 240 (coordinator)
01:46:40  attempt 2 launched with 2 ranks on 1 worker (coordinator)
)");
}

// Names and figures share a line no longer, and nothing is left out.
TEST_F(WatchViewTest, ANarrowTerminalKeepsEveryFigure) {
  FillState();
  EXPECT_EQ(Render(40, 40), R"(
train-7  running  2m05s
  400/1000  40%  12.3k tok/s  eta 5m00s
loss      2.0043  gradient 0.5
         │ ⢳                           
         │ ⠘⡄                          
         │  ⢳                          
       4 ┤  ⠈⣇                         
         │   ⠸⡄                        
         │    ⠹⣄                       
       3 ┤     ⠘⢦                      
         │      ⠈⠳⣄                    
         │        ⠈⠙⠶⢤⣀                
       2 ┤            ⠈⠉⠙⠓⠒⠒⠶⠶⠦⠤⠤⠤⠤⠤⠤⠤⠤
         └┬─────────────┬─────────────┬
step      0            200
timeline  ░ r1 nvfp4 ░░░░░░│▓ r2 ▓▓▓▓▓▓
marks                   c      R       
recipe    r2  nvfp4, fprop=bf16  (fprop
          16, dgrad 4, wgrad 4 bits)
          r3 from step 800  nvfp4,
          fprop=mxfp8: to recover
step      500 ms  bwd 50%  fwd 30%
          comm 10%  opt 6%  other 2%
          data 2%
ranks     ▇█ ! rank 1 (+20%)
precision    err  under   clip
  overall   9.3%  12.5%  0.04%
  blocks.3.mlp.up wgrad.gradient
           14.0%  12.5%     0%
  blocks.4.mlp.up wgrad.gradient
           13.0%   6.2%  0.04%
  blocks.5.mlp.up wgrad.gradient
           12.0%   4.2%  0.08%
attempt   1  2 ranks
          w1: ranks 0-1 running
01:46:40  attempt 2 launched with 2
          ranks on 1 worker
          (coordinator)
)");
  // An operand has its figures or is not shown.
  for (int rows = 12; rows < 40; ++rows) {
    const std::string text = Render(40, rows);
    for (const int block : {3, 4, 5}) {
      const std::string name = absl::StrCat("\n  blocks.", block, ".mlp.up wgrad.gradient\n");
      if (!absl::StrContains(text, name)) continue;
      EXPECT_THAT(text, HasSubstr(absl::StrCat(name, "           ", 17 - block, ".0%"))) << rows;
    }
  }
}

TEST_F(WatchViewTest, ALargeTerminalHasALargePlotAndAllEvents) {
  FillState();
  EXPECT_EQ(Render(120, 40),
            R"(
train-7  running  2m05s  ann, queue default
[===============>                      ]  400/1000  40%  12.3k tok/s  eta 5m00s
loss      2.0043  gradient 0.5  lr 0.001
         │    ⠈⢣                                                                                                       
         │     ⠈⢢                                                                                                      
         │       ⢣                                                                                                     
     4.5 ┤       ⠈⢆                                                                                                    
         │         ⢱                                                                                                   
         │          ⠱⡀                                                                                                 
     4.0 ┤           ⠑⢄                                                                                                
         │            ⠈⠢⡀                                                                                              
         │              ⠱⢄                                                                                             
     3.5 ┤                ⠣⣄                                                                                           
         │                 ⠈⠲⢄                                                                                         
         │                   ⠈⠒⢄                                                                                       
     3.0 ┤                      ⠙⠦⢄                                                                                    
         │                         ⠑⠢⣀⡀                                                                                
         │                            ⠙⠒⠤⢄                                                                             
     2.5 ┤                                ⠉⠑⠒⠤⢤⣀⡀                                                                      
         │                                      ⠉⠉⠒⠲⠤⢤⣀⣀⣀                                                              
         │                                             ⠈⠁⠉⠉⠚⠓⠒⠢⠲⠤⠤⠤⣄⡤⣀⣀⣀⣀⣀⡀⣀ ⡀                                         
     2.0 ┤                                                              ⠈ ⠉⠈⠉⠈⠉⠉⠉⠉⠉⠊⠑⠋⠓⠙⠒⠑⠊⠒⠚⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠖⠢⠒⠖⠒
         └┬────────────┬─────────────┬────────────┬─────────────┬─────────────┬────────────┬─────────────┬────────────┬
step      0           50            100          150           200           250          300           350
timeline  ░ r1 nvfp4 ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░│▓ r2 fprop=bf16 ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
marks                                                           c                          R                           
recipe    r2  nvfp4, fprop=bf16  (fprop 16, dgrad 4, wgrad 4 bits)
          r3 from step 800  nvfp4, fprop=mxfp8: to recover
step      500 ms  │d│forward 30%············│backward 50%···························│comm···│opt│.│
ranks     ▇█ ! slowest: rank 1 on w1, 480 ms of work, median 400 ms (+20%)
precision step 390: mean error 9.3%, max underflow 12.5%, max clipped 0.04%, 48 operands
  blocks.3.mlp.up wgrad.gradient nvfp4  err  14.0%  under  12.5%  clip     0%
  blocks.4.mlp.up wgrad.gradient nvfp4  err  13.0%  under   6.2%  clip  0.04%
  blocks.5.mlp.up wgrad.gradient nvfp4  err  12.0%  under   4.2%  clip  0.08%
attempt   1  2 ranks
          w1: ranks 0-1 running
01:46:40  checkpoint of step 200 committed: 2 shards, 1.5 GB (coordinator)
01:46:40  revision 2 in effect from step 240 (coordinator)
01:46:40  attempt 2 launched with 2 ranks on 1 worker (coordinator)
)");
}

TEST_F(WatchViewTest, WithoutUtf8EverythingIsAscii) {
  FillState();
  const std::string text = Render({.columns = 80, .rows = 24, .utf8 = false});
  EXPECT_EQ(text,
            R"(
train-7  running  2m05s  ann, queue default
[===============>                      ]  400/1000  40%  12.3k tok/s  eta 5m00s
loss      2.0043  gradient 0.5  lr 0.001
         |  ***                                                                
       4 +    *****                                                            
         |        ******                                                       
         |             **************                                          
       2 +                          *******************************************
         ++----------------+----------------+----------------+----------------+
step      0               100              200              300
timeline  . r1 nvfp4 ..............................|= r2 fprop=bf16 ===========
marks                                       c                R                 
recipe    r2  nvfp4, fprop=bf16  (fprop 16, dgrad 4, wgrad 4 bits)
          r3 from step 800  nvfp4, fprop=mxfp8: to recover
step      500 ms  ||forward 30%......|backward 50%.................|comm.|opt||
ranks     79 ! slowest: rank 1 on w1, 480 ms of work, median 400 ms (+20%)
precision step 390: mean error 9.3%, max underflow 12.5%, max clipped 0.04%
  blocks.3.mlp.up wgrad.gradient nvfp4  err  14.0%  under  12.5%  clip     0%
  blocks.4.mlp.up wgrad.gradient nvfp4  err  13.0%  under   6.2%  clip  0.04%
  blocks.5.mlp.up wgrad.gradient nvfp4  err  12.0%  under   4.2%  clip  0.08%
attempt   1  2 ranks
01:46:40  revision 2 in effect from step 240 (coordinator)
01:46:40  attempt 2 launched with 2 ranks on 1 worker (coordinator)
)");
}

TEST_F(WatchViewTest, AShortOrNarrowTerminalHasASmallCurveInThePlaceOfThePlot) {
  FillState();
  EXPECT_EQ(Render(100, 8),
            R"(
train-7  running  2m05s  ann, queue default
[===============>                      ]  400/1000  40%  12.3k tok/s  eta 5m00s
loss      2.0043  ▇▆▅▅▄▄▃▃▃▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁  gradient 0.5  lr 0.001
recipe    r2  nvfp4, fprop=bf16  (fprop 16, dgrad 4, wgrad 4 bits)
          r3 from step 800  nvfp4, fprop=mxfp8: to recover
step      500 ms  │d│forward 30%············│backward 50%···························│comm···│opt│.│
attempt   1  2 ranks
)");
  EXPECT_EQ(Render(34, 12),
            R"(
train-7  running  2m05s
400/1000  40%  eta 5m00s
loss      2.0043  gradient 0.5
recipe    r2  nvfp4, fprop=bf16 
          (fprop 16, dgrad 4,
          wgrad 4 bits)
          r3 from step 800 
          nvfp4, fprop=mxfp8: to
          recover
step      500 ms  bwd 50%
attempt   1  2 ranks
)");
}

TEST_F(WatchViewTest, TheReferenceTheScaleAndTheAxisCanBeSwitched) {
  FillState();
  state_.SetReference("base-1");
  for (int i = 0; i < 300; ++i) state_.AddReferenceSample(Sample(i, LossAt(i) - 0.5));
  for (const char key : {'l', 's', 't', 'w'}) EXPECT_TRUE(options_.Switch(key));
  EXPECT_EQ(Render(80, 24),
            R"(
train-7  running  2m05s  ann, queue default
[===============>                      ]  400/1000  40%  12.3k tok/s  eta 5m00s
loss      2.0043  +32.66% from base-1 at step 299  gradient 0.5  lr 0.001
         │  ⠱⠙⢆                                                                
       3 ┤    ⢧⠙⢦⣀                                                             
         │      ⢦⠈⠓⠢⢤⣀⣀                                                        
       2 ┤        ⠳ ⣀ ⠈⠉⠉⠙⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒                                         
         │          ⠈ ⠓ ⠦ ⠤ ⣀ ⣀                                                
         └┬────────────────────┬────────────────────┬────────────────────┬─────
tokens    0                  20.0M                40.0M                60.0M
timeline  ░ r1 nvfp4 ░░░░░│▓ r2 fprop=bf16 ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│▒ r3 ▒▒▒▒▒▒▒▒
marks                  c      R                                                
recipe    r2  nvfp4, fprop=bf16  (fprop 16, dgrad 4, wgrad 4 bits)
          r3 from step 800  nvfp4, fprop=mxfp8: to recover
step      500 ms  ││forward 30%······│backward 50%·················│comm·│opt││
ranks     ▇█ ! slowest: rank 1 on w1, 480 ms of work, median 400 ms (+20%)
precision step 390: mean error 9.3%, max underflow 12.5%, max clipped 0.04%
  blocks.3.mlp.up wgrad.gradient nvfp4  err  14.0%  under  12.5%  clip     0%
  blocks.4.mlp.up wgrad.gradient nvfp4  err  13.0%  under   6.2%  clip  0.04%
  blocks.5.mlp.up wgrad.gradient nvfp4  err  12.0%  under   4.2%  clip  0.08%
attempt   1  2 ranks
01:46:40  revision 2 in effect from step 240 (coordinator)
01:46:40  attempt 2 launched with 2 ranks on 1 worker (coordinator)
)");
  EXPECT_TRUE(options_.Switch('r'));
  EXPECT_THAT(Render(80, 24), Not(HasSubstr("base-1")));
  EXPECT_FALSE(options_.Switch('k'));
}

TEST_F(WatchViewTest, HelpNamesEveryKey) {
  FillState();
  EXPECT_TRUE(options_.Switch('?'));
  const std::string help = Render(80, 24);
  for (const char key : {'q', 'r', 'l', 's', 't', 'w', '?'}) {
    EXPECT_THAT(help, HasSubstr(absl::StrCat("\n  ", std::string(1, key), "  ")));
  }
}

TEST_F(WatchViewTest, AJobWithoutItsFirstStepHasNoPlot) {
  state_.SetRevisions({Revision(1, 0, "", ""), Revision(2, 0, "bf16", "")}, {});
  EXPECT_EQ(Render(80, 24),
            "\ntrain-7  running  2m05s  ann, queue default\n"
            "[===>                                  ]  100/1000  10%\n"
            "loss      no step yet\n"
            "recipe    r2  nvfp4, fprop=bf16\n"
            "attempt   1  2 ranks\n"
            "          w1: ranks 0-1 running\n");
}

TEST_F(WatchViewTest, NoLineIsWiderThanTheTerminalOfAnySize) {
  FillState();
  state_.SetReference("base-1");
  for (int i = 0; i < 300; ++i) state_.AddReferenceSample(Sample(i, LossAt(i) - 0.5));
  for (int i = 4; i <= 20; ++i) {
    AddEvent(i, v1::JOB_EVENT_KIND_TROUBLE, std::string(300, 'x'), -1);
  }
  for (int columns = 1; columns <= 210; columns += columns < 60 ? 1 : 7) {
    for (const int rows : {1, 2, 3, 5, 8, 13, 16, 24, 50}) {
      for (const bool utf8 : {false, true}) {
        const ViewStyle style = {
            .columns = columns, .rows = rows, .utf8 = utf8, .colours = true, .keys = true};
        const auto lines = RenderWatch(state_, options_, style, kNow, "the coordinator is away");
        EXPECT_LE(lines.size(), static_cast<size_t>(std::max(2, rows - 1)));
        EXPECT_TRUE(absl::StartsWith(lines.back().Text(false), columns > 12 ? "the coordin" : ""));
        for (const StyledLine& line : lines) {
          EXPECT_LE(line.width(), static_cast<size_t>(std::max(1, columns - 1)))
              << line.Text(false);
        }
      }
    }
  }
}

TEST_F(WatchViewTest, ALossThatIsNotANumberIsMarkedAndLeavesThePlotAlone) {
  for (int i = 0; i < 100; ++i) state_.AddSample(Sample(i, 5 - 0.01 * i));
  state_.AddSample(Sample(100, std::numeric_limits<double>::quiet_NaN()));
  v1::StepSample skipped = Sample(101, 4);
  skipped.set_updated(false);
  state_.AddSample(skipped);
  const std::string text = Render(110, 30);
  EXPECT_THAT(text, HasSubstr("\nmarks "));
  EXPECT_THAT(text, HasSubstr("!g\n"));
  EXPECT_THAT(text, HasSubstr("(no update: a guard skipped it)"));
  state_.AddSample(Sample(102, std::numeric_limits<double>::infinity()));
  EXPECT_THAT(Render(110, 30), HasSubstr("loss      inf"));
}

TEST_F(WatchViewTest, FiguresAreAbbreviatedBeforeTheyAreCut) {
  FillState();
  v1::PrecisionSummary precision = *state_.precision();
  precision.mutable_worst(1)->set_layer("blocks.12.mamba.in_proj");
  state_.SetPrecision(precision);
  const std::string narrow = Render(80, 40);
  EXPECT_THAT(narrow, HasSubstr("\n  blocks.12.mamba.in_proj wgrad.gradient  err  13.0%  under   "
                                "6.2%  clip  0.04%\n"));
  const std::string narrower = Render(62, 40);
  EXPECT_THAT(narrower, HasSubstr("\n  blocks.12.mamba.in_proj wgrad.gradient\n"
                                  "           13.0%   6.2%  0.04%\n"));
  EXPECT_THAT(narrower, HasSubstr(" ! slowest: rank 1 on w1 (+20%)\n"));
  EXPECT_THAT(Render(34, 40), HasSubstr(" ! rank 1 (+20%)\n"));
}

TEST_F(WatchViewTest, ASlowRankIsNamedWithItsWorker) {
  FillState();
  EXPECT_THAT(Render(100, 30),
              HasSubstr("! slowest: rank 1 on w1, 480 ms of work, median 400 ms (+20%)"));
}

TEST_F(WatchViewTest, TheReasonOfAJobThatDoesNotRunIsShown) {
  job_.set_state(v1::JOB_STATE_QUEUED);
  job_.set_state_reason("needs 8 slots; 6 free on 2 workers");
  job_.clear_attempt();
  state_.SetJob(job_);
  EXPECT_THAT(Render(80, 24), HasSubstr("\nwhy       needs 8 slots; 6 free on 2 workers"));
  EXPECT_THAT(Render(80, 24), HasSubstr("no step yet"));
  EXPECT_THAT(Render(80, 24), Not(HasSubstr("eta")));
}

TEST_F(WatchViewTest, TheReasonOfAFailureIsCompleteOnANarrowScreen) {
  const std::string cause =
      "rank 3 on w7 ended with exit code 1: data.train[0].path: there is no corpus/books.tokens; "
      "3 failures in a row without a new checkpoint";
  job_.set_state(v1::JOB_STATE_FAILED);
  job_.set_state_reason(cause);
  job_.clear_attempt();
  FillState();
  std::string seen;
  for (const StyledLine& line :
       RenderWatch(state_, options_, {.columns = 41, .rows = 40}, kNow, "")) {
    const std::string text = line.Text(false);
    EXPECT_LE(WidthOf(text), 40u);
    absl::StrAppend(&seen, text.size() > 10 ? text.substr(10) : "", " ");
  }
  EXPECT_THAT(seen, HasSubstr(cause));
  EXPECT_THAT(JobTable({job_}, kNow, true), HasSubstr(cause));
}

TEST_F(WatchViewTest, SilentAndFlaggedWorkersAreMarked) {
  v1::Worker worker;
  worker.mutable_identity()->set_name("w1");
  worker.set_present(true);
  worker.set_last_heard_ms(8000);
  worker.set_mode(v1::WORKER_MODE_DRAINING);
  worker.add_flags("ended two attempts");
  state_.SetWorkers({worker});
  EXPECT_THAT(Render(120, 24),
              HasSubstr("w1: ranks 0-1 running  silent for 8s  draining  ! ended two attempts"));
}

TEST_F(WatchViewTest, ASampleLineHasStepLossSpeedAndRecipe) {
  state_.AddSample(Sample(99, 4.25));
  EXPECT_EQ(SampleLine(state_),
            "step 100/1000 (10%)  loss 4.2500  12.3k tok/s  eta 7m30s  recipe r2");
  state_.SetReference("base-1");
  state_.AddReferenceSample(Sample(99, 4));
  EXPECT_THAT(SampleLine(state_), HasSubstr("recipe r2  +6.25% from base-1"));
}

}  // namespace
}  // namespace nibble
