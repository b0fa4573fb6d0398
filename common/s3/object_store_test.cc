// Faults of an object store: what is repeated, what is final, what an interrupted copy leaves. The
// server keeps objects in memory and fails on request; tests/interop compares with a real one.
#include "common/s3/object_store.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/files/files_testing.h"
#include "common/files/power_testing.h"
#include "common/mutex.h"
#include "common/s3/copies.h"
#include "common/s3/directory_copy.h"
#include "common/s3/signature.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"

namespace nibble::s3 {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As MinIO writes keys.
std::string Escaped(const std::string& key) {
  return absl::StrReplaceAll(key, {{"&", "&amp;"},
                                   {"'", "&#39;"},
                                   {"\"", "&#34;"},
                                   {"<", "&lt;"},
                                   {">", "&gt;"},
                                   {"\t", "&#x9;"}});
}

std::string EtagOf(const std::string& content) { return Sha256(content).substr(0, 32); }

// Ownership: owns its thread. Thread-safety: objects and faults are locked.
class FaultyServer {
 public:
  FaultyServer() {
    const auto handler = [this](const httplib::Request& request, httplib::Response& response) {
      Answer(request, response);
    };
    server_.Get(".*", handler).Put(".*", handler).Post(".*", handler).Delete(".*", handler);
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~FaultyServer() {
    server_.stop();
    thread_.join();
  }
  FaultyServer(const FaultyServer&) = delete;
  FaultyServer& operator=(const FaultyServer&) = delete;

  std::string endpoint() const { return absl::StrCat("http://127.0.0.1:", port_); }
  // The next `times` requests whose "METHOD /path" begins with `what`, or whose text in requests()
  // is `what`, are answered with `code`.
  void Fail(const std::string& what, int code, int times) {
    MutexLock lock(&mutex_);
    what_ = what;
    code_ = code;
    times_ = times;
  }
  // The next uploads in parts that are completed are answered with 503 all the same.
  void LoseCompletions(int times) {
    MutexLock lock(&mutex_);
    lost_completions_ = times;
  }
  // The object at the path is not kept as it was sent, although the answer says so.
  void Spoil(const std::string& path, std::function<std::string(std::string)> spoil) {
    MutexLock lock(&mutex_);
    spoiled_ = path;
    spoil_ = std::move(spoil);
  }
  std::map<std::string, std::string> objects() {
    MutexLock lock(&mutex_);
    return objects_;
  }
  void Set(const std::string& path, const std::string& content) {
    MutexLock lock(&mutex_);
    objects_[path] = content;
  }
  // "METHOD" or "METHOD name-of-parameter", of each request.
  std::vector<std::string> requests() {
    MutexLock lock(&mutex_);
    return requests_;
  }
  bool uploading() {
    MutexLock lock(&mutex_);
    return !uploads_.empty();
  }

 private:
  void Answer(const httplib::Request& request, httplib::Response& response) {
    MutexLock lock(&mutex_);
    requests_.push_back(request.method +
                        (request.params.empty() ? "" : " " + request.params.begin()->first));
    if (times_ > 0 &&
        (requests_.back() == what_ || (request.method + " " + request.path).rfind(what_, 0) == 0)) {
      --times_;
      response.status = code_;
      response.set_content("<Error><Code>Planned</Code><Message>as &amp; asked</Message></Error>",
                           "application/xml");
      return;
    }
    const bool part = request.has_param("uploadId");
    if (request.method == "GET" && request.path == "/bucket/") {
      response.set_content(request.has_param("uploads") ? Uploads(request) : Objects(request),
                           "application/xml");
    } else if (request.method == "POST" && request.has_param("uploads")) {
      const std::string id = absl::StrCat("up/", ++began_);
      uploads_[id] = request.path;
      parts_.clear();
      response.set_content("<R><UploadId>" + id + "</UploadId></R>", "application/xml");
    } else if (request.method == "PUT" && part) {
      parts_[std::stoi(request.get_param_value("partNumber"))] = request.body;
      response.set_header("ETag", "\"etag\"");
    } else if (request.method == "POST" && part) {
      if (uploads_.erase(request.get_param_value("uploadId")) == 0) {
        response.status = 404;
        return;
      }
      std::string all;
      for (const auto& [number, bytes] : parts_) all += bytes;
      objects_[request.path] = all;
      response.set_content("<R><ETag>&quot;" + EtagOf(all) + "&quot;</ETag></R>",
                           "application/xml");
      if (request.path == spoiled_) objects_[request.path] = spoil_(all);
      if (lost_completions_ > 0) {
        --lost_completions_;
        response.status = 503;
      }
    } else if (request.method == "DELETE" && part) {
      if (uploads_.erase(request.get_param_value("uploadId")) == 0) response.status = 404;
    } else if (request.method == "PUT") {
      std::string& object = objects_[request.path] = request.body;
      response.set_header("ETag", "\"" + EtagOf(object) + "\"");
      if (request.path == spoiled_) object = spoil_(object);
    } else if (request.method == "DELETE") {
      objects_.erase(request.path);
    } else if (const auto at = objects_.find(request.path); at != objects_.end()) {
      response.set_content(at->second, "application/octet-stream");  // httplib serves the range
    } else {
      response.status = 404;
    }
  }

  // One upload of the prefix: pages are small.
  std::string Uploads(const httplib::Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [id, path] : uploads_) {
      if (path.rfind("/bucket/" + request.get_param_value("prefix"), 0) != 0) continue;
      return absl::StrCat("<R><Upload><Key>", Escaped(path.substr(8)), "</Key><UploadId>", id,
                          "</UploadId></Upload></R>");
    }
    return "<R></R>";
  }
  // Two objects of the prefix.
  std::string Objects(const httplib::Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string page;
    int listed = 0;
    const std::string from = request.get_param_value("continuation-token");
    for (const auto& [path, content] : objects_) {
      if (path < from || path.rfind("/bucket/" + request.get_param_value("prefix"), 0) != 0) {
        continue;
      }
      if (++listed > 2) {
        return absl::StrCat("<R>", page, "<IsTruncated>true</IsTruncated><NextContinuationToken>",
                            path, "</NextContinuationToken></R>");
      }
      absl::StrAppend(&page, "<Contents><Key>", Escaped(path.substr(8)), "</Key><Size>",
                      content.size(), "</Size><ETag>&quot;", EtagOf(content),
                      "&quot;</ETag></Contents>");
    }
    return absl::StrCat("<R>", page, "<IsTruncated>false</IsTruncated></R>");
  }

