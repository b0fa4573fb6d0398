#include "worker/agent/card_watch.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/metrics/worker_table.h"

namespace nibble {
namespace {

// Constants of NVML's interface.
constexpr int kTemperatureOfChip = 0;
constexpr int kSmClock = 1, kMemoryClock = 2;
constexpr int kCorrected = 0, kUncorrected = 1, kSinceDriverStart = 0;
constexpr unsigned kMostLinks = 18;
constexpr int kLinkReplay = 0, kLinkRecovery = 1, kLinkCrcFlit = 2, kLinkCrcData = 3;
constexpr unsigned kLinkSentField = 138, kLinkReceivedField = 139, kAllLinks = 0xffffffff;
constexpr int kUnsignedInt = 1;
constexpr int kPcieSent = 0, kPcieReceived = 1;
constexpr NvmlCount kPowerLimit = 0x4;
constexpr NvmlCount kHeat = 0x20 | 0x40;  // the driver's slowdown and the hardware's
constexpr NvmlCount kPowerBrake = 0x80;

// Reads figures of one card, and keeps those that the driver returns.
class CardReader {
 public:
  CardReader(const NvmlFunctions& nvml, NvmlDevice device, std::vector<CardFigure>& figures)
      : nvml_(nvml), device_(device), figures_(figures) {}

  void ReadAll() {
    ReadLoad();
    ReadPower();
    ReadClocks();
    ReadErrors();
    ReadLinks();
    ReadPcie();
  }

 private:
  const WorkerTable& rows() const { return WorkerRows(); }
  void Add(const MetricSpec& row, double value, std::string label = "") {
    figures_.push_back({&row, std::move(label), value});
  }
  // Adds what a function of this form returns, times `scale`.
  template <class Value>
  void AddOf(int (*function)(NvmlDevice, Value*), const MetricSpec& row, double scale,
             std::string label = "") {
    Value value = 0;
    if (function == nullptr || function(device_, &value) != 0) return;
    Add(row, static_cast<double>(value) * scale, std::move(label));
  }
  template <class Value>
  void AddOf(int (*function)(NvmlDevice, int, Value*), int argument, const MetricSpec& row,
             double scale, std::string label = "") {
    Value value = 0;
    if (function == nullptr || function(device_, argument, &value) != 0) return;
    Add(row, static_cast<double>(value) * scale, std::move(label));
  }

  void ReadLoad() {
    NvmlMemory memory = {};
    if (nvml_.GetMemory(device_, &memory) == 0) {
      Add(rows().card_memory, static_cast<double>(memory.total));
      Add(rows().card_memory_used, static_cast<double>(memory.used));
    }
    NvmlUtilization busy = {};
    if (nvml_.GetUtilization == nullptr || nvml_.GetUtilization(device_, &busy) != 0) return;
    Add(rows().card_busy, busy.gpu / 100.0);
    Add(rows().card_memory_busy, busy.memory / 100.0);
  }

  void ReadPower() {
    AddOf(nvml_.GetPower, rows().card_power, 1e-3);
    AddOf(nvml_.GetPowerLimit, rows().card_power_limit, 1e-3);
    AddOf(nvml_.GetEnergy, rows().card_energy, 1e-3);
    AddOf(nvml_.GetTemperature, kTemperatureOfChip, rows().card_temperature, 1);
  }

  void ReadClocks() {
    for (const auto& [clock, name] :
         {std::pair{kSmClock, "sm"}, std::pair{kMemoryClock, "memory"}}) {
      AddOf(nvml_.GetClock, clock, rows().card_clock, 1e6, name);
      AddOf(nvml_.GetMaxClock, clock, rows().card_clock_limit, 1e6, name);
    }
    NvmlCount reasons = 0;
    if (nvml_.GetSlowdowns == nullptr || nvml_.GetSlowdowns(device_, &reasons) != 0) return;
    for (const auto& [mask, reason] :
         {std::pair{kPowerLimit, "power_limit"}, std::pair{kHeat, "heat"},
          std::pair{kPowerBrake, "power_brake"}}) {
      Add(rows().card_slowed, (reasons & mask) != 0 ? 1 : 0, reason);
    }
  }

  void ReadErrors() {
    for (const auto& [kind, name] : {std::pair{kCorrected, "memory_corrected"},
                                     std::pair{kUncorrected, "memory_uncorrected"}}) {
      NvmlCount errors = 0;
      if (nvml_.GetEccErrors == nullptr ||
          nvml_.GetEccErrors(device_, kind, kSinceDriverStart, &errors) != 0) {
        continue;
      }
      Add(rows().card_errors, static_cast<double>(errors), name);
    }
    AddOf(nvml_.GetPcieReplays, rows().card_errors, 1, "pcie_replay");
  }

