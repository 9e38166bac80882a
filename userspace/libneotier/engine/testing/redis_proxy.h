// SPDX-License-Identifier: Apache-2.0
// Between a tier and its server: holds commands, answers them with errors or with what a test makes up, and is gone at
// its command. Passes on one command of a connection at a time.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cctype>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <list>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace neotier::engine {

class RedisProxy {
 public:
  // What to answer to a command, given the server's own answer; "" closes the connection. Called by any thread.
  using Answer = std::function<std::string(const std::vector<std::string>& command, std::string reply)>;

  RedisProxy(std::string path, std::string upstream) : path_(std::move(path)), upstream_(std::move(upstream)) {
    listen_now();
  }
  ~RedisProxy() { lose(); }

  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    {
      const std::lock_guard lock(mutex_);
      held_ = false;
    }
    changed_.notify_all();
  }
  // The next so many of these commands are answered with an error, and not passed on.
  void fail(bool writes, unsigned count) {
    const std::lock_guard lock(mutex_);
    (writes ? failing_writes_ : failing_reads_) = count;
  }
  void answer(Answer answer) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }
  // Nobody listens any more, and all connections end. Ends a hold.
  void lose() {
    {
      const std::lock_guard lock(mutex_);
      if (lost_) return;
      lost_ = true;
      held_ = false;
      unlink(path_.c_str());
      shutdown(listener_, SHUT_RDWR);
      for (const int fd : open_) shutdown(fd, SHUT_RDWR);
    }
    changed_.notify_all();
    accepter_.join();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    close(listener_);
  }
  void mend() {
    {
      const std::lock_guard lock(mutex_);
      if (!lost_) return;
      lost_ = false;
    }
    listen_now();
  }

 private:
  static sockaddr_un address(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    return address;
  }
  void listen_now() {
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un at = address(path_);
    unlink(path_.c_str());
    if (bind(listener_, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 || listen(listener_, 64) != 0)
      throw std::runtime_error("the proxy cannot listen");
    accepter_ = std::thread([this] {
      while (true) {
        const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) return;
        const std::lock_guard lock(mutex_);
        if (lost_) {
          close(fd);
          return;
        }
        open_.push_back(fd);
        threads_.emplace_back([this, fd] { serve(fd); });
      }
    });
  }

  // Reads from a socket as the protocol is read: by lines and by counts.
  struct Reader {
    int fd;
    std::string buffer = {};
    bool more() {
      char some[65536];
      const ssize_t got = recv(fd, some, sizeof some, 0);
      if (got <= 0) return false;
      buffer.append(some, static_cast<size_t>(got));
      return true;
    }
    bool line(std::string& out) {
      size_t end;
      while ((end = buffer.find("\r\n")) == std::string::npos)
        if (!more()) return false;
      out = buffer.substr(0, end + 2);
      buffer.erase(0, end + 2);
      return true;
    }
    bool bytes(size_t count, std::string& out) {
      while (buffer.size() < count)
        if (!more()) return false;
      out = buffer.substr(0, count);
      buffer.erase(0, count);
      return true;
    }
  };
  static bool read_command(Reader& reader, std::vector<std::string>& words, std::string& raw) {
    std::string line, word;
    words.clear();
    if (!reader.line(raw)) return false;
    for (int left = std::stoi(raw.substr(1)); left > 0; left--) {
      if (!reader.line(line) || !reader.bytes(std::stoul(line.substr(1)) + 2, word)) return false;
      raw += line + word;
      words.push_back(word.substr(0, word.size() - 2));
    }
    return true;
  }
  static bool read_reply(Reader& reader, std::string& raw) {
    std::string line, rest;
    if (!reader.line(line)) return false;
    raw += line;
    const int count = line[0] == '$' || line[0] == '*' ? std::stoi(line.substr(1)) : 0;
    if (line[0] == '$' && count >= 0) {
      if (!reader.bytes(static_cast<size_t>(count) + 2, rest)) return false;
      raw += rest;
    }
    for (int i = 0; line[0] == '*' && i < count; i++)
      if (!read_reply(reader, raw)) return false;
    return true;
  }
  static bool write_all(int fd, const std::string& bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t some = send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (some <= 0) return false;
      done += static_cast<size_t>(some);
    }
    return true;
  }

  void serve(int fd) {
    const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un at = address(upstream_);
    bool good = connect(server, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
    Reader from_client{fd}, from_server{server};
    std::vector<std::string> words;
    std::string raw;
    while (good && read_command(from_client, words, raw)) {
      Answer make_up;
      bool fails = false;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !held_; });
        if (lost_) break;
        unsigned none = 0;
        unsigned& left = words[0] == "SET"                             ? failing_writes_
                         : words[0] == "GET" || words[0] == "GETRANGE" ? failing_reads_
                                                                       : none;
        fails = left > 0;
        if (fails) left--;
        make_up = answer_;
      }
      std::string reply;
      if (fails) {
        reply = "-ERR failed as the test wills\r\n";
      } else if (!write_all(server, raw) || !read_reply(from_server, reply)) {
        break;
      } else if (make_up) {
        reply = make_up(words, std::move(reply));
      }
      good = !reply.empty() && write_all(fd, reply);
    }
    const std::lock_guard lock(mutex_);
    open_.remove(fd);
    close(fd);
    close(server);
  }

  const std::string path_, upstream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, lost_ = false;
  unsigned failing_reads_ = 0, failing_writes_ = 0;
  Answer answer_;
  int listener_ = -1;
  std::list<int> open_;
  std::thread accepter_;
  std::list<std::thread> threads_;
};

}  // namespace neotier::engine
