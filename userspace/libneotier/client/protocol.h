// SPDX-License-Identifier: Apache-2.0
// What neotierd and its clients say to one another over a stream socket: frames of a 16-byte header and a body, fields
// little-endian and of fixed width, docs/neotierd.md lists them. Both ends read with Reader, which never goes past the
// end of what came, and write with Writer.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace neotier::daemon {

inline constexpr uint32_t kProtocol = 1;
inline constexpr char kMagic[8] = {'N', 'E', 'O', 'T', 'I', 'E', 'R', 'D'};
inline constexpr size_t kHeaderBytes = 16;
inline constexpr size_t kKeyBytes = 16;
inline constexpr size_t kMaxName = 63;                 // of a client, of a tier
inline constexpr size_t kFixedBytes = 4096;            // of a body, beside an object's bytes or a list of keys
inline constexpr uint32_t kReplace = 1, kDiscard = 2;  // flags of a put

enum class Operation : uint16_t {
  kHello = 1,
  kPing,
  kPut,
  kGet,
  kLookup,
  kLookupPrefix,
  kTouch,
  kRemove,
  kDescribe,
  kPin,
  kUnpin,
  kMove,
  kWriteBack,
  kFlush,
  kDecide,
  kTierService,
  kMetrics,
  kStatus
};

// A request has code 0; a reply repeats operation and id of its request, and where its code is not 0 (enum
// neotier_code, negated) its body is one line of text.
struct Header {
  uint32_t body_bytes = 0;
  uint16_t operation = 0;
  uint16_t code = 0;
  uint64_t id = 0;
};

// What a hello is answered with.
struct Welcome {
  uint32_t protocol = kProtocol;
  uint32_t abi = 0;
  uint64_t client = 0;       // its number, as in metrics and `neotier top`
  uint64_t max_message = 0;  // bytes of an object, or of a list of keys, in one frame
  uint64_t pinned_bytes = 0;
  uint32_t objects_in_flight = 0;
  uint32_t idle_timeout_s = 0;  // 0: none
};

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& into) : into_(into) {}
  template <typename T>
  void number(T value) {
    static_assert(std::is_unsigned_v<T>);
    for (size_t i = 0; i < sizeof(T); i++) into_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  void bytes(const void* data, size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    into_.insert(into_.end(), from, from + size);
  }
  // At most 65535 bytes of it.
  void text(std::string_view value) {
    value = value.substr(0, UINT16_MAX);
    number(static_cast<uint16_t>(value.size()));
    bytes(value.data(), value.size());
  }

 private:
  std::vector<std::byte>& into_;
};

// After anything was missing, all it gives is 0 and ok() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> from) : from_(from) {}
  template <typename T>
  T number() {
    static_assert(std::is_unsigned_v<T>);
    const std::span<const std::byte> raw = bytes(sizeof(T));
    T value = 0;
    for (size_t i = 0; i < raw.size(); i++) value = static_cast<T>(value | static_cast<T>(raw[i]) << (8 * i));
    return value;
  }
  std::span<const std::byte> bytes(size_t size) {
    if (!ok_ || size > from_.size()) {
      ok_ = false;
      return {};
    }
    const std::span<const std::byte> taken = from_.first(size);
    from_ = from_.subspan(size);
    return taken;
  }
  std::string text(size_t most) {
    const auto size = number<uint16_t>();
    if (size > most) ok_ = false;
    const std::span<const std::byte> raw = bytes(size);
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
  std::span<const std::byte> rest() { return bytes(from_.size()); }
  bool ok() const { return ok_; }
  // Nothing missing, nothing left over.
  bool done() const { return ok_ && from_.empty(); }

 private:
  std::span<const std::byte> from_;
  bool ok_ = true;
};

inline void write_header(std::byte* into, const Header& header) {
  const auto put = [&](size_t at, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) into[at + i] = static_cast<std::byte>(value >> (8 * i));
  };
  put(0, header.body_bytes, 4);
  put(4, header.operation, 2);
  put(6, header.code, 2);
  put(8, header.id, 8);
}

inline Header read_header(std::span<const std::byte> from) {
  Reader reader(from);
  Header header;
  header.body_bytes = reader.number<uint32_t>();
  header.operation = reader.number<uint16_t>();
  header.code = reader.number<uint16_t>();
  header.id = reader.number<uint64_t>();
  return header;
}

inline void write_welcome(Writer& writer, const Welcome& welcome) {
  writer.number(welcome.protocol);
  writer.number(welcome.abi);
  writer.number(welcome.client);
  writer.number(welcome.max_message);
  writer.number(welcome.pinned_bytes);
  writer.number(welcome.objects_in_flight);
  writer.number(welcome.idle_timeout_s);
}

inline Welcome read_welcome(Reader& reader) {
  Welcome welcome;
  welcome.protocol = reader.number<uint32_t>();
  welcome.abi = reader.number<uint32_t>();
  welcome.client = reader.number<uint64_t>();
  welcome.max_message = reader.number<uint64_t>();
  welcome.pinned_bytes = reader.number<uint64_t>();
  welcome.objects_in_flight = reader.number<uint32_t>();
  welcome.idle_timeout_s = reader.number<uint32_t>();
  return welcome;
}

}  // namespace neotier::daemon
