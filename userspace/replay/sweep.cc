// SPDX-License-Identifier: Apache-2.0
#include "replay/sweep.h"

#include <fmt/format.h>

#include "replay/jobs.h"
#include "report/page.h"

namespace neotier::replay {

namespace {

using Json = nlohmann::ordered_json;

// FNV-1a over what a replay sees: enough to tell traces and options apart, which is all it is for.
class Fingerprint {
 public:
  void add(uint64_t value) {
    for (int i = 0; i < 8; i++, value >>= 8) hash_ = (hash_ ^ (value & 255)) * 0x100000001b3u;
  }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

std::string fingerprint(const KvTrace& trace, const KvOptions& options) {
  Fingerprint f;
  for (const KvRequest& r : trace.requests) {
    f.add(r.time_ns);
    f.add(r.blocks);
    f.add(r.category);
    for (uint32_t k = 0; k < r.blocks; k++) f.add(trace.blocks[r.first + k]);
  }
  f.add(trace.block_tokens);
  f.add(options.block_bytes);
  f.add(options.history_blocks);
  f.add(options.seed);
  return f.text();
}

KvResult from_json(const Json& j) {
  KvResult r;
  r.policy = j.at("policy");
  r.capacity_blocks = j.at("capacity_blocks");
  r.requests = j.at("requests");
  r.block_refs = j.at("block_refs");
  r.hits = j.at("hits");
  r.prefix_hits = j.at("prefix_hits");
  r.inserts = j.at("inserts");
  r.evictions = j.at("evictions");
  r.bypassed = j.at("bypassed");
  r.state_bytes = j.at("state_bytes");
  r.objects = j.at("objects");
  r.cpu_seconds = j.at("cpu_seconds");
  return r;
}

}  // namespace

nlohmann::ordered_json to_json(const KvResult& r) {
  Json j;
  j["policy"] = r.policy;
  j["capacity_blocks"] = r.capacity_blocks;
  j["hit_rate"] = r.hit_rate();
  j["prefix_hit_rate"] = r.prefix_hit_rate();
  j["requests"] = r.requests;
  j["block_refs"] = r.block_refs;
  j["hits"] = r.hits;
  j["prefix_hits"] = r.prefix_hits;
  j["inserts"] = r.inserts;
  j["evictions"] = r.evictions;
  j["bypassed"] = r.bypassed;
  j["state_bytes"] = r.state_bytes;
  j["objects"] = r.objects;
  j["cpu_seconds"] = r.cpu_seconds;
  return j;
}

nlohmann::ordered_json to_json(const SweepOptions& options, const KvTrace& trace,
                               const std::vector<KvResult>& results) {
  Json j;
  j["trace"] = options.trace_name;
  j["format"] = format_name(trace.format);
  j["requests"] = trace.requests.size();
  j["block_refs"] = trace.blocks.size();
  j["distinct_blocks"] = trace.objects;
  j["cells"] = Json::array();
  for (const KvResult& r : results) j["cells"].push_back(to_json(r));
  return j;
}

std::vector<KvResult> sweep(const KvTrace& trace, const SweepOptions& options, const std::atomic<bool>& cancel,
                            const std::function<void(size_t done, size_t all)>& done) {
  std::vector<Job> jobs;
  for (const std::string& name : options.policies) {
    const placement::PolicyRef policy = placement::find_policy(name, NEOTIER_KV);
    // A library built anew is another policy.
    std::error_code no_file;
    const auto built = std::filesystem::last_write_time(name, no_file).time_since_epoch().count();
    for (uint64_t capacity : options.capacities) {
      jobs.push_back({fmt::format("{} {} {}", name, no_file ? 0 : built, capacity),
                      [&, policy, capacity](const std::atomic<bool>& stop) {
                        KvOptions own = options.replay;
                        own.capacity_blocks = capacity;
                        own.params.clear();
                        own.cancelled = [&stop] { return stop.load(std::memory_order_relaxed); };
                        return to_json(replay(trace, policy, own));
                      }});
    }
  }
  const std::string identity = fmt::format("kv {} | {}", fingerprint(trace, options.replay), build_identity());
  const auto results = run_jobs(jobs, identity, options.store, options.jobs, cancel, done);
  std::vector<KvResult> cells;
  for (const Job& job : jobs) cells.push_back(from_json(results.at(job.key)));
  return cells;
}

std::string make_page(const SweepOptions& options, const KvTrace& trace, const std::vector<KvResult>& results) {
  report::Page page(
      fmt::format("KV cache policies on {}", options.trace_name),
      fmt::format("{} requests, {} block references, {} distinct blocks of {} tokens. Replayed from an empty "
                  "cache; simulated, no model was run.",
                  trace.requests.size(), trace.blocks.size(), trace.objects, trace.block_tokens));
  const auto chart = [&](const char* title, const char* note, auto rate) {
    Json j = {{"kind", "lines"},
              {"title", title},
              {"note", note},
              {"x", {{"name", "capacity"}, {"unit", "blocks"}, {"log", true}}},
              {"y", {{"name", "hit rate"}, {"unit", "%"}, {"log", false}}},
              {"series", Json::array()}};
    const size_t per = options.capacities.size();
    for (size_t i = 0; i + per <= results.size() && per > 0; i += per) {
      const auto policy = placement::find_policy(options.policies[i / per], NEOTIER_KV);
      Json series = {{"name", results[i].policy},
                     {"points", Json::array()},
                     {"bound", (policy->flags & NEOTIER_NEEDS_ORACLE) != 0},
                     {"dots", true}};
      for (size_t k = 0; k < per; k++)
        series["points"].push_back({results[i + k].capacity_blocks, 100 * rate(results[i + k])});
      j["series"].push_back(series);
    }
    page.chart(j);
  };
  page.section("Hit rate by capacity");
  page.prose(
      "Hits are counted against the state before a request; then its blocks are touched and inserted in order. The "
      "dashed "
      "bounds know the future.");
  chart("Block references found", "of all block references", [](const KvResult& r) { return r.hit_rate(); });
  chart("Leading contiguous blocks found", "what a prefix cache can use",
        [](const KvResult& r) { return r.prefix_hit_rate(); });
  page.section("Figures");
  std::vector<std::string> columns = {"policy"};
  for (uint64_t capacity : options.capacities) columns.push_back(fmt::format("{}", capacity));
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < results.size(); i++) {
    if (i % options.capacities.size() == 0) rows.push_back({results[i].policy});
    rows.back().push_back(fmt::format("{:.4f}", results[i].hit_rate()));
  }
  page.table("Hit rate, by capacity in blocks", columns, rows);
  page.section("Policies");
  std::vector<std::vector<std::string>> described;
  for (const std::string& name : options.policies) {
    const auto policy = placement::find_policy(name, NEOTIER_KV);
    described.push_back({policy->name, policy->text, policy->source});
  }
  page.table("What they are", {"policy", "what it does", "source"}, described);
  return page.html();
}

}  // namespace neotier::replay
