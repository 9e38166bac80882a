// SPDX-License-Identifier: Apache-2.0
#include "daemon/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <new>

#include "engine/c_api.h"

namespace neotier::daemon {

using engine::Key;

namespace {

// The text of an error on the wire.
constexpr size_t kMostText = 1024;

Key key_from(Reader& in) {
  Key key{};
  const std::span<const std::byte> raw = in.bytes(kKeyBytes);
  if (raw.size() == sizeof key) std::memcpy(&key, raw.data(), sizeof key);
  return key;
}

// A count and as many keys, to the end of the body.
std::span<const std::byte> keys_from(Reader& in) {
  const auto nr = in.number<uint32_t>();
  return in.bytes(size_t{nr} * kKeyBytes);
}

std::vector<Key> keys_of(std::span<const std::byte> raw) {
  std::vector<Key> keys(raw.size() / kKeyBytes);
  if (!keys.empty()) std::memcpy(keys.data(), raw.data(), raw.size());
  return keys;
}

void write_reply(const Header& request, int code, std::span<const std::byte> body, Buffer& reply) {
  std::byte* at = reply.make(kHeaderBytes + body.size());
  write_header(at, {static_cast<uint32_t>(body.size()), request.operation, static_cast<uint16_t>(-code), request.id});
  if (!body.empty()) std::memcpy(at + kHeaderBytes, body.data(), body.size());
}

uint64_t pending(const std::vector<engine::TicketRef>& tickets) {
  uint64_t sum = 0;
  for (const engine::TicketRef& ticket : tickets) sum += ticket->progress().pending;
  return sum;
}

void forget_ended(std::vector<engine::TicketRef>& tickets) {
  std::erase_if(tickets, [](const engine::TicketRef& ticket) { return ticket->progress().pending == 0; });
}

}  // namespace

Session::Session(Service& service, Limits limits, std::shared_ptr<Client> client)
    : service_(service), limits_(limits), client_(std::move(client)), session_(service.engine.open_session()) {}

Session::~Session() {
  pins_.give_back_all([this](uint64_t pin) { client_->user->pins.give_back(pin); });
  service_.engine.close_session(session_);
}

void Session::abandon(const engine::TicketRef& waiting) {
  if (waiting) service_.engine.cancel(waiting);
  service_.engine.cancel(droppable_);
}

Session::Waits Session::waits(const Header& header) {
  constexpr uint32_t kFewKeys = 256 * kKeyBytes + sizeof(uint32_t);
  switch (static_cast<Operation>(header.operation)) {
    case Operation::kPing:
      return Waits::kNever;
    case Operation::kLookupPrefix:
      return header.body_bytes <= kFewKeys ? Waits::kBriefly : Waits::kLong;
    case Operation::kHello:
    case Operation::kLookup:
    case Operation::kTouch:
    case Operation::kDescribe:
    case Operation::kPin:
    case Operation::kUnpin:
    case Operation::kDecide:
      return Waits::kBriefly;
    default:
      return Waits::kLong;
  }
}

uint64_t Session::reply_bytes(const Header& header, std::span<const std::byte> body) {
  if (static_cast<Operation>(header.operation) != Operation::kGet) return 0;
  Reader in(body);
  (void)in.bytes(kKeyBytes);
  (void)in.number<uint64_t>();
  const auto bytes = in.number<uint64_t>();
  return in.done() ? bytes : 0;
}

void Session::refuse(const Header& header, int code, const std::string& what, Buffer& reply) {
  write_reply(header, code, std::as_bytes(std::span(what.data(), std::min(what.size(), kMostText))), reply);
}

Session::Outcome Session::run(const Header& header, std::span<const std::byte> body, Buffer& reply) {
  Outcome outcome;
  const auto operation = static_cast<Operation>(header.operation);
  try {
    if (!greeted_ && operation != Operation::kHello)
      throw Refusal{NEOTIER_EINVALID, "the first request of a connection is a hello"};
    Reader in(body);
    std::vector<std::byte> answer;
    Writer out(answer);
    const auto key_alone = [&] {
      const Key key = key_from(in);
      if (!in.done()) throw Refusal{NEOTIER_EINVALID, "the body of this request is one key"};
      return key;
    };
    const auto nothing = [&] {
      if (!in.done()) throw Refusal{NEOTIER_EINVALID, "this request has no body"};
    };
    const auto check = [](const engine::Status& status) {
      if (!status) throw Refusal{c_api::code_of(status.code()), status.what()};
    };
    switch (operation) {
      case Operation::kHello:
        hello(in, out);
        break;
      case Operation::kPing:
        nothing();
        break;
      case Operation::kPut:
        put(in);
        break;
      case Operation::kGet:
        get(header, in, reply);
        service_.counters.requests++;
        return outcome;
      case Operation::kLookup:
        lookup(in, out);
        break;
      case Operation::kLookupPrefix:
        lookup_prefix(in, out);
        break;
      case Operation::kTouch:
        check(service_.engine.touch(key_alone()));
        break;
      case Operation::kRemove:
        check(service_.engine.remove(key_alone()));
        break;
      case Operation::kDescribe:
        describe(in);
        break;
      case Operation::kPin:
        pin(in, out);
        break;
      case Operation::kUnpin:
        unpin(in);
        break;
      case Operation::kMove:
      case Operation::kWriteBack:
        outcome = move(in, operation == Operation::kWriteBack);
        if (outcome.ticket && outcome.until_ns == 0) {
          finish(header, *outcome.ticket, reply);
          outcome.ticket = nullptr;
        }
        service_.counters.requests++;
        return outcome;
      case Operation::kFlush:
        nothing();
        check(service_.engine.flush());
        break;
      case Operation::kDecide:
        decide(in, out);
        break;
      case Operation::kTierService:
        tier_service(in);
        break;
      case Operation::kMetrics: {
        const auto format = in.number<uint32_t>();
        if (!in.done() || format > NEOTIER_JSON) throw Refusal{NEOTIER_EINVALID, "no such format of metrics"};
        const std::string text = service_.metrics(format);
        out.bytes(text.data(), text.size());
        break;
      }
      case Operation::kStatus: {
        nothing();
        const std::string text = service_.status();
        out.bytes(text.data(), text.size());
        break;
      }
      default:
        throw Refusal{NEOTIER_EUNSUPPORTED, fmt::format("no operation {}", header.operation)};
    }
    write_reply(header, 0, answer, reply);
  } catch (const Refusal& refusal) {
    service_.counters.request_errors++;
    outcome.hang_up = !greeted_;
    refuse(header, refusal.code, refusal.what, reply);
  } catch (const std::bad_alloc&) {
    service_.counters.request_errors++;
    refuse(header, NEOTIER_ENOMEM, "neotierd is out of memory", reply);
  } catch (const std::exception& error) {
    service_.counters.request_errors++;
    refuse(header, NEOTIER_EINVALID, error.what(), reply);
  }
  service_.counters.requests++;
  return outcome;
}

void Session::hello(Reader& in, Writer& out) {
  const std::span<const std::byte> magic = in.bytes(sizeof kMagic);
  if (greeted_) throw Refusal{NEOTIER_EINVALID, "a second hello"};
  if (magic.size() != sizeof kMagic || std::memcmp(magic.data(), kMagic, sizeof kMagic) != 0)
    throw Refusal{NEOTIER_EINVALID, "this is neotierd; what was sent is not its protocol"};
  const auto protocol = in.number<uint32_t>();
  const auto abi = in.number<uint32_t>();
  if (protocol != kProtocol)
    throw Refusal{NEOTIER_EUNSUPPORTED, fmt::format("protocol {}; this neotierd speaks {}", protocol, kProtocol)};
  if (abi != NEOTIER_ABI)
    throw Refusal{NEOTIER_EUNSUPPORTED, fmt::format("ABI {}; this neotierd has {}", abi, NEOTIER_ABI)};
  std::string name = in.text(kMaxName);
  if (!in.done() || !std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c <= '~'; }))
    throw Refusal{NEOTIER_EINVALID, fmt::format("a client's name has up to {} printable ASCII characters", kMaxName)};
  client_->rename(std::move(name));
  greeted_ = true;
  write_welcome(out, {kProtocol, NEOTIER_ABI, client_->id, limits_.max_message, limits_.pinned_bytes,
                      limits_.objects_in_flight, limits_.idle_timeout_s});
}

