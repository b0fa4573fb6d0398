// The collectives of CPU ranks, between processes of this machine: what a gradient's ReduceScatter
// and a weight's AllGather move, beside Gloo's own ring and beside what the machine allows.
//
//   comm_bench [ranks] [rounds]
//
// Figures are GB/s that each rank sends, medians over the rounds; every round times all of them.
//   socket   plain TCP over loopback, every rank sending to and receiving from every other at once:
//            the limit of all that follows
//   reduce   Collective::ReduceScatter: summed in rank order
//   gather   Collective::AllGather
//   both     one after the other: what replaces an all-reduce
//   ring     gloo::allreduce (ring): the same bytes as `both`, an order of sums of its own
//   memcpy   one core, bytes copied: what a rank would see with no wire at all
// and then both/socket, both/ring, and the microseconds of one `reduce`.
#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/limits.h"
#include "worker/trainer/comm/gloo_collective.h"
#include "worker/trainer/comm/tcp_store_server.h"

namespace nibble::bench {
namespace {

constexpr int64_t kMaxBytes = int64_t{64} << 20;
constexpr int64_t kSizes[] = {4 << 10, 64 << 10, 1 << 20, 8 << 20, kMaxBytes};

// Connected TCP sockets between every two ranks, made before they fork. [rank][peer]
using Mesh = std::vector<std::vector<int>>;

void Require(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::exit(1);
}

std::pair<int, int> ConnectedPair() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  Require(bind(listener, any, size) == 0 && listen(listener, 1) == 0, "listen");
  Require(getsockname(listener, any, &size) == 0, "getsockname");
  const int a = socket(AF_INET, SOCK_STREAM, 0);
  Require(connect(a, any, size) == 0, "connect");
  const int b = accept(listener, nullptr, nullptr);
  Require(b >= 0, "accept");
  (void)close(listener);
  for (const int fd : {a, b}) {
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return {a, b};
}

Mesh MakeMesh(int world) {
  Mesh mesh(world, std::vector<int>(world, -1));
  for (int a = 0; a < world; ++a) {
    for (int b = a + 1; b < world; ++b) std::tie(mesh[a][b], mesh[b][a]) = ConnectedPair();
  }
  return mesh;
}

void SendAll(int fd, const char* data, int64_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(fd, data, std::min<int64_t>(bytes, 512 << 10), MSG_NOSIGNAL);
    Require(sent > 0, "send");
    data += sent;
    bytes -= sent;
  }
}

void ReceiveAll(int fd, char* data, int64_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(fd, data, std::min<int64_t>(bytes, 512 << 10), 0);
    Require(got > 0, "recv");
    data += got;
    bytes -= got;
  }
}

// Sends `bytes` to every peer and receives as many from each; one thread sends, this one receives.
void SocketExchange(const std::vector<int>& peers, const char* out, char* in, int64_t bytes) {
  std::thread sender([&] {
    for (const int fd : peers) {
      if (fd >= 0) SendAll(fd, out, bytes);
    }
  });
  for (const int fd : peers) {
    if (fd >= 0) ReceiveAll(fd, in, bytes);
  }
  sender.join();
}

struct Bench {
  int rank;
  int world;
  int rounds;
  std::string rendezvous;
  std::string directory;  // of Gloo's own rendezvous
  const Mesh& mesh;

  void Run() {
    absl::StatusOr<std::unique_ptr<Collective>> joined =
        CreateGloo({.rank = rank, .world = world, .rendezvous = rendezvous, .attempt = "ours"});
    if (!joined.ok()) {
      std::fprintf(stderr, "%s\n", joined.status().ToString().c_str());
      std::exit(1);
    }
    Collective& group = **joined;
    gloo::rendezvous::FileStore store(directory);
    auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, world);
    context->connectFullMesh(store, device);

