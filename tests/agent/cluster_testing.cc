#include "tests/agent/cluster_testing.h"

#include <grpcpp/grpcpp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::chrono::seconds kPatience(100);
constexpr std::chrono::milliseconds kBetweenLooks(50);

std::string Program(const std::string& path) {
  return std::string(std::getenv("TEST_SRCDIR")) + "/" + std::getenv("TEST_WORKSPACE") + "/" + path;
}

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The mount is visible to this process and its children only.
bool MountDisk(const std::string& path, int64_t bytes) {
  const std::string size = "size=" + std::to_string(bytes);
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", path.c_str(), "tmpfs", 0, size.c_str()) == 0;
}

void AddLosses(const fs::path& log, std::map<int64_t, double>& losses) {
  std::ifstream in(log);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const json event = json::parse(line);
    if (event.at("event") == "step") losses[event.at("step")] = event.at("loss");
  }
}

}  // namespace

void TestClusterProcesses::SetUp() {
  root_ =
      fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
  fs::remove_all(root_);
  fs::create_directories(root_);
}

void TestClusterProcesses::TearDown() {
  if (HasFailure()) std::fprintf(stderr, "%s\n", Chatter().c_str());
  // Workers end their ranks with themselves.
  for (const auto& [name, pid] : processes_) (void)kill(pid, SIGTERM);
  for (const auto& [name, pid] : processes_) (void)waitpid(pid, nullptr, 0);
  fs::remove_all(root_);
}

pid_t TestClusterProcesses::Spawn(const std::string& name, const std::vector<std::string>& words,
                                  int64_t disk_bytes) const {
  const std::string log = (root_ / (name + ".err")).string();
  std::vector<std::string> texts = words;
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    // No process outlives the test, however it ends.
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (std::freopen(log.c_str(), "a", stderr) == nullptr) _exit(120);
    if (disk_bytes > 0 && !MountDisk((root_ / name).string(), disk_bytes)) _exit(122);
    execv(argv[0], argv.data());
    _exit(121);
  }
  return child;
}

void TestClusterProcesses::StartCoordinator(const std::vector<std::string>& flags) {
  std::vector<std::string> words = {Program("server/nibble-coordinator"),
                                    "--store",
                                    (root_ / "coordinator").string(),
                                    "--cluster",
                                    "test",
                                    "--listen",
                                    "127.0.0.1:0",
                                    "--grace-ms",
                                    "200",
                                    "--tick-ms",
                                    "20"};
  words.insert(words.end(), flags.begin(), flags.end());
  processes_["coordinator"] = Spawn("coordinator", words);
  // It prints the port at which it listens.
  const std::string mark = "on port ";
  std::string output;
  ASSERT_TRUE(Eventually([&] {
    output = ReadAll(root_ / "coordinator.err");
    return output.find(mark) != std::string::npos;
  })) << output;
  const int port = std::atoi(output.c_str() + output.find(mark) + mark.size());
  address_ = "127.0.0.1:" + std::to_string(port);
  stub_ =
      v1::Coordinator::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
}

void TestClusterProcesses::StartWorker(const std::string& name, int slots,
                                       const std::vector<std::string>& flags) {
  RunWorker(name, slots, flags, 0);
}

bool TestClusterProcesses::StartWorkerOnDisk(const std::string& name, int slots, int64_t bytes) {
  fs::create_directories(root_ / name);
  const pid_t trial = fork();
  if (trial == 0) _exit(MountDisk((root_ / name).string(), bytes) ? 0 : 1);
  int status = 0;
  EXPECT_EQ(waitpid(trial, &status, 0), trial);
  if (status != 0) return false;
  on_disks_.insert(name);
  RunWorker(name, slots, {}, bytes);
  return true;
}

fs::path TestClusterProcesses::DataOf(const std::string& worker) const {
  const std::string path = fs::absolute(root_ / worker).string();
  if (!on_disks_.contains(worker)) return path;
  return "/proc/" + std::to_string(processes_.at(worker)) + "/root" + path;
}

void TestClusterProcesses::FillDisk(const std::string& name) {
  std::ofstream ballast(DataOf(name) / "ballast", std::ios::app);
  const std::string piece(1 << 16, 'x');
  while (ballast.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) {
  }
}

void TestClusterProcesses::FreeDisk(const std::string& name) {
  EXPECT_TRUE(fs::remove(DataOf(name) / "ballast"));
}