void Session::put(Reader& in) {
  const Key key = key_from(in);
  engine::PutOptions options;
  const auto kind = in.number<uint32_t>();
  options.recompute_ns = in.number<uint64_t>();
  const auto flags = in.number<uint32_t>();
  options.tier = in.text(kMaxName);
  const std::span<const std::byte> data = in.rest();
  if (!in.done() || kind > NEOTIER_OBJECT_PLAIN || (flags & ~(kReplace | kDiscard)) != 0)
    throw Refusal{NEOTIER_EINVALID, "a put is key, kind, cost, flags, tier and the object's bytes"};
  if (kind) options.kind = static_cast<engine::ObjectKind>(kind);
  options.replace = (flags & kReplace) != 0;
  options.discard = (flags & kDiscard) != 0;
  if (data.size() > limits_.max_message)
    throw Refusal{NEOTIER_EINVALID,
                  fmt::format("{} bytes; [socket].max_message is {}", data.size(), limits_.max_message)};
  if (const engine::Status status = service_.engine.put(key, data, options); !status)
    throw Refusal{c_api::code_of(status.code()), status.what()};
}

void Session::get(const Header& header, Reader& in, Buffer& reply) {
  const Key key = key_from(in);
  const auto offset = in.number<uint64_t>();
  const auto bytes = in.number<uint64_t>();
  if (!in.done()) throw Refusal{NEOTIER_EINVALID, "a get is key, offset and number of bytes"};
  if (bytes > limits_.max_message)
    throw Refusal{NEOTIER_EINVALID, fmt::format("{} bytes; [socket].max_message is {}", bytes, limits_.max_message)};
  // Straight into the reply; a failure writes another one over it.
  std::byte* at = reply.make(kHeaderBytes + bytes);
  if (const engine::Status status = service_.engine.get(key, offset, {at + kHeaderBytes, bytes}); !status)
    throw Refusal{c_api::code_of(status.code()), status.what()};
  write_header(at, {static_cast<uint32_t>(bytes), header.operation, 0, header.id});
}