  httplib::Server server_;
  int port_ = 0;
  Mutex mutex_;
  std::map<std::string, std::string> objects_ ABSL_GUARDED_BY(mutex_);
  std::map<int, std::string> parts_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> uploads_ ABSL_GUARDED_BY(mutex_);  // paths by id
  int began_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> requests_ ABSL_GUARDED_BY(mutex_);
  std::string what_ ABSL_GUARDED_BY(mutex_);
  int code_ ABSL_GUARDED_BY(mutex_) = 0;
  int times_ ABSL_GUARDED_BY(mutex_) = 0;
  int lost_completions_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string spoiled_ ABSL_GUARDED_BY(mutex_);
  std::function<std::string(std::string)> spoil_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

class ObjectStoreTest : public ::testing::Test {
 protected:
  ObjectStoreTest() {
    Options options;
    options.endpoint = server_.endpoint();
    options.credentials = {"key", "secret", ""};
    options.part_bytes = 1000;
    options.tries = 3;
    options.wait = [this](std::chrono::milliseconds pause) { pauses_.push_back(pause); };
    store_ = ObjectStore::Create(options).value();
    fs::create_directories(directory_.Path("in/shard-0"));
    Write("in/empty", "");
    Write("in/small", "small");
    Write("in/shard-0/large", std::string(2500, 'x') + "end");
  }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(directory_.Path(name)) << content;
  }
  std::string Read(const std::string& name) {
    std::ifstream file(directory_.Path(name));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  Options TestOptions(int64_t part_bytes) const {
    Options options;
    options.endpoint = server_.endpoint();
    options.credentials = {"key", "secret", ""};
    options.part_bytes = part_bytes;
    return options;
  }
  // The number of such requests.
  int64_t Asked(const std::string& what) {
    const std::vector<std::string> requests = server_.requests();
    return std::count(requests.begin(), requests.end(), what);
  }
  absl::StatusOr<Copied> Push(bool overwrite = false) {
    return PushDirectory(*store_, directory_.Path("in"), kPlace, overwrite);
  }
  absl::StatusOr<Copied> Pull() { return PullDirectory(*store_, kPlace, directory_.Path("out")); }

  const Place kPlace = {"bucket", "run 7/step"};
  const std::string kList = "/bucket/run 7/step/nibble-files.json";
  FaultyServer server_;
  file_testing::TempDirectory directory_;
  std::vector<std::chrono::milliseconds> pauses_;
  std::unique_ptr<ObjectStore> store_;
};

TEST_F(ObjectStoreTest, ADirectoryReturnsAsItWas) {
  const auto pushed = Push();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_EQ(pushed->files, 3);
  EXPECT_EQ(pushed->bytes, 2508);
  const auto pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(Read("out/shard-0/large"), Read("in/shard-0/large"));
  EXPECT_EQ(Read("out/small"), "small");
  EXPECT_TRUE(fs::exists(directory_.Path("out/empty")));
  EXPECT_FALSE(fs::exists(directory_.Path("out/nibble-files.json")));
  EXPECT_THAT(pauses_, IsEmpty());
  EXPECT_TRUE(absl::IsAlreadyExists(Pull().status()));
  // As to the data directory of a worker that has never run.
  const auto below = PullDirectory(*store_, kPlace, directory_.Path("new/jobs/out"));
  ASSERT_TRUE(below.ok()) << below.status();
  EXPECT_EQ(Read("new/jobs/out/small"), "small");
}

TEST_F(ObjectStoreTest, ACopyOfWhichTheStoreKeepsLessThanItWasSentIsNotComplete) {
  for (const std::string name : {"small", "shard-0/large"}) {
    server_.Spoil("/bucket/run 7/step/" + name,
                  [](const std::string& sent) { return sent.substr(0, sent.size() / 2); });
    const absl::Status pushed = Push().status();
    EXPECT_EQ(pushed.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(pushed.message()), HasSubstr("run 7/step/" + name + ": "));
    EXPECT_THAT(std::string(pushed.message()), HasSubstr(" bytes were sent; the store has "));
    EXPECT_FALSE(server_.objects().contains(kList));
  }
  server_.Spoil("/bucket/run 7/step/small", [](std::string sent) {
    sent[0] ^= 1;
    return sent;
  });
  const absl::Status pushed = Push().status();
  EXPECT_EQ(pushed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(pushed.message()), HasSubstr("the store has ETag "));
  server_.Spoil("", nullptr);
  EXPECT_TRUE(Push().ok());
}

TEST_F(ObjectStoreTest, TransientAnswersAreRepeatedWithGrowingPauses) {
  server_.Fail("PUT /bucket/run 7/step/small", 503, 2);
  const auto pushed = Push();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  ASSERT_EQ(pauses_.size(), 2u);
  EXPECT_GE(pauses_[0].count(), 100);
  EXPECT_GE(pauses_[1].count(), 200);
  server_.Fail("GET", 500, 3);
  const absl::Status status = Pull().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_FALSE(fs::exists(directory_.Path("out")));
}

TEST_F(ObjectStoreTest, EachTransientAnswerIsRepeatedAndNoOther) {
  for (const int code : {408, 429, 500, 503}) {
    pauses_.clear();
    server_.Fail("PUT", code, 2);
    EXPECT_TRUE(store_->Put({"bucket", "object"}, "content").ok()) << code;
    EXPECT_EQ(pauses_.size(), 2u) << code;
  }
  for (const int code : {400, 404, 409, 412, 499}) {
    pauses_.clear();
    server_.Fail("PUT", code, 1);
    EXPECT_FALSE(store_->Put({"bucket", "object"}, "content").ok()) << code;
    EXPECT_THAT(pauses_, IsEmpty()) << code;
  }
}

TEST_F(ObjectStoreTest, AFileOfOnePartIsOneRequestAndALargerOneIsUploadedInParts) {
  Write("in/file", std::string(1000, 'x'));
  ASSERT_TRUE(store_->PutFile({"bucket", "file"}, directory_.Path("in/file")).ok());
  EXPECT_THAT(server_.requests(), testing::ElementsAre("PUT"));
  Write("in/file", std::string(1001, 'y'));
  ASSERT_TRUE(store_->PutFile({"bucket", "file"}, directory_.Path("in/file")).ok());
  EXPECT_EQ(Asked("PUT partNumber"), 2);
  EXPECT_EQ(server_.objects()["/bucket/file"], std::string(1001, 'y'));
}

TEST_F(ObjectStoreTest, ARefusedCompletionIsFinalAndTheUploadAborted) {
  server_.Fail("POST uploadId", 403, 1);
  const absl::Status status =
      store_->PutFile({"bucket", "large"}, directory_.Path("in/shard-0/large")).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_EQ(Asked("POST uploads"), 1);
  EXPECT_FALSE(server_.uploading());
}

TEST_F(ObjectStoreTest, AnObjectOfTheAllowedLengthIsReadAndALongerOneRefused) {
  server_.Set("/bucket/object", "12345");
  EXPECT_EQ(store_->Get({"bucket", "object"}, 5).value(), "12345");
  const absl::Status status = store_->Get({"bucket", "object"}, 4).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST_F(ObjectStoreTest, AfterAPowerFailureADownloadedDirectoryIsWholeOrNotThere) {
  fs::create_directories(directory_.Path("in/deep/er"));
  Write("in/deep/er/file", "deep");
  ASSERT_TRUE(Push().ok());
  const file_testing::TempDirectory target, disk;
  file_testing::PowerCuts power(target.path());
  Options options = TestOptions(1000);
  options.faults = &power;
  const auto store = ObjectStore::Create(options).value();
  const auto pulled = PullDirectory(*store, kPlace, target.Path("jobs/out"));
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  power.Note(1);
  power.ForEach(disk.path(), [&](int64_t done) {
    const std::string out = disk.Path("jobs/out/");
    if (done == 0 && !fs::exists(out)) return;
    for (const std::string name : {"empty", "small", "shard-0/large", "deep/er/file"}) {
      ASSERT_EQ(file_testing::ContentOf(out + name), Read("in/" + name)) << name;
    }
  });
}

TEST_F(ObjectStoreTest, ARefusalIsFinalAndHasTheStoresReason) {
  server_.Fail("PUT", 403, 1);
  const absl::Status status = Push().status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("403 Planned: as & asked"));
  EXPECT_THAT(pauses_, IsEmpty());
}

TEST_F(ObjectStoreTest, AFailedUploadInPartsIsAborted) {
  server_.Fail("PUT /bucket/run 7/step/shard-0/large", 500, 3);
  EXPECT_TRUE(absl::IsUnavailable(Push().status()));
  EXPECT_FALSE(server_.uploading());
  EXPECT_FALSE(server_.objects().contains(kList));
  const absl::Status status = Pull().status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no complete copy at s3://bucket/run 7/step"));
}

TEST_F(ObjectStoreTest, ACompleteCopyIsReplacedOnlyOnRequestAndNeverHalf) {
  ASSERT_TRUE(Push().ok());
  const absl::Status second = Push().status();
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("--overwrite"));
  server_.Fail("PUT", 403, 1);
  EXPECT_FALSE(Push(true).ok());
  EXPECT_TRUE(absl::IsNotFound(Pull().status()));
  Write("in/small", "changed");
  ASSERT_TRUE(Push(true).ok());
  ASSERT_TRUE(Pull().ok());
  EXPECT_EQ(Read("out/small"), "changed");
}

TEST_F(ObjectStoreTest, AnObjectThatDiffersIsDataLossAndLeavesNothing) {
  ASSERT_TRUE(Push().ok());
  server_.Set("/bucket/run 7/step/small", "smalk");
  const absl::Status status = Pull().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("s3://bucket/run 7/step/small"));
  EXPECT_FALSE(fs::exists(directory_.Path("out")));
}