void TestClusterProcesses::RunWorker(const std::string& name, int slots,
                                     const std::vector<std::string>& flags, int64_t disk_bytes) {
  std::vector<std::string> words = {Program("worker/agent/nibble-worker"),
                                    "--coordinator",
                                    address_,
                                    "--data",
                                    (root_ / name).string(),
                                    "--name",
                                    name,
                                    "--slots",
                                    std::to_string(slots),
                                    "--trainer",
                                    Program("worker/trainer/loop/nibble-trainer"),
                                    "--beat-ms",
                                    "100"};
  words.insert(words.end(), flags.begin(), flags.end());
  processes_[name] = Spawn(name, words, disk_bytes);
  // A job submitted before the worker is known would be placed without it.
  ASSERT_TRUE(Eventually([&] {
    v1::DescribeWorkerRequest request;
    request.set_worker(name);
    v1::DescribeWorkerResponse response;
    grpc::ClientContext context;
    return stub_->DescribeWorker(&context, request, &response).ok() && response.worker().present();
  })) << Chatter();
}

void TestClusterProcesses::KillWorker(const std::string& name) {
  const pid_t pid = processes_.at(name);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  processes_.erase(name);
}

std::string TestClusterProcesses::Spec(int ranks, int steps, const std::string& more) const {
  return "name: run\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
         "data: {train: [/usr/share/common-licenses/GPL-3], sequence: 64,\n"
         "       validation: [{name: mpl, path: /usr/share/common-licenses/MPL-2.0}]}\n"
         "training: {steps: " +
         std::to_string(steps) +
         ", batch: 4, seed: 3}\n"
         "optimizer: {lr: 0.002, warmup_steps: 2, decay_fraction: 0.3333}\n"
         "metrics: {log_every: 1}\n"
         "resources: {ranks: " +
         std::to_string(ranks) + ", threads: 1}\n" + more;
}

std::string TestClusterProcesses::Submit(const std::string& spec,
                                         const std::vector<int>& allowed_ranks) {
  v1::SubmitJobRequest request;
  request.set_request_id("request-" + std::to_string(++requests_));
  request.set_spec_yaml(spec);
  for (const int ranks : allowed_ranks) request.mutable_scheduling()->add_allowed_ranks(ranks);
  request.mutable_restart_policy()->set_max_without_progress(5);
  request.mutable_restart_policy()->set_initial_backoff_ms(100);
  request.mutable_restart_policy()->set_max_backoff_ms(1000);
  v1::SubmitJobResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->SubmitJob(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job().id();
}

v1::Job TestClusterProcesses::Describe(const std::string& job) {
  v1::DescribeJobRequest request;
  request.set_job(job);
  v1::DescribeJobResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->DescribeJob(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job();
}

v1::Job TestClusterProcesses::Await(const std::string& job,
                                    const std::vector<v1::JobState>& states) {
  v1::WaitJobRequest request;
  request.set_job(job);
  for (const v1::JobState state : states) request.add_states(state);
  v1::WaitJobResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const grpc::Status status = stub_->WaitJob(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message() << "\n" << Describe(job).DebugString();
  return response.job();
}

v1::DescribeCheckpointResponse TestClusterProcesses::Newest(const std::string& job) {
  v1::DescribeCheckpointRequest request;
  request.mutable_ref()->set_job(job);
  request.mutable_ref()->set_step(-1);
  v1::DescribeCheckpointResponse response;
  grpc::ClientContext context;
  (void)stub_->DescribeCheckpoint(&context, request, &response);
  return response;
}

bool TestClusterProcesses::Eventually(const std::function<bool()>& so) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!so()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

std::map<int64_t, double> TestClusterProcesses::Losses(const std::string& job) const {
  // In the order of attempts: the later attempt counts if two made the same step.
  std::map<fs::file_time_type, fs::path> logs;
  for (const auto& entry : fs::directory_iterator(root_)) {
    if (!entry.is_directory()) continue;
    const fs::path log = DataOf(entry.path().filename().string()) / "jobs" / job / "events.jsonl";
    if (fs::exists(log)) logs[fs::last_write_time(log)] = log;
  }
  std::map<int64_t, double> losses;
  for (const auto& [time, log] : logs) AddLosses(log, losses);
  return losses;
}

std::map<int64_t, double> TestClusterProcesses::LossesWithoutCluster(
    const std::string& spec) const {
  const fs::path directory = root_ / "alone";
  std::ofstream(root_ / "alone.yaml")
      << spec << "output: {directory: " << directory.string() << "}\n";
  const pid_t child = Spawn("alone", {Program("worker/trainer/loop/nibble-trainer"), "--spec",
                                      (root_ / "alone.yaml").string(), "--quiet"});
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << ReadAll(root_ / "alone.err");
  std::map<int64_t, double> losses;
  AddLosses(directory / "events.jsonl", losses);
  return losses;
}

std::string TestClusterProcesses::Chatter() const {
  std::string all;
  for (const auto& entry : fs::directory_iterator(root_)) {
    if (entry.path().extension() == ".err") {
      all += "--- " + entry.path().filename().string() + "\n" + ReadAll(entry.path());
    }
  }
  return all;
}

}  // namespace nibble
