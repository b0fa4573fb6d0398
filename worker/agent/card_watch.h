// Figures of a worker's cards, sampled every few seconds in a thread of its own: a driver that
// hangs must delay neither reports to the coordinator nor scrapes.
//
// Ownership: CardWatch owns its thread and the library's use. Thread-safety: construction and
// destruction from one thread; `publish` is called from the watch's, with no lock held.
#ifndef NIBBLE_WORKER_AGENT_CARD_WATCH_H_
#define NIBBLE_WORKER_AGENT_CARD_WATCH_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "worker/agent/nvml.h"
#include "worker/metrics/worker_metrics.h"

namespace nibble {

// The present figures of the cards, whose entries are those of CUDA_VISIBLE_DEVICES. A figure that
// the card or its driver does not support is absent; of a card that does not answer there is only
// nibble_card_answers, 0.
std::vector<CardFigures> SampleCards(const Nvml& nvml, const std::vector<std::string>& cards);

class CardWatch {
 public:
  struct Options {
    std::vector<std::string> cards;
    std::string library = kNvmlLibrary;
    std::chrono::milliseconds interval{5000};
    std::function<void(std::vector<CardFigures>)> publish;
    std::function<void(const std::string&)> log;
  };
  // Null if there are no cards, or, after one line in the log, if the library cannot be used.
  static std::unique_ptr<CardWatch> Start(Options options);
  // Waits for the sample in progress.
  ~CardWatch();
  CardWatch(const CardWatch&) = delete;
  CardWatch& operator=(const CardWatch&) = delete;

 private:
  CardWatch(Options options, std::unique_ptr<Nvml> nvml);
  void Run();

  const Options options_;
  const std::unique_ptr<Nvml> nvml_;
  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses the above
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_CARD_WATCH_H_