TEST_F(ObjectStoreTest, AListWithNamesOutsideOfTheDirectoryIsRefused) {
  ASSERT_TRUE(Push().ok());
  const std::string list = server_.objects()[kList];
  for (const std::string name : {"../small", "/small", "a//small", ""}) {
    server_.Set(kList, absl::StrReplaceAll(list, {{"\"small\"", absl::StrCat("\"", name, "\"")}}));
    EXPECT_TRUE(absl::IsDataLoss(Pull().status())) << name;
  }
  server_.Set(kList, absl::StrReplaceAll(list, {{"\"version\": 1", "\"version\": 2"}}));
  EXPECT_TRUE(absl::IsFailedPrecondition(Pull().status()));
}

TEST_F(ObjectStoreTest, LinksAreRefusedAndMissingDirectoriesNamed) {
  fs::create_symlink("small", directory_.Path("in/link"));
  const absl::Status status = Push().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("in/link"));
  EXPECT_TRUE(
      absl::IsNotFound(PushDirectory(*store_, directory_.Path("none"), kPlace, false).status()));
}

TEST_F(ObjectStoreTest, TheNewestCopiesOfAPrefixStayAndAreListed) {
  const Place prefix = {"bucket", "lab/train-1"};
  const std::string first = CopyName(10, 1), second = CopyName(20, 1), third = CopyName(15, 2);
  EXPECT_EQ(first, "step-000000000010-attempt-0001");
  EXPECT_EQ(ListCopies(*store_, prefix).value(), std::vector<std::string>());
  // What an interrupted upload has left, and what is not ours.
  server_.Set("/bucket/lab/train-1/" + CopyName(5, 1) + "/shard-0/large", "half");
  server_.Set("/bucket/lab/train-1/step-best/model", "mine");
  server_.Set("/bucket/lab/train-10/" + CopyName(5, 1) + "/small", "of another job");
  for (const std::string& name : {first, second, third}) {
    const Place place = {"bucket", "lab/train-1/" + name};
    ASSERT_TRUE(PushDirectory(*store_, directory_.Path("in"), place, true).ok());
    const auto removed = AddCopy(*store_, prefix, name, 2);
    ASSERT_TRUE(removed.ok()) << removed.status();
    EXPECT_EQ(*removed, name == first   ? std::vector<std::string>{CopyName(5, 1)}
                        : name == third ? std::vector<std::string>{first}
                                        : std::vector<std::string>());
  }
  EXPECT_THAT(ListCopies(*store_, prefix).value(), testing::ElementsAre(second, third));
  EXPECT_EQ(server_.objects().size(), 2u * 4 + 1 + 2);
  // Once more, as after a failure behind the upload: no name is listed twice.
  ASSERT_TRUE(AddCopy(*store_, prefix, third, 2).ok());
  EXPECT_THAT(ListCopies(*store_, prefix).value(), testing::ElementsAre(second, third));

  server_.Set("/bucket/lab/train-1/nibble-copies.json", R"({"version": 1, "copies": ["../x"]})");
  EXPECT_TRUE(absl::IsDataLoss(ListCopies(*store_, prefix).status()));
  server_.Set("/bucket/lab/train-1/nibble-copies.json", R"({"version": 2})");
  EXPECT_TRUE(absl::IsFailedPrecondition(ListCopies(*store_, prefix).status()));
}