    std::vector<float> all(kMaxBytes / 4, 1.0f), other(kMaxBytes / 4, 0.0f);
    absl::Status status;
    for (const int64_t size : kSizes) {
      const int64_t count = size / 4 / world;  // of one rank's slice
      const std::vector<std::function<void()>> runs = {
          [&] {
            SocketExchange(mesh[rank], reinterpret_cast<char*>(all.data()),
                           reinterpret_cast<char*>(other.data()), count * 4);
          },
          [&] { status.Update(group.ReduceScatter(all.data(), other.data(), count)); },
          [&] { status.Update(group.AllGather(other.data(), all.data(), count * 4)); },
          [&] {
            status.Update(group.ReduceScatter(all.data(), other.data(), count));
            status.Update(group.AllGather(other.data(), all.data(), count * 4));
          },
          [&] {
            gloo::AllreduceOptions options(context);
            options.setOutput(other.data(), count * world);
            options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
            options.setReduceFunction([](void* out, const void* a, const void* b, size_t n) {
              for (size_t i = 0; i < n; ++i) {
                static_cast<float*>(out)[i] =
                    static_cast<const float*>(a)[i] + static_cast<const float*>(b)[i];
              }
            });
            gloo::allreduce(options);
          },
          [&] { std::memcpy(other.data(), all.data(), count * world * 4); },
      };
      const double sent = static_cast<double>(count) * 4 * (world - 1);
      const double bytes[] = {sent, sent, sent, 2 * sent, 2 * sent, 4.0 * count * world};
      // Small messages are timed many at a time.
      const int repeats = static_cast<int>(std::clamp<int64_t>((4 << 20) / size, 1, 100));
      std::vector<std::vector<double>> seconds(runs.size());
      for (int round = 0; round <= rounds; ++round) {
        for (size_t i = 0; i < runs.size(); ++i) {
          std::fill(all.begin(), all.begin() + count * world, 1.0f);
          std::fill(other.begin(), other.begin() + count * world, 1.0f);
          status.Update(group.Barrier());
          const double time = Seconds([&] {
            for (int repeat = 0; repeat < repeats; ++repeat) runs[i]();
          });
          if (round > 0) seconds[i].push_back(time / repeats);  // the first warms up
        }
      }
      if (rank != 0) continue;
      std::printf("%9lld KiB", static_cast<long long>(count) * world * 4 >> 10);
      for (size_t i = 0; i < runs.size(); ++i) {
        std::printf("%9.2f", bytes[i] / Median(seconds[i]) / 1e9);
      }
      const double socket = bytes[0] / Median(seconds[0]);
      const double both = bytes[3] / Median(seconds[3]), ring = bytes[4] / Median(seconds[4]);
      std::printf("%10.2f%10.2f%11.0f\n", both / socket, both / ring, Median(seconds[1]) * 1e6);
      std::fflush(stdout);
    }
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::exit(1);
    }
  }
};

int Main(int argc, char** argv) {
  const int world = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  if (world < 2 || world > 64 || rounds < 1) {
    std::fprintf(stderr, "usage: comm_bench [ranks, 2 to 64] [rounds, from 1]\n");
    return 2;
  }
  const ScratchDirectory scratch(std::filesystem::temp_directory_path().string());
  Require(!scratch.path().empty(), "mkdtemp");
  const Mesh mesh = MakeMesh(world);
  std::printf("%d ranks; GB/s sent per rank, buffer size per rank\n", world);
  std::printf("%13s%9s%9s%9s%9s%9s%9s%10s%10s%11s\n", "buffer", "socket", "reduce", "gather",
              "both", "ring", "memcpy", "of socket", "of ring", "reduce us");
  std::fflush(stdout);
  const auto server = TcpStoreServer::Start("127.0.0.1:0");
  Require(server.ok(), "rendezvous server");
  const std::string rendezvous = "served:127.0.0.1:" + std::to_string((*server)->port());
  std::vector<pid_t> others;
  int rank = 0;
  for (int r = 1; r < world && rank == 0; ++r) {
    const pid_t pid = fork();
    Require(pid >= 0, "fork");
    if (pid == 0) rank = r;
    others.push_back(pid);
  }
  int result = 0;
  try {
    Bench{rank, world, rounds, rendezvous, scratch.path(), mesh}.Run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    result = 1;
  }
  if (rank != 0) {
    // The server and the directory are the parent's: their destructors must not run here.
    std::fflush(nullptr);
    _exit(result);
  }
  for (const pid_t pid : others) {
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || status != 0) result = 1;
  }
  return result;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