void Session::lookup(Reader& in, Writer& out) {
  const Key key = key_from(in);
  if (!in.done()) throw Refusal{NEOTIER_EINVALID, "the body of this request is one key"};
  const engine::Result<engine::ObjectInfo> info = service_.engine.lookup(key);
  if (!info) throw Refusal{c_api::code_of(info.status().code()), info.status().what()};
  out.number(static_cast<uint32_t>(info->kind));
  out.number(info->bytes);
  out.number(info->recompute_ns);
  out.number(info->pins);
  out.number(static_cast<uint32_t>(info->moving));
  out.number(static_cast<uint32_t>(info->recovered));
  out.text(info->tier);
  out.text(info->second_tier);
}

void Session::lookup_prefix(Reader& in, Writer& out) {
  const std::span<const std::byte> raw = keys_from(in);
  if (!in.done()) throw Refusal{NEOTIER_EINVALID, "a lookup of a prefix is a count and as many keys"};
  out.number(static_cast<uint32_t>(service_.engine.lookup_prefix(keys_of(raw))));
}

void Session::describe(Reader& in) {
  const Key key = key_from(in);
  const auto kind = in.number<uint32_t>();
  const auto recompute_ns = in.number<uint64_t>();
  if (!in.done() || kind > NEOTIER_OBJECT_PLAIN) throw Refusal{NEOTIER_EINVALID, "a description is key, kind and cost"};
  if (const engine::Status status = service_.engine.describe(key, static_cast<engine::ObjectKind>(kind), recompute_ns);
      !status)
    throw Refusal{c_api::code_of(status.code()), status.what()};
}