TEST_F(ObjectStoreTest, ACopyThatIsMadeAgainIsNotListedMeanwhileAndKeepsNoOldFiles) {
  const Place prefix = {"bucket", "lab/train-1"};
  const std::string name = CopyName(10, 1);
  const Place place = {"bucket", "lab/train-1/" + name};
  ASSERT_TRUE(PushDirectory(*store_, directory_.Path("in"), place, false).ok());
  ASSERT_TRUE(AddCopy(*store_, prefix, name, 2).ok());
  server_.Set("/bucket/lab/train-1/" + name + "/of-another-host", "x");
  ASSERT_EQ(BeginCopy(*store_, prefix, name), absl::OkStatus());
  EXPECT_THAT(ListCopies(*store_, prefix).value(), IsEmpty());
  EXPECT_EQ(server_.objects().size(), 1u);  // the list
  ASSERT_TRUE(PushDirectory(*store_, directory_.Path("in"), place, false).ok());
  ASSERT_TRUE(AddCopy(*store_, prefix, name, 2).ok());
  EXPECT_THAT(ListCopies(*store_, prefix).value(), testing::ElementsAre(name));
  EXPECT_EQ(server_.objects().size(), 1u + 4);
}

// Two clusters with one PREFIX and equal ids of jobs.
TEST_F(ObjectStoreTest, CopiesOfAnotherStoreAreNeitherReplacedNorRemoved) {
  const Place prefix = {"bucket", "lab/train-1"};
  const CopyOwner first = {.store = "aaaa"}, second = {.store = "bbbb"};
  const std::string name = CopyName(10, 1);
  ASSERT_EQ(BeginCopy(*store_, prefix, name, first), absl::OkStatus());
  const Place place = {"bucket", "lab/train-1/" + name};
  ASSERT_TRUE(PushDirectory(*store_, directory_.Path("in"), place, false).ok());
  ASSERT_TRUE(AddCopy(*store_, prefix, name, 1, first.store).ok());
  const auto before = server_.objects();
  for (const int64_t step : {10, 20}) {
    const absl::Status refused = BeginCopy(*store_, prefix, CopyName(step, 1), second);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_EQ(std::string(refused.message()),
              "s3://bucket/lab/train-1/nibble-copies.json: the copies there are those of a job of "
              "store aaaa, this job's store is bbbb; give each cluster a PREFIX of its own "
              "(--object-store of the coordinator)");
  }
  // Also if both began before either had made a list.
  EXPECT_TRUE(absl::IsFailedPrecondition(
      AddCopy(*store_, prefix, CopyName(20, 1), 1, second.store).status()));
  EXPECT_EQ(server_.objects(), before);
  // Its owner is not held up.
  ASSERT_EQ(BeginCopy(*store_, prefix, CopyName(20, 1), first), absl::OkStatus());
  ASSERT_TRUE(AddCopy(*store_, prefix, CopyName(20, 1), 1, first.store).ok());
  EXPECT_THAT(ListCopies(*store_, prefix).value(), testing::ElementsAre(CopyName(20, 1)));
}

