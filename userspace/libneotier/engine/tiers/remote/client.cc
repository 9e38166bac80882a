// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/remote/client.h"

#include <fmt/format.h>
#include <valkey/cluster.h>

#include <charconv>
#include <chrono>
#include <set>

#include "engine/tiers/remote/io_thread.h"
#include "engine/tiers/remote/slot_map.h"
#include "engine/tiers/remote/tls.h"

namespace neotier::engine::remote {

namespace {

// A server that names ever new ones does not make this process grow.
constexpr size_t kMostNodes = 1024;
constexpr uint64_t kFirstPauseNs = 100'000'000;
constexpr uint32_t kMostDoublings = 6;

// Ends when one server has answered, or all have failed.
struct Answers {
  std::mutex mutex;
  std::condition_variable changed;
  size_t left = 0;
  bool good = false;
  Status last;
};

class Ping : public Command {
 public:
  explicit Ping(std::shared_ptr<Answers> answers) : answers_(std::move(answers)) { head = words({"PING"}); }
  void done(const Status& status, const Reply&) override {
    {
      const std::lock_guard lock(answers_->mutex);
      answers_->left--;
      answers_->good |= status.is_ok();
      if (!status.is_ok()) answers_->last = status;
    }
    answers_->changed.notify_all();
    delete this;
  }