  // Errors of all active links; none for cards without NVLink.
  void ReadLinks() {
    if (nvml_.GetLinkState == nullptr) return;
    std::vector<unsigned> active;
    for (unsigned link = 0; link < kMostLinks; ++link) {
      int is_active = 0;
      if (nvml_.GetLinkState(device_, link, &is_active) == 0 && is_active != 0) {
        active.push_back(link);
      }
    }
    Add(rows().card_links, static_cast<double>(active.size()));
    if (active.empty()) return;
    AddLinkErrors(active, {kLinkReplay}, "nvlink_replay");
    AddLinkErrors(active, {kLinkRecovery}, "nvlink_recovery");
    AddLinkErrors(active, {kLinkCrcFlit, kLinkCrcData}, "nvlink_crc");
    AddLinkBytes(kLinkSentField, "sent");
    AddLinkBytes(kLinkReceivedField, "received");
  }

  void AddLinkErrors(const std::vector<unsigned>& links, const std::vector<int>& counters,
                     const std::string& kind) {
    double sum = 0;
    bool known = false;
    for (const unsigned link : links) {
      for (const int counter : counters) {
        NvmlCount errors = 0;
        if (nvml_.GetLinkErrors == nullptr ||
            nvml_.GetLinkErrors(device_, link, counter, &errors) != 0) {
          continue;
        }
        sum += static_cast<double>(errors);
        known = true;
      }
    }
    if (known) Add(rows().card_errors, sum, kind);
  }

  void AddLinkBytes(unsigned field, const std::string& direction) {
    NvmlFieldValue value = {};
    value.field = field;
    value.scope = kAllLinks;
    if (nvml_.GetFields == nullptr || nvml_.GetFields(device_, 1, &value) != 0) return;
    if (value.code != 0) return;
    const NvmlCount kib = value.type == kUnsignedInt ? value.value.narrow : value.value.wide;
    Add(rows().card_link_bytes, static_cast<double>(kib) * 1024, direction);
  }

  void ReadPcie() {
    AddOf(nvml_.GetPcieTraffic, kPcieSent, rows().card_pcie, 1e3, "sent");
    AddOf(nvml_.GetPcieTraffic, kPcieReceived, rows().card_pcie, 1e3, "received");
  }

  const NvmlFunctions& nvml_;
  const NvmlDevice device_;
  std::vector<CardFigure>& figures_;
};

}  // namespace

std::vector<CardFigures> SampleCards(const Nvml& nvml, const std::vector<std::string>& cards) {
  std::vector<CardFigures> sampled;
  for (const std::string& id : cards) {
    CardFigures& card = sampled.emplace_back(CardFigures{.card = id, .figures = {}});
    const absl::StatusOr<NvmlDevice> device = nvml.Find(id);
    std::string name;  // empty: the card does not answer
    if (device.ok()) name = nvml.NameOf(*device).value_or("");
    card.figures.push_back({&WorkerRows().card_answers, "", name.empty() ? 0.0 : 1.0});
    if (name.empty()) continue;
    card.figures.push_back({&WorkerRows().card_info, std::move(name), 1});
    CardReader(nvml.functions(), *device, card.figures).ReadAll();
  }
  return sampled;
}

std::unique_ptr<CardWatch> CardWatch::Start(Options options) {
  if (options.cards.empty()) return nullptr;
  absl::StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Open(options.library);
  if (!nvml.ok()) {
    options.log(absl::StrCat("no metrics of cards: ", nvml.status().message()));
    return nullptr;
  }
  return std::unique_ptr<CardWatch>(new CardWatch(std::move(options), *std::move(nvml)));
}

CardWatch::CardWatch(Options options, std::unique_ptr<Nvml> nvml)
    : options_(std::move(options)), nvml_(std::move(nvml)), thread_([this] { Run(); }) {}

CardWatch::~CardWatch() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    stopped_.SignalAll();
  }
  thread_.join();
}

void CardWatch::Run() {
  while (true) {
    options_.publish(SampleCards(*nvml_, options_.cards));
    const auto until = std::chrono::steady_clock::now() + options_.interval;
    const MutexLock lock(&mutex_);
    while (!stopping_ && !stopped_.WaitUntil(&mutex_, until)) {
    }
    if (stopping_) return;
  }
}

}  // namespace nibble