TEST_F(ObjectStoreTest, CopiesAreTakenOverWhereTheJobWasAndThenLostToTheirFormerOwner) {
  const Place prefix = {"bucket", "lab/train-1"};
  const std::string old = CopyName(10, 1);
  ASSERT_EQ(BeginCopy(*store_, prefix, old, {.store = "aaaa"}), absl::OkStatus());
  ASSERT_TRUE(AddCopy(*store_, prefix, old, 2, "aaaa").ok());
  ASSERT_EQ(BeginCopy(*store_, prefix, CopyName(20, 2), {.store = "bbbb", .takes_over = true}),
            absl::OkStatus());
  EXPECT_THAT(ListCopies(*store_, prefix).value(), testing::ElementsAre(old)) << "it stays";
  EXPECT_TRUE(
      absl::IsFailedPrecondition(AddCopy(*store_, prefix, CopyName(30, 1), 2, "aaaa").status()));
  ASSERT_TRUE(AddCopy(*store_, prefix, CopyName(20, 2), 2, "bbbb").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      BeginCopy(*store_, prefix, CopyName(30, 1), {.store = "aaaa", .continues = true})));
  EXPECT_THAT(ListCopies(*store_, prefix).value(), testing::ElementsAre(old, CopyName(20, 2)));
}

