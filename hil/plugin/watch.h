// SPDX-License-Identifier: GPL-2.0-or-later
// What is asked to watch the region of interest: the timeline, the recorder, or both. Watching changes no figure.
// Thread safety: as Timeline.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "hil/plugin/recorder.h"
#include "hil/plugin/timeline.h"

namespace neotier::hil {

struct WatchOptions {
  std::string timeline_path;  // JSON, written when the region ends; empty: none
  Recorder::Options record;   // file empty: none
};

class Watch {
 public:
  // Throws std::runtime_error if the trace cannot be written.
  explicit Watch(const WatchOptions& options) : path_(options.timeline_path) {
    if (!options.record.file.empty()) recorder_.emplace(options.record);
  }

  bool active() const { return active_; }

  static Recorder::Now now_of(const neotier_counters& c) {
    return {c.instructions, c.modelled_ps - c.stall_ps[0] - c.stall_ps[1]};
  }

  // Whether accessed() wants to know.
  bool wants_accesses() const { return active_ && recorder_ && recorder_->timed(); }
  void accessed(uint64_t hpa) { recorder_->accessed(hpa); }

  bool wants_pages() const { return recorder_ && recorder_->timed(); }
  void begin(const neotier_counters& counters, const DeviceCounters& device, const Recorder::Header& header,
             const FrameCensus& census) {
    timeline_.begin(counters, device);
    if (recorder_) recorder_->begin(header, census, now_of(counters));
    begin_ = counters;
    active_ = true;
  }
  void tick(const neotier_counters& counters, const DeviceCounters& device,
            const std::function<FrameCensus()>& census) {
    timeline_.tick(counters, device);
    if (recorder_) recorder_->tick(now_of(counters), census);
  }
  void moved(uint64_t promoted, uint64_t demoted) {
    timeline_.moved(promoted, demoted);
    if (ended_) write();
  }
  void reported(uint64_t hpa) {
    if (active_) timeline_.reported(hpa);
  }
  void line(uint64_t hpa, bool cxl, bool is_write, bool by_kernel, const Recorder::Now& now) {
    timeline_.line(hpa, cxl, is_write);
    if (recorder_) recorder_->line(hpa, cxl, is_write, by_kernel, now);
  }

  void end(const neotier_counters& counters, const DeviceCounters& device) {
    timeline_.end(counters, device);
    active_ = false;
    if (recorder_) {
      recorder_->end({{trace::Field::kEndModelledNs, (counters.modelled_ps - begin_.modelled_ps) / 1000},
                      {trace::Field::kEndDramFills, counters.fills[0] - begin_.fills[0]},
                      {trace::Field::kEndCxlFills, counters.fills[1] - begin_.fills[1]},
                      {trace::Field::kEndL2Misses, counters.l2_misses - begin_.l2_misses}},
                     now_of(counters));
      recorder_->finish();
    }
    ended_ = true;
    write();
  }

  // The guest ends before its region does: nothing is left.
  void abandon() { recorder_.reset(); }

 private:
  void write() const {
    if (path_.empty()) return;
    // The reader looks for the whole file's name.
    const std::string part = path_ + ".part";
    {
      std::ofstream out(part, std::ios::binary | std::ios::trunc);
      out << timeline_.json().dump() << "\n";
      out.close();
      if (!out) {
        std::fprintf(stderr, "neotier plugin: cannot write %s\n", part.c_str());
        return;
      }
    }
    if (std::rename(part.c_str(), path_.c_str()) != 0) {
      std::fprintf(stderr, "neotier plugin: cannot rename %s\n", part.c_str());
    }
  }

  std::string path_;
  Timeline timeline_;
  neotier_counters begin_{};
  std::optional<Recorder> recorder_;
  bool active_ = false, ended_ = false;
};

}  // namespace neotier::hil