void Session::pin(Reader& in, Writer& out) {
  const Key key = key_from(in);
  auto lease_ms = in.number<uint64_t>();
  if (!in.done()) throw Refusal{NEOTIER_EINVALID, "a pin is key and lease"};
  if (limits_.max_lease_ms) lease_ms = lease_ms ? std::min(lease_ms, limits_.max_lease_ms) : limits_.max_lease_ms;
  lease_ms = std::min<uint64_t>(lease_ms, UINT64_MAX / 4000000);
  const engine::Result<engine::PinResult> pinned = service_.engine.pin(session_, key, lease_ms);
  if (!pinned) throw Refusal{c_api::code_of(pinned.status().code()), pinned.status().what()};
  const uint64_t now = service_.clock.now_ns();
  const uint64_t expires = lease_ms ? now + lease_ms * 1000000 : UINT64_MAX;
  bool mine = false, users = false;
  try {
    mine = pins_.take(pinned->id, pinned->bytes, expires, now, limits_.pins, limits_.pinned_bytes);
    users = mine &&
            client_->user->pins.take(pinned->id, pinned->bytes, expires, now, UINT64_MAX, limits_.user_pinned_bytes);
  } catch (const std::bad_alloc&) {
    (void)forget_pin(pinned->id);
    throw;
  }
  if (!users) {
    (void)forget_pin(pinned->id);
    service_.counters.limited_requests++;
    const auto [pins, bytes] = (mine ? client_->user->pins : pins_).pins_and_bytes();
    throw Refusal{NEOTIER_EBUSY, fmt::format("{} pins of {} bytes{}, {} more: over [client].{}; unpin some", pins,
                                             bytes, mine ? " of all of this user's connections" : "", pinned->bytes,
                                             mine ? fmt::format("user_pinned_bytes ({})", limits_.user_pinned_bytes)
                                                  : fmt::format("pins ({}) or pinned_bytes ({})", limits_.pins,
                                                                limits_.pinned_bytes))};
  }
  show_pins();
  out.number(pinned->id);
  out.number(pinned->bytes);
}

// Its lease may have ended before.
engine::Status Session::forget_pin(uint64_t pin) {
  pins_.give_back(pin);
  client_->user->pins.give_back(pin);
  return service_.engine.unpin(session_, pin);
}

void Session::show_pins() {
  const auto [pins, bytes] = pins_.pins_and_bytes();
  client_->pins = pins;
  client_->pinned_bytes = bytes;
}

void Session::unpin(Reader& in) {
  const auto id = in.number<uint64_t>();
  if (!in.done()) throw Refusal{NEOTIER_EINVALID, "an unpin is the number of a pin"};
  if (!pins_.has(id)) throw Refusal{NEOTIER_ENOTFOUND, "no such pin of this session; its lease may have ended"};
  const engine::Status status = forget_pin(id);
  show_pins();
  if (!status) throw Refusal{c_api::code_of(status.code()), status.what()};
}