TEST_F(ObjectStoreTest, CopiesOfOlderVersionsNameNoStoreAndAreContinuedByTheJobThatMadeThem) {
  const Place prefix = {"bucket", "lab/train-1"};
  const std::string old = CopyName(10, 1), next = CopyName(20, 1);
  ASSERT_TRUE(AddCopy(*store_, prefix, old, 2).ok());
  const absl::Status refused = BeginCopy(*store_, prefix, next, {.store = "bbbb"});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("of an unknown store"));
  ASSERT_EQ(BeginCopy(*store_, prefix, next, {.store = "aaaa", .continues = true}),
            absl::OkStatus());
  ASSERT_TRUE(AddCopy(*store_, prefix, next, 2, "aaaa").ok());
  EXPECT_THAT(ListCopies(*store_, prefix).value(), testing::ElementsAre(old, next));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      BeginCopy(*store_, prefix, next, {.store = "bbbb", .continues = true})));
  // A writer that does not know its store leaves the owner.
  ASSERT_EQ(BeginCopy(*store_, prefix, next), absl::OkStatus());
  EXPECT_EQ(BeginCopy(*store_, prefix, next, {.store = "aaaa"}), absl::OkStatus());

  server_.Set("/bucket/lab/train-1/nibble-copies.json",
              R"({"version": 1, "copies": [], "store": 3})");
  EXPECT_TRUE(absl::IsDataLoss(ListCopies(*store_, prefix).status()));
}

