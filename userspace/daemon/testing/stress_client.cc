// SPDX-License-Identifier: Apache-2.0
// A client that puts, gets, pins and moves at random and knows what it must find: run by tests/cli/neotierd_kill.py.
// stress_client SOCKET SEED MODE; MODE: run (says "ready", goes on until standard input says "pause", "sweep" or
// "end"), or half (holds pins and stops in the middle of a request, says "ready" and waits to be killed). Exit status
// 1: wrong data.
//
// An object's bytes follow from its header (number, version, writer), so that whoever wrote it, what is torn or mixed
// up shows. Numbers below kShared are everybody's; above, each writer has its own and knows the version it wrote last.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "client/protocol.h"
#include "neotier_client.h"

namespace {

constexpr uint64_t kShared = 48, kMine = 16;

struct Label {
  uint64_t number, version, writer;
};

[[noreturn]] void wrong(const std::string& what) {
  std::printf("WRONG %s\n", what.c_str());
  std::fflush(stdout);
  std::exit(1);
}

neotier_object_key key_of(uint64_t number) {
  neotier_object_key key{};
  std::memcpy(key.bytes, &number, sizeof number);
  return key;
}

size_t bytes_of(uint64_t number) { return 1024 + (number * 7919) % 97 * 4096; }

void fill(const Label& label, std::vector<uint64_t>& words) {
  words.resize(bytes_of(label.number) / 8);
  std::memcpy(words.data(), &label, sizeof label);
  uint64_t state = label.number * 0x9e3779b97f4a7c15 ^ label.version << 20 ^ label.writer;
  for (size_t i = 3; i < words.size(); i++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    words[i] = state;
  }
}

class Stress {
 public:
  Stress(const char* path, uint64_t seed) : random_(seed), writer_(seed) {
    neotier_client_options options{};
    options.struct_bytes = sizeof options;
    options.name = "stress";
    client_ = neotier_client_connect(path, &options);
    if (!client_) wrong(neotier_error());
  }
  ~Stress() { neotier_client_close(client_); }
  Stress(const Stress&) = delete;
  Stress& operator=(const Stress&) = delete;

  void step() {
    const uint64_t dice = random_() % 100, number = pick();
    if (dice < 35) {
      (void)put(number);
    } else if (dice < 75) {
      get(number);
    } else if (dice < 85) {
      pin(number);
    } else if (dice < 95) {
      if (!pins_.empty()) unpin();
    } else {
      const neotier_object_key key = key_of(number);
      const char* tier = random_() % 2 ? "near" : "far";
      accept("move", neotier_client_move(client_, &key, 1, tier, NEOTIER_DEMAND, random_() % 2 ? 100 : 0, nullptr));
    }
    operations_++;
  }
  size_t pins() const { return pins_.size(); }
  uint64_t operations() const { return operations_; }
  void pin_some() {
    for (uint64_t number = 0; pins_.size() < 4; number = (number + 1) % kShared) {
      (void)put(number);
      pin(number);
    }
  }
  // Nobody else is alive: nothing may be in the way of replacing everything.
  void sweep() {
    while (!pins_.empty()) unpin();
    for (uint64_t number = 0; number < kShared; number++) {
      if (const int code = put(number)) wrong("sweep: put " + std::to_string(number) + ": " + std::to_string(code));
      get(number);
    }
  }

 private:
  uint64_t pick() { return random_() % 3 ? random_() % kShared : kShared + writer_ * kMine + random_() % kMine; }
  // What a client must expect where others are at work and room is short.
  static void accept(const char* what, int code) {
    if (code == 0 || code == NEOTIER_ENOTFOUND || code == NEOTIER_EBUSY || code == NEOTIER_EFULL ||
        code == NEOTIER_ECANCELLED || code == NEOTIER_ETIMEOUT)
      return;
    wrong(std::string(what) + ": " + neotier_error());
  }
  int put(uint64_t number) {
    const Label label{number, ++version_, writer_};
    fill(label, words_);
    neotier_put_options options{};
    options.struct_bytes = sizeof options;
    options.replace = 1;
    options.recompute_ns = 1000000;
    const neotier_object_key key = key_of(number);
    const int code = neotier_client_put(client_, &key, words_.data(), bytes_of(number), &options);
    accept("put", code);
    if (code == 0) last_[number] = label.version;
    return code;
  }
  void get(uint64_t number) {
    found_.assign(bytes_of(number) / 8, 0);
    const neotier_object_key key = key_of(number);
    const int code = neotier_client_get(client_, &key, 0, found_.data(), found_.size() * 8);
    accept("get", code);
    if (code) return;
    Label label{};
    std::memcpy(&label, found_.data(), sizeof label);
    if (label.number != number) wrong("bytes of another object");
    fill(label, words_);
    if (words_ != found_) wrong("bytes that nobody wrote");
    if (number >= kShared && label.version != last_[number]) wrong("an older version of what only this client writes");
  }
  void pin(uint64_t number) {
    const neotier_object_key key = key_of(number);
    uint64_t pin = 0;
    const int code = neotier_client_pin(client_, &key, 0, &pin, nullptr);
    accept("pin", code);
    if (code) return;
    pins_.push_back(pin);
    get(number);
    if (pins_.size() > 12) unpin();
  }
  void unpin() {
    const size_t at = random_() % pins_.size();
    if (const int code = neotier_client_unpin(client_, pins_[at])) wrong("unpin: " + std::to_string(code));
    pins_[at] = pins_.back();
    pins_.pop_back();
  }

  neotier_client* client_;
  std::mt19937_64 random_;
  uint64_t writer_, version_ = 0, operations_ = 0;
  std::map<uint64_t, uint64_t> last_;
  std::vector<uint64_t> pins_, words_, found_;
};

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Half of a put, on a connection of its own.
void send_half(const char* path) {
  using namespace neotier::daemon;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) wrong("connect");
  std::vector<std::byte> hello, frame(kHeaderBytes);
  Writer out(hello);
  out.bytes(kMagic, sizeof kMagic);
  out.number(kProtocol);
  out.number(NEOTIER_ABI);
  out.text("half");
  write_header(frame.data(), {static_cast<uint32_t>(hello.size()), 1, 0, 1});
  frame.insert(frame.end(), hello.begin(), hello.end());
  (void)!send(fd, frame.data(), frame.size(), MSG_NOSIGNAL);
  char welcome[kHeaderBytes + 40];
  if (recv(fd, welcome, sizeof welcome, MSG_WAITALL) != sizeof welcome) wrong("hello");
  frame.assign(kHeaderBytes + 90000, std::byte{1});
  write_header(frame.data(), {200000, static_cast<uint16_t>(Operation::kPut), 0, 2});
  (void)!send(fd, frame.data(), frame.size(), MSG_NOSIGNAL);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  Stress stress(argv[1], std::strtoull(argv[2], nullptr, 10));
  if (std::string(argv[3]) == "half") {
    stress.pin_some();
    send_half(argv[1]);
    say("ready");
    pause();
  }
  say("ready");
  for (;;) {
    pollfd input{0, POLLIN, 0};
    if (poll(&input, 1, 0) == 0) {
      stress.step();
      continue;
    }
    std::string word;
    if (!std::getline(std::cin, word) || word == "end") return 0;
    if (word == "sweep") stress.sweep();
    say("pins " + std::to_string(stress.pins()) + " operations " + std::to_string(stress.operations()));
    // Stands still until the next word.
    poll(&input, 1, -1);
  }
}