Session::Outcome Session::move(Reader& in, bool write_back) {
  const auto cls = write_back ? uint32_t{NEOTIER_WRITE_BACK} : in.number<uint32_t>();
  const auto wait_ms = in.number<uint64_t>();
  const std::string tier = write_back ? "" : in.text(kMaxName);
  const std::span<const std::byte> raw = keys_from(in);
  if (!in.done() || cls > NEOTIER_WRITE_BACK)
    throw Refusal{NEOTIER_EINVALID, "a move is class, wait, tier, a count and as many keys"};
  const uint64_t nr = raw.size() / kKeyBytes;
  // Most have ended by the time that it matters how many have not.
  if (moving_ + nr > limits_.objects_in_flight || moves_.size() + droppable_.size() >= count_at_) {
    forget_ended(moves_);
    forget_ended(droppable_);
    moving_ = pending(moves_) + pending(droppable_);
    count_at_ = 2 * (moves_.size() + droppable_.size()) + 64;
  }
  const uint64_t already = moving_;
  client_->objects_in_flight = already;
  if (already + nr > limits_.objects_in_flight) {
    service_.counters.limited_requests++;
    throw Refusal{NEOTIER_EBUSY, fmt::format("{} objects on their way, {} more: over [client].objects_in_flight ({})",
                                             already, nr, limits_.objects_in_flight)};
  }
  Outcome outcome;
  if (nr == 0) {
    outcome.ticket = std::make_shared<engine::Ticket>();
    return outcome;
  }
  // Its place first: what is on its way without one could not be ended.
  std::vector<engine::TicketRef>& kept = cls == NEOTIER_WRITE_BACK ? moves_ : droppable_;
  if (kept.size() == kept.capacity()) kept.reserve(2 * kept.size() + 16);
  outcome.ticket = write_back ? service_.engine.write_back(keys_of(raw))
                              : service_.engine.move(keys_of(raw), tier, static_cast<engine::MoveClass>(cls));
  kept.push_back(outcome.ticket);
  moving_ += outcome.ticket->progress().pending;
  client_->objects_in_flight = moving_;
  if (wait_ms) {
    const uint64_t now = service_.clock.now_ns();
    const uint64_t wait_ns = std::min<uint64_t>(wait_ms, UINT64_MAX / 2000000) * 1000000;
    outcome.until_ns = wait_ns > UINT64_MAX - now ? UINT64_MAX : now + wait_ns;
  }
  return outcome;
}

void Session::finish(const Header& header, const engine::Ticket& ticket, Buffer& reply) {
  const engine::Ticket::Progress progress = ticket.progress();
  const engine::Status status = ticket.wait_ns(0);
  if (progress.pending == 0 && !status) return refuse(header, c_api::code_of(status.code()), status.what(), reply);
  std::vector<std::byte> answer;
  Writer out(answer);
  out.number(progress.pending);
  out.number(progress.done);
  out.number(progress.failed);
  write_reply(header, 0, answer, reply);
}

void Session::decide(Reader& in, Writer& out) {
  const Key key = key_from(in);
  const auto queue_ns = in.number<uint64_t>();
  const auto cpu_ns = in.number<uint64_t>();
  const std::string tier = in.text(kMaxName);
  if (!in.done()) throw Refusal{NEOTIER_EINVALID, "a decision is key, queue, time on the CPU and tier"};
  const engine::Result<engine::Decision> made = service_.engine.decide(key, tier, queue_ns, cpu_ns);
  if (!made) throw Refusal{c_api::code_of(made.status().code()), made.status().what()};
  out.number(static_cast<uint32_t>(made->choice));
  out.number(made->load_ns);
  out.number(made->recompute_ns);
  out.number(made->cpu_ns);
}

void Session::tier_service(Reader& in) {
  const std::string tier = in.text(kMaxName);
  const auto in_service = in.number<uint32_t>();
  if (!in.done() || in_service > 1) throw Refusal{NEOTIER_EINVALID, "this request is a tier and 0 or 1"};
  // It concerns every client.
  if (client_->peer.uid != 0 && client_->peer.uid != geteuid())
    throw Refusal{NEOTIER_EUNSUPPORTED, "only root, or the user neotierd runs as, takes tiers out of service"};
  if (const engine::Status status = service_.engine.set_in_service(tier, in_service == 1); !status)
    throw Refusal{c_api::code_of(status.code()), status.what()};
}

}  // namespace neotier::daemon