TEST_F(ObjectStoreTest, ARemovalThatFailedIsRepeatedByTheNextCopy) {
  const Place prefix = {"bucket", "lab/train-1"};
  ASSERT_TRUE(AddCopy(*store_, prefix, CopyName(10, 1), 1).ok());
  server_.Set("/bucket/lab/train-1/" + CopyName(10, 1) + "/small", "small");
  server_.Fail("DELETE", 403, 1);
  EXPECT_TRUE(absl::IsPermissionDenied(AddCopy(*store_, prefix, CopyName(20, 1), 1).status()));
  const auto removed = AddCopy(*store_, prefix, CopyName(30, 1), 1);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(*removed, testing::ElementsAre(CopyName(10, 1)));
}

TEST_F(ObjectStoreTest, ACopyIsRemovedWithItsListFirst) {
  ASSERT_TRUE(Push().ok());
  server_.Fail("DELETE /bucket/run 7/step/small", 403, 1);
  EXPECT_TRUE(absl::IsPermissionDenied(RemoveDirectoryCopy(*store_, kPlace)));
  EXPECT_TRUE(absl::IsNotFound(Pull().status()));
  ASSERT_TRUE(Push().ok());
  EXPECT_EQ(RemoveDirectoryCopy(*store_, kPlace), absl::OkStatus());
  EXPECT_TRUE(server_.objects().empty());
  EXPECT_EQ(RemoveDirectoryCopy(*store_, kPlace), absl::OkStatus());
}

TEST_F(ObjectStoreTest, KeysWithSpecialCharactersAreRemovedAndTheirUploadsAborted) {
  const Place prefix = {"bucket", "lab \"a+b\"/ann's <\xC3\xA4&1>\t&amp;"};
  const std::string old = CopyName(10, 1), kept = CopyName(20, 1);
  const Place place = {"bucket", prefix.key + "/" + old};
  ASSERT_TRUE(PushDirectory(*store_, directory_.Path("in"), place, false).ok());
  const auto removed = AddCopy(*store_, prefix, kept, 1);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(*removed, testing::ElementsAre(old));
  EXPECT_EQ(server_.objects().size(), 1u);  // the list

  Options options;
  options.endpoint = server_.endpoint();
  options.credentials = {"key", "secret", ""};
  options.part_bytes = 1000;
  options.tries = 1;
  int asked = 0;
  // It is away from the second part on.
  options.cancelled = [&] {
    if (++asked == 3) server_.Fail("", 503, 1000);
    return false;
  };
  const auto store = ObjectStore::Create(options).value();
  EXPECT_FALSE(
      store->PutFile({"bucket", prefix.key + "/large"}, directory_.Path("in/shard-0/large")).ok());
  server_.Fail("", 0, 0);
  EXPECT_TRUE(server_.uploading());
  EXPECT_EQ(store_->AbortUploads(prefix), absl::OkStatus());
  EXPECT_FALSE(server_.uploading());
}

TEST_F(ObjectStoreTest, AnUploadWhoseCompletionIsNotAnsweredIsMadeOnceMore) {
  server_.LoseCompletions(1);
  const auto pushed = Push();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  ASSERT_TRUE(Pull().ok());
  EXPECT_EQ(Read("out/shard-0/large"), Read("in/shard-0/large"));
  server_.LoseCompletions(2);
  EXPECT_TRUE(absl::IsNotFound(Push(true).status()));
}

TEST_F(ObjectStoreTest, AFileThatGrowsBeforeItIsSentReturnsAsItWasSent) {
  Options options;
  options.endpoint = server_.endpoint();
  options.credentials = {"key", "secret", ""};
  int asked = 0;
  // The directory was listed; no file is open.
  options.cancelled = [&] {
    if (++asked == 1) Write("in/small", "has grown");
    return false;
  };
  const auto store = ObjectStore::Create(options).value();
  ASSERT_TRUE(PushDirectory(*store, directory_.Path("in"), kPlace, false).ok());
  const auto pulled = Pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(Read("out/small"), "has grown");
}

TEST_F(ObjectStoreTest, ANameThatIsNotUtf8IsRefusedBeforeAnythingIsSent) {
  Write("in/na\xEFve", "latin 1");
  const absl::Status status = Push().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("in/na\\xefve"));
  EXPECT_THAT(server_.requests(), IsEmpty());
  fs::rename(directory_.Path("in/na\xEFve"), directory_.Path("in/na\xC3\xAFve \xEF\xBF\xBD"));
  EXPECT_TRUE(Push().ok());
}

