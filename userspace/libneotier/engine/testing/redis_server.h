// SPDX-License-Identifier: Apache-2.0
// Valkey or Redis for tests: real servers, started and stopped as a test wills, in a folder of their own.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <valkey/valkey.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace neotier::engine {

// Where the program is; "" where there is none. redis-tools of Debian has it under another name: it goes by what it is
// called as.
inline std::string find_redis_program() {
  for (const char* name : {"valkey-server", "redis-server", "valkey-check-rdb", "redis-check-rdb"}) {
    for (const char* folder : {"/usr/bin", "/usr/local/bin"}) {
      const std::filesystem::path path = std::filesystem::path(folder) / name;
      if (access(path.c_str(), X_OK) == 0) return path;
    }
  }
  return "";
}
#define NEOTIER_NEEDS_REDIS \
  if (find_redis_program().empty()) GTEST_SKIP() << "skipped: no redis-server: install redis-tools or valkey-server"

inline uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("no free port");
  close(fd);
  return ntohs(address.sin_port);
}

class TestFolder {
 public:
  TestFolder() {
    std::string name = std::filesystem::temp_directory_path() / "neotier-redis-XXXXXX";
    if (!mkdtemp(name.data())) throw std::runtime_error("no folder for a test");
    path_ = name;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// What a server says, asked by hand.
struct RedisAnswer {
  int type = 0;
  long long integer = 0;
  std::string text;
  bool nothing() const { return type == VALKEY_REPLY_NIL; }
};

// One server. On a socket in its folder, and on a port where one is given.
class RedisServer {
 public:
  explicit RedisServer(std::vector<std::string> options = {}, uint16_t port = 0, bool tls = false)
      : options_(std::move(options)), port_(port), tls_(tls) {
    std::filesystem::create_symlink(find_redis_program(), folder_.file("redis-server"));
    start();
  }
  ~RedisServer() { kill(); }

  std::string socket() const { return folder_.file("socket"); }
  std::string file(const std::string& name) const { return folder_.file(name); }
  uint16_t port() const { return port_; }

  // Empty, as it keeps nothing.
  void start() {
    std::vector<std::string> words{folder_.file("redis-server"),
                                   "--unixsocket",
                                   socket(),
                                   "--save",
                                   "",
                                   "--appendonly",
                                   "no",
                                   "--dir",
                                   folder_.file(""),
                                   "--logfile",
                                   folder_.file("log"),
                                   "--port",
                                   tls_ ? "0" : std::to_string(port_)};
    if (tls_) words.insert(words.end(), {"--tls-port", std::to_string(port_)});
    const auto password = std::find(options_.begin(), options_.end(), "--requirepass");
    if (password != options_.end()) password_ = password[1];
    words.insert(words.end(), options_.begin(), options_.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      const int null = open("/dev/null", O_RDWR);
      dup2(null, 1);
      dup2(null, 2);
      execv(argv[0], argv.data());
      _exit(127);
    }
    for (int i = 0; i < 12000; i++) {
      if (waitpid(pid_, nullptr, WNOHANG) == pid_) break;
      if (const auto answer = try_to_ask({"PING"}); answer && answer->text != "") return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::ifstream log(folder_.file("log"));
    throw std::runtime_error("the server did not start: " + std::string(std::istreambuf_iterator<char>(log), {}));
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void stop() { ::kill(pid_, SIGSTOP); }
  void go_on() { ::kill(pid_, SIGCONT); }

  RedisAnswer ask(std::initializer_list<std::string_view> words) {
    const auto answer = try_to_ask(words);
    if (!answer) throw std::runtime_error("the server does not answer");
    return *answer;
  }

 private:
  std::optional<RedisAnswer> try_to_ask(std::initializer_list<std::string_view> words) {
    const std::unique_ptr<valkeyContext, void (*)(valkeyContext*)> context(valkeyConnectUnix(socket().c_str()),
                                                                           valkeyFree);
    if (!context || context->err != 0) return std::nullopt;
    if (!password_.empty()) freeReplyObject(valkeyCommand(context.get(), "AUTH %s", password_.c_str()));
    std::vector<const char*> argv;
    std::vector<size_t> sizes;
    for (const std::string_view word : words) {
      argv.push_back(word.data());
      sizes.push_back(word.size());
    }
    const std::unique_ptr<void, void (*)(void*)> reply(
        valkeyCommandArgv(context.get(), static_cast<int>(argv.size()), argv.data(), sizes.data()), freeReplyObject);
    if (!reply) return std::nullopt;
    const auto* const said = static_cast<const valkeyReply*>(reply.get());
    return RedisAnswer{said->type, said->integer, said->str ? std::string(said->str, said->len) : ""};
  }

  TestFolder folder_;
  std::vector<std::string> options_;
  uint16_t port_;
  bool tls_;
  std::string password_;
  pid_t pid_ = -1;
};

// Three masters, and all slots served.
class RedisCluster {
 public:
  explicit RedisCluster(std::vector<std::string> options = {}, bool tls = false) {
    // A server that a loaded machine does not let run for a second is not gone.
    options.insert(options.end(), {"--cluster-enabled", "yes", "--cluster-node-timeout", "10000",
                                   "--cluster-require-full-coverage", "no"});
    for (size_t i = 0; i < 3; i++) {
      // A cluster's servers talk to one another on a second port.
      const uint16_t port = free_port(), bus = free_port();
      std::vector<std::string> own = options;
      own.insert(own.end(), {"--cluster-port", std::to_string(bus)});
      servers_.push_back(std::make_unique<RedisServer>(own, port, tls));
      buses_.push_back(bus);
    }
    constexpr unsigned kEnds[] = {0, 5461, 10923, 16384};
    for (size_t i = 0; i < 3; i++) {
      servers_[i]->ask({"CLUSTER", "ADDSLOTSRANGE", std::to_string(kEnds[i]), std::to_string(kEnds[i + 1] - 1)});
      servers_[i]->ask({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)});
    }
    for (size_t i = 1; i < 3; i++)
      servers_[0]->ask(
          {"CLUSTER", "MEET", "127.0.0.1", std::to_string(servers_[i]->port()), std::to_string(buses_[i])});
    settle();
  }

  RedisServer& operator[](size_t i) { return *servers_[i]; }
  std::string id(size_t i) { return servers_[i]->ask({"CLUSTER", "MYID"}).text; }
  size_t owner(const std::string& name) {
    const long long slot = servers_[0]->ask({"CLUSTER", "KEYSLOT", name}).integer;
    return slot < 5461 ? 0 : slot < 10923 ? 1 : 2;
  }
  // Until all of them know all slots.
  void settle() {
    for (int i = 0; i < 12000; i++) {
      size_t good = 0;
      for (const auto& server : servers_) {
        const std::string info = server->ask({"CLUSTER", "INFO"}).text;
        good += info.find("cluster_state:ok") != std::string::npos &&
                info.find("cluster_slots_ok:16384") != std::string::npos &&
                info.find("cluster_known_nodes:3") != std::string::npos;
      }
      if (good == 3) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw std::runtime_error("the cluster did not settle");
  }

 private:
  std::vector<std::unique_ptr<RedisServer>> servers_;
  std::vector<uint16_t> buses_;
};

}  // namespace neotier::engine