 private:
  std::shared_ptr<Answers> answers_;
};

}  // namespace

std::string to_string(const Address& address) {
  return address.port == 0 ? address.host : fmt::format("{}:{}", address.host, address.port);
}

uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

namespace {

void append_count(std::string& text, char of, uint64_t count) {
  char digits[24];
  const char* const end = std::to_chars(digits, digits + sizeof digits, count).ptr;
  text += of;
  text.append(static_cast<const char*>(digits), static_cast<size_t>(end - digits));
  text += "\r\n";
}

std::string counted(std::initializer_list<std::string_view> words, uint64_t count) {
  std::string text;
  size_t size = 16;
  for (const std::string_view one : words) size += one.size() + 16;
  text.reserve(size);
  append_count(text, '*', count);
  for (const std::string_view one : words) {
    append_count(text, '$', one.size());
    text += one;
    text += "\r\n";
  }
  return text;
}

}  // namespace

std::string word(std::string_view word) {
  std::string text;
  append_count(text, '$', word.size());
  text += word;
  return text += "\r\n";
}

std::string words(std::initializer_list<std::string_view> words) { return counted(words, words.size()); }

std::string words_before(std::initializer_list<std::string_view> words, uint64_t last_bytes, unsigned more) {
  std::string text = counted(words, words.size() + 1 + more);
  append_count(text, '$', last_bytes);
  return text;
}

Client::Client(ClientOptions options) : options_(std::move(options)) {
  if (options_.tls) tls_ = std::make_unique<Tls>(options_);
  for (const Address& address : options_.addresses) (void)find_node(address);
  for (unsigned i = 0; i < options_.connections; i++) threads_.push_back(std::make_unique<IoThread>(*this));
  if (options_.cluster) slot_map_ = std::make_unique<SlotMap>(*this);
  // Until an answer or a time-out: who starts wants to know.
  (void)come_back(UINT32_MAX);
}

Client::~Client() {
  for (const std::unique_ptr<IoThread>& thread : threads_) thread->stop();
  slot_map_.reset();
  // What ends may submit something else.
  for (bool left = true; left;) {
    left = false;
    for (const std::unique_ptr<IoThread>& thread : threads_) left |= thread->end_all();
  }
}

Node* Client::find_node(const Address& address) {
  const std::lock_guard lock(mutex_);
  for (Node& node : nodes_) {
    if (node.address == address) return &node;
  }
  if (nodes_.size() >= kMostNodes) return nullptr;
  Node& node = nodes_.emplace_back(address, nodes_.size());
  node.retry_ns = 1;  // not known to answer, and may be asked
  return &node;
}

std::vector<Node*> Client::nodes() const {
  std::vector<Node*> found;
  if (options_.cluster) {
    std::set<Node*> owners;
    for (const std::atomic<Node*>& slot : slots_) owners.insert(slot.load());
    owners.erase(nullptr);
    found.assign(owners.begin(), owners.end());
    return found;
  }
  const std::lock_guard lock(mutex_);
  found.push_back(const_cast<Node*>(&nodes_.front()));
  return found;
}

Node* Client::node_of(const Command& command) const {
  if (command.to) return command.to;
  if (!options_.cluster) return const_cast<Node*>(&nodes_.front());
  return slots_[valkeyClusterGetSlotByKey(const_cast<char*>(command.name.c_str())) % kSlots].load();
}

void Client::submit(CommandQueue& commands) noexcept {
  while (!commands.empty()) {
    Command* const command = commands.pop();
    prepare(*command);
    // To one thread each time: on a single server they are one message.
    threads_[(command->to ? command->to->id : 0) % threads_.size()]->submit(command, false);
  }
  for (const std::unique_ptr<IoThread>& thread : threads_) thread->hurry();
}

void Client::submit(Command* command) noexcept {
  prepare(*command);
  IoThread* least = threads_.front().get();
  for (const std::unique_ptr<IoThread>& thread : threads_) {
    if (thread->load() < least->load()) least = thread.get();
  }
  least->submit(command, true);
}

void Client::prepare(Command& given) noexcept {
  Command* const command = &given;
  command->next_ = nullptr;
  command->attempts_ = command->redirects_ = command->extra_replies_ = 0;
  command->begun_ = command->asking_ = false;
  if (!command->nowhere) command->to = node_of(*command);
  if (!command->nowhere && !command->to && slot_map_) slot_map_->refresh();
}

void Client::sweep() noexcept {
  for (const std::unique_ptr<IoThread>& thread : threads_) thread->sweep();
}

bool Client::in_service() const {
  if (!options_.cluster) return !nodes_.front().down();
  const Node* last = nullptr;
  for (const std::atomic<Node*>& slot : slots_) {
    const Node* const node = slot.load(std::memory_order_relaxed);
    if (node && node != last && !node->down()) return true;
    last = node;
  }
  return false;
}

bool Client::answers(const std::string& name) const {
  if (!options_.cluster) return !nodes_.front().down();
  const Node* const node = slots_[valkeyClusterGetSlotByKey(const_cast<char*>(name.c_str())) % kSlots].load();
  if (!node) return false;
  const uint64_t retry = node->retry_ns.load();
  // One that may be asked again is: nothing else would find out.
  return retry == 0 || now_ns() >= retry;
}

Status Client::come_back(uint32_t wait_ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
  std::string why;
  std::vector<Node*> all = nodes();
  if (slot_map_ && (all.empty() || wait_ms == UINT32_MAX)) {
    why = slot_map_->refresh_and_wait(until);
    all = nodes();
  } else if (slot_map_) {
    slot_map_->refresh();
  }
  const auto answers = std::make_shared<Answers>();
  answers->left = all.size();
  for (Node* node : all) {
    uint64_t retry = node->retry_ns.load();
    while (retry != 0 && !node->retry_ns.compare_exchange_weak(retry, 1)) {
    }
    auto* const ping = new Ping(answers);
    ping->to = node;
    submit(ping);
  }
  std::unique_lock lock(answers->mutex);
  const bool ended = answers->changed.wait_until(lock, until, [&] { return answers->good || answers->left == 0; });
  if (answers->good) return Status::ok();
  std::string text = ended ? answers->last.what() : fmt::format("{}: no answer yet", options_.name);
  if (all.empty()) {
    text = fmt::format("{}: no server of the cluster answers: {}", options_.name, why);
    const std::lock_guard own(mutex_);
    trouble_ = text;
  }
  return {Code::kGone, text};
}

std::string Client::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void Client::mark_down(Node& node, const std::string& why) noexcept {
  const uint32_t failures = node.failures.fetch_add(1);
  node.retry_ns = now_ns() + (kFirstPauseNs << std::min(failures, kMostDoublings));
  if (slot_map_) slot_map_->refresh();
  try {
    const std::lock_guard lock(mutex_);
    trouble_ = fmt::format("{}: {}: {}", options_.name, to_string(node.address), why);
  } catch (const std::bad_alloc&) {
    // It stays what it was.
  }
}

void Client::mark_up(Node& node) noexcept {
  node.failures = 0;
  node.retry_ns = 0;
  connects_++;
}

Status Client::unavailable(const Node& node) const noexcept {
  return status_of(in_service() ? Code::kTimeout : Code::kGone, [&] {
    const std::string why = trouble();
    return why.empty() ? fmt::format("{}: {} does not answer", options_.name, to_string(node.address)) : why;
  });
}

}  // namespace neotier::engine::remote