TEST_F(ObjectStoreTest, ACancelledUploadSendsNothingMore) {
  Options options;
  options.endpoint = server_.endpoint();
  options.credentials = {"key", "secret", ""};
  int asked = 0;
  options.cancelled = [&asked] { return ++asked > 2; };
  const auto store = ObjectStore::Create(options).value();
  EXPECT_TRUE(
      absl::IsCancelled(PushDirectory(*store, directory_.Path("in"), kPlace, false).status()));
  EXPECT_EQ(server_.requests().size(), 2u);
}

TEST_F(ObjectStoreTest, ACancelledMultipartUploadIsAborted) {
  Options options;
  options.endpoint = server_.endpoint();
  options.credentials = {"key", "secret", ""};
  options.part_bytes = 1000;
  int asked = 0;
  options.cancelled = [&asked] { return ++asked > 2; };  // it began, and one part is there
  const auto store = ObjectStore::Create(options).value();
  EXPECT_TRUE(absl::IsCancelled(
      store->PutFile({"bucket", "large"}, directory_.Path("in/shard-0/large")).status()));
  EXPECT_THAT(server_.requests(),
              testing::ElementsAre("POST uploads", "PUT partNumber", "DELETE uploadId"));
  EXPECT_FALSE(server_.uploading());
}

TEST_F(ObjectStoreTest, PartsThatADeadServerKeptAreRemovedBeforeTheNextUpload) {
  Options options;
  options.endpoint = server_.endpoint();
  options.credentials = {"key", "secret", ""};
  options.part_bytes = 1000;
  options.tries = 2;
  options.wait = [](std::chrono::milliseconds) {};
  int asked = 0;
  // It is away from the second part on: it cannot be asked to abort the upload, either.
  options.cancelled = [&] {
    if (++asked == 3) server_.Fail("", 503, 1000);
    return false;
  };
  const auto store = ObjectStore::Create(options).value();
  for (const std::string name : {"run/a", "run/b", "runs/c"}) {
    asked = 0;
    EXPECT_TRUE(absl::IsUnavailable(
        store->PutFile({"bucket", name}, directory_.Path("in/shard-0/large")).status()));
    server_.Fail("", 0, 0);
  }
  EXPECT_EQ(store_->AbortUploads({"bucket", "run"}), absl::OkStatus());
  EXPECT_TRUE(server_.uploading());  // runs/c is not below it
  EXPECT_EQ(store_->AbortUploads({"bucket", "runs"}), absl::OkStatus());
  EXPECT_FALSE(server_.uploading());
}

// Stores refuse the 10,001st part.
TEST(ObjectStore, PartsGrowWithTheFileSoThatTheyAreAtMostTenThousand) {
  EXPECT_EQ(PartBytes(10'000, 1'000), 1'000);
  for (const int64_t bytes : {1, 9'999, 10'000, 10'001, 19'999, 20'000, 20'001, 999'999'999}) {
    const int64_t part = PartBytes(bytes, 1);
    EXPECT_LE((bytes + part - 1) / part, 10'000) << bytes;
  }
}

TEST(ObjectStore, PlacesAndEndpointsAreChecked) {
  const auto place = ParsePlace("s3://bucket/a/b/");
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->bucket, "bucket");
  EXPECT_EQ(place->key, "a/b");
  for (const char* const text : {"s3://bucket", "s3:///key", "bucket/key", "s3://bucket/"}) {
    EXPECT_THAT(std::string(ParsePlace(text).status().message()), HasSubstr(text));
  }
  EXPECT_FALSE(ObjectStore::Create({.endpoint = "minio:9000"}).ok());
  EXPECT_FALSE(ObjectStore::Create({.endpoint = "https://host/path"}).ok());
}

TEST(ObjectStore, AnUnreachableStoreIsUnavailableAfterTheLastTry) {
  int pauses = 0;
  Options options;
  options.endpoint = "http://127.0.0.1:1";
  options.tries = 3;
  options.wait = [&pauses](std::chrono::milliseconds) { ++pauses; };
  const auto store = ObjectStore::Create(options).value();
  const absl::Status status = store->Put({"b", "k"}, "x").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("s3://b/k at http://127.0.0.1:1"));
  EXPECT_EQ(pauses, 2);
}

}  // namespace
}  // namespace nibble::s3
