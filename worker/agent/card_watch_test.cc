#include "worker/agent/card_watch.h"

#include <cstdlib>
#include <future>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/cards.h"
#include "worker/metrics/worker_table.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// The shared library of fake_nvml.cc, which is loaded as the driver's.
std::string FakeNvml() {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"),
                      "/worker/agent/libfake_nvml.so");
}

// By name of the metric, and label if there is one: "nibble_card_clock_hertz sm".
std::map<std::string, double> Sampled(const std::string& card) {
  const auto nvml = Nvml::Open(FakeNvml());
  EXPECT_EQ(nvml.status(), absl::OkStatus());
  if (!nvml.ok()) return {};
  const std::vector<CardFigures> cards = SampleCards(**nvml, {card});
  EXPECT_EQ(cards.size(), 1u);
  EXPECT_EQ(cards[0].card, card);
  std::map<std::string, double> figures;
  for (const CardFigure& figure : cards[0].figures) {
    figures[absl::StrCat(figure.row->name, figure.label.empty() ? "" : " ", figure.label)] =
        figure.value;
  }
  return figures;
}

TEST(CardWatchTest, FiguresOfACardAreInBaseUnits) {
  EXPECT_THAT(
      Sampled("0"),
      UnorderedElementsAre(
          Pair("nibble_card_answers", 1), Pair("nibble_card_info NVIDIA Test Card", 1),
          Pair("nibble_card_memory_bytes", 80e9), Pair("nibble_card_memory_used_bytes", 20e9),
          Pair("nibble_card_busy_ratio", 0.75), Pair("nibble_card_memory_busy_ratio", 0.4),
          Pair("nibble_card_power_watts", 650), Pair("nibble_card_power_limit_watts", 700),
          Pair("nibble_card_energy_joules_total", 5000),
          Pair("nibble_card_temperature_celsius", 61), Pair("nibble_card_clock_hertz sm", 1.5e9),
          Pair("nibble_card_clock_hertz memory", 2.6e9),
          Pair("nibble_card_clock_limit_hertz sm", 1.98e9),
          Pair("nibble_card_clock_limit_hertz memory", 2.619e9),
          Pair("nibble_card_slowed power_limit", 1), Pair("nibble_card_slowed heat", 1),
          Pair("nibble_card_slowed power_brake", 0),
          Pair("nibble_card_errors_total memory_corrected", 5),
          Pair("nibble_card_errors_total memory_uncorrected", 1),
          Pair("nibble_card_errors_total pcie_replay", 2),
          Pair("nibble_card_errors_total nvlink_replay", 12),
          Pair("nibble_card_errors_total nvlink_recovery", 1),
          Pair("nibble_card_errors_total nvlink_crc", 2), Pair("nibble_card_nvlinks", 12),
          Pair("nibble_card_nvlink_bytes_total sent", 1000 * 1024),
          Pair("nibble_card_nvlink_bytes_total received", 2000 * 1024),
          Pair("nibble_card_pcie_bytes_per_second sent", 300e3),
          Pair("nibble_card_pcie_bytes_per_second received", 400e3)));
}

TEST(CardWatchTest, WhatACardDoesNotSupportIsAbsent) {
  const std::map<std::string, double> figures = Sampled("1");
  EXPECT_EQ(figures.at("nibble_card_nvlinks"), 0);
  EXPECT_EQ(figures.at("nibble_card_power_watts"), 650);
  EXPECT_FALSE(figures.contains("nibble_card_errors_total memory_corrected"));
  EXPECT_FALSE(figures.contains("nibble_card_errors_total nvlink_replay"));
  EXPECT_FALSE(figures.contains("nibble_card_nvlink_bytes_total sent"));
}

TEST(CardWatchTest, OfALostCardOnlyTheLossIsKnown) {
  EXPECT_THAT(Sampled("GPU-lost"), ElementsAre(Pair("nibble_card_answers", 0)));
  EXPECT_THAT(Sampled("7"), ElementsAre(Pair("nibble_card_answers", 0)));
}

TEST(CardWatchTest, PublishesFromItsOwnThread) {
  std::promise<std::vector<CardFigures>> first;
  bool published = false;
  const auto watch = CardWatch::Start({.cards = {"0", "1"},
                                       .library = FakeNvml(),
                                       .publish =
                                           [&](std::vector<CardFigures> figures) {
                                             if (!std::exchange(published, true)) {
                                               first.set_value(std::move(figures));
                                             }
                                           },
                                       .log = nullptr});
  ASSERT_NE(watch, nullptr);
  EXPECT_EQ(first.get_future().get().size(), 2u);
}

TEST(CardWatchTest, WithoutADriverOneLineSaysSo) {
  std::vector<std::string> lines;
  const auto log = [&](const std::string& line) { lines.push_back(line); };
  EXPECT_EQ(CardWatch::Start({.cards = {"0"}, .library = "/nonexistent/nvml.so", .log = log}),
            nullptr);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("no metrics of cards: no NVIDIA driver")));
  // A worker without cards has nothing to report on.
  EXPECT_EQ(CardWatch::Start({.library = "/nonexistent/nvml.so", .log = log}), nullptr);
  EXPECT_EQ(lines.size(), 1u);
}

TEST(CardWatchTest, CardsOfAMachineAreFoundThroughTheSameLibrary) {
  const auto all = FindCards(nullptr, FakeNvml());
  ASSERT_EQ(all.status(), absl::OkStatus());
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ(all->at(1).id, "1");
  EXPECT_EQ(all->at(1).name, "NVIDIA Test Card");
  EXPECT_EQ(all->at(1).memory_bytes, 80'000'000'000);
  EXPECT_EQ(all->at(1).capability, 90);
  const auto unknown = FindCards("0,GPU-1234", FakeNvml());
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()),
              HasSubstr("'GPU-1234' is no card of this machine: Not Found"));
}

}  // namespace
}  // namespace nibble
