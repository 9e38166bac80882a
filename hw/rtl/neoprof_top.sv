// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// NeoProf: watches the requests of a CXL memory device and lists its hot pages.
//
//   requests -> tap -> filter -> tracker -> hot filter -> hotlist ring -> registers, interrupt
//                        |          |           |
//                      watch     histogram   epoch (conducts), counters
//
// One clock domain: ports, bus and tick_i are synchronous to clk_i. A file for crossings comes with a second clock.
// After rst_ni the memories are filled (2^log2_width_i clocks). CFG0.RESET takes no longer than an epoch's end, and requests
// wait in the tap's queue meanwhile. STATUS.OP_IN_PROGRESS is 3 until either is done.
module neoprof_top #(
  parameter int unsigned Channels = 1,        // request ports, 1 to 8; together they are counted at one a clock
  parameter int unsigned CmRows = 2,
  parameter int unsigned CmLog2Width = 19,
  parameter int unsigned CmMinLog2Width = CmLog2Width,  // below CmLog2Width: the strap log2_width_i chooses, 6 at least
  parameter int unsigned HashSeeds = 1,       // over 1, at most 4: the strap hash_seed_i chooses. Either costs registers.
  parameter int unsigned CmCounterBits = 16,
  parameter int unsigned HotEntries = 4096,
  parameter int unsigned TapDepth = 8192,     // of each channel; over the 6200 clocks that an epoch's end can take
  parameter int unsigned EpochTagBits = 8
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   tick_i,      // one clock each 100 us
  // Straps; constant
  input  logic [63:0]            hpa_base_i,
  input  logic [63:0]            hpa_size_i,
  input  logic [31:0]            peak_lines_per_tick_i,
  input  logic [63:0]            serial_i,
  input  logic [4:0]             log2_width_i,  // of the tracker's rows; outside of the range: CmLog2Width
  input  logic [1:0]             hash_seed_i,
  // Requests, by channel: device physical byte addresses
  input  logic [Channels-1:0]    req_valid_i,
  input  logic [Channels-1:0]    req_write_i,
  input  logic [Channels*64-1:0] req_addr_i,
  // Registers
  input  logic                   s_axil_awvalid_i,
  output logic                   s_axil_awready_o,
  input  logic [15:0]            s_axil_awaddr_i,
  input  logic                   s_axil_wvalid_i,
  output logic                   s_axil_wready_o,
  input  logic [63:0]            s_axil_wdata_i,
  input  logic [7:0]             s_axil_wstrb_i,
  output logic                   s_axil_bvalid_o,
  input  logic                   s_axil_bready_i,
  output logic [1:0]             s_axil_bresp_o,
  input  logic                   s_axil_arvalid_i,
  output logic                   s_axil_arready_o,
  input  logic [15:0]            s_axil_araddr_i,
  output logic                   s_axil_rvalid_o,
  input  logic                   s_axil_rready_i,
  output logic [63:0]            s_axil_rdata_o,
  output logic [1:0]             s_axil_rresp_o,
  output logic                   irq_o,       // level
  output logic                   msi_o,       // one clock for each message to send
  // Observation: hotlist entries in the clock after they were written, STATUS and RING as they are now, and whether
  // nothing is in flight
  output logic                   ring_we_o,
  output logic [15:0]            ring_index_o,
  output logic [63:0]            ring_entry_o,
  output logic [63:0]            status_o,
  output logic [63:0]            ring_o,
  output logic                   idle_o
);
  localparam int unsigned RangeBits = 28;  // a bit of the range bitmap covers 256 MiB
  localparam int unsigned DpaBits = RangeBits + $clog2(neoprof_reg_pkg::BITMAP_BITS);
  localparam int unsigned UnitBits = DpaBits - 12;
  localparam int unsigned EntryBits = UnitBits + neoprof_reg_pkg::HOTLIST_UNIT_LSB;
  localparam int unsigned CountPad = neoprof_reg_pkg::HOTLIST_UNIT_LSB - CmCounterBits;
  localparam int unsigned ValueBits = UnitBits + 1;
  localparam int unsigned IndexBits = $clog2(neoprof_reg_pkg::HOTLIST_ENTRIES);
  localparam int unsigned CountBits = $clog2(Channels + 1);
  localparam int unsigned ListBits = $clog2(HotEntries);
  localparam int unsigned WatchBits = $clog2(neoprof_reg_pkg::WATCH_COUNT);

  // Configuration and commands
  logic [7:0] track, sample_log2;
  logic random, enable, large_unit, always_on;
  logic [31:0] threshold;
  logic [3:0] epoch_scale, decay;
  logic [11:0] epoch_mult;
  logic [15:0] fill_level;
  logic [255:0] bitmap;
  logic reset, snapshot, head_write, overflow_clear, mark, hold, stop, reset_begin;
  logic [IndexBits-1:0] head_wdata;

  // Conduct
  logic serve, walk, latch, resetting, quiet, counted_tick;

  logic [4:0] log2_width;
  if (CmMinLog2Width == CmLog2Width) begin : gen_one_width
    logic unused_width;
    assign unused_width = ^log2_width_i;
    assign log2_width = 5'(CmLog2Width);
  end else begin : gen_widths
    assign log2_width = (log2_width_i < 5'(CmMinLog2Width) || log2_width_i > 5'(CmLog2Width)) ? 5'(CmLog2Width) : log2_width_i;
  end

  // ------------------------------------------------------------------------------------------------------------- Tap
  logic tap_valid, tap_write, tap_outside, tap_empty;
  logic [UnitBits-1:0] tap_page;
  logic [CountBits-1:0] tap_reads, tap_writes, tap_lost;

  neoprof_tap #(
    .Channels(Channels),
    .Depth   (TapDepth),
    .DpaBits (DpaBits)
  ) u_tap (
    .clk_i,
    .rst_ni,
    .enable_i (enable & ~stop),
    .mark_i   (mark),
    .hold_i   (hold),
    .req_valid_i,
    .req_write_i,
    .req_addr_i,
    .valid_o  (tap_valid),
    .write_o  (tap_write),
    .outside_o(tap_outside),
    .page_o   (tap_page),
    .ready_i  (serve),
    .empty_o  (tap_empty),
    .reads_o  (tap_reads),
    .writes_o (tap_writes),
    .lost_o   (tap_lost)
  );

  // ---------------------------------------------------------------------------------------------------------- Filter
  logic filter_valid, eligible, filtered, sampled_out;
  logic [UnitBits-1:0] filter_unit;

  neoprof_filter #(
    .DpaBits(DpaBits)
  ) u_filter (
    .clk_i,
    .rst_ni,
    .reset_i      (reset),
    .track_i      (track),
    .random_i     (random),
    .sample_log2_i(sample_log2),
    .large_unit_i (large_unit),
    .bitmap_i     (bitmap),
    .valid_i      (tap_valid & serve),
    .write_i      (tap_write),
    .outside_i    (tap_outside),
    .page_i       (tap_page),
    .valid_o      (filter_valid),
    .unit_o       (filter_unit),
    .eligible_o   (eligible),
    .filtered_o   (filtered),
    .sampled_out_o(sampled_out)
  );

  // ----------------------------------------------------------------------------------------------------------- Watch
  logic watch_busy, watch_write;
  logic [WatchBits-1:0] watch_write_index, bus_watch_index;
  logic [31:0] watch_write_unit, bus_watch_count, bus_watch_unit;
  logic [3:0] watch_write_strobe;

  neoprof_watch #(
    .UnitBits(UnitBits)
  ) u_watch (
    .clk_i,
    .rst_ni,
    .valid_i       (eligible),
    .unit_i        (filter_unit),
    .busy_o        (watch_busy),
    .write_i       (watch_write),
    .write_index_i (watch_write_index),
    .write_unit_i  (watch_write_unit),
    .write_strobe_i(watch_write_strobe),
    .reset_i       (reset),
    .bus_index_i   (bus_watch_index),
    .bus_count_o   (bus_watch_count),
    .bus_unit_o    (bus_watch_unit)
  );

  // --------------------------------------------------------------------------------------------------------- Tracker
  logic walk_valid, walk_last;
  logic [UnitBits-1:0] walk_unit;
  logic rsp_valid, rsp_lookup, tracker_busy;
  logic [UnitBits-1:0] rsp_unit;
  logic [CmCounterBits-1:0] rsp_before, rsp_after;

  neoprof_cm_sketch #(
    .Rows        (CmRows),
    .Log2Width   (CmLog2Width),
    .MinLog2Width(CmMinLog2Width),
    .HashSeeds   (HashSeeds),
    .CounterBits (CmCounterBits),
    .UnitBits    (UnitBits),
    .EpochTagBits(EpochTagBits)
  ) u_tracker (
    .clk_i,
    .rst_ni,
    .log2_width_i(log2_width),
    .hash_seed_i,
    .req_valid_i (filter_valid | (walk_valid & ~always_on)),
    .req_lookup_i(walk_valid),
    .req_unit_i  (walk_valid ? walk_unit : filter_unit),
    .rsp_valid_o (rsp_valid),
    .rsp_lookup_o(rsp_lookup),
    .rsp_unit_o  (rsp_unit),
    .rsp_before_o(rsp_before),
    .rsp_after_o (rsp_after),
    .epoch_end_i (latch),
    .decay_i     (decay),
    .reset_i     (reset),
    .busy_o      (tracker_busy)
  );

  // ------------------------------------------------------------------------------------------------------ Hot filter
  logic hot_busy, report, lost_candidate;
  logic [UnitBits-1:0] report_unit;
  logic [CmCounterBits-1:0] report_count;
  logic [ListBits:0] listed;

  neoprof_hot_filter #(
    .Entries    (HotEntries),
    .UnitBits   (UnitBits),
    .CounterBits(CmCounterBits),
    .HashSeeds  (HashSeeds)
  ) u_hot_filter (
    .clk_i,
    .rst_ni,
    .hash_seed_i,
    .threshold_i   (threshold),
    .always_on_i   (always_on),
    .rsp_valid_i   (rsp_valid),
    .rsp_lookup_i  (rsp_lookup),
    .rsp_unit_i    (rsp_unit),
    .rsp_before_i  (rsp_before),
    .rsp_after_i   (rsp_after),
    .walk_i        (walk),
    .walk_last_o   (walk_last),
    .walk_valid_o  (walk_valid),
    .walk_unit_o   (walk_unit),
    .latch_i       (latch),
    .reset_i       (reset),
    .busy_o        (hot_busy),
    .report_o      (report),
    .report_unit_o (report_unit),
    .report_count_o(report_count),
    .lost_o        (lost_candidate),
    .listed_o      (listed)
  );

  // --------------------------------------------------------------------------------------------------------- Hotlist
  logic [EntryBits-1:0] report_entry;
  if (CountPad == 0) begin : gen_full_count
    assign report_entry = {report_unit, report_count};
  end else begin : gen_padded_count
    assign report_entry = {report_unit, {CountPad{1'b0}}, report_count};
  end

  logic [IndexBits-1:0] head, tail, observe_index, bus_hotlist_index;
  logic [EntryBits-1:0] observe_entry, bus_hotlist_entry;
  logic overflow, fill, written, lost_ring, bus_hotlist_en;

  neoprof_hotlist #(
    .Entries  (neoprof_reg_pkg::HOTLIST_ENTRIES),
    .EntryBits(EntryBits)
  ) u_hotlist (
    .clk_i,
    .rst_ni,
    .reset_i         (reset),
    .fill_level_i    (fill_level),
    .push_i          (report),
    .entry_i         (report_entry),
    .head_write_i    (head_write),
    .head_i          (head_wdata),
    .overflow_clear_i(overflow_clear),
    .bus_en_i        (bus_hotlist_en),
    .bus_index_i     (bus_hotlist_index),
    .bus_entry_o     (bus_hotlist_entry),
    .head_o          (head),
    .tail_o          (tail),
    .overflow_o      (overflow),
    .fill_o          (fill),
    .written_o       (written),
    .lost_o          (lost_ring),
    .observe_valid_o (ring_we_o),
    .observe_index_o (observe_index),
    .observe_entry_o (observe_entry)
  );
  assign ring_index_o = {{(16 - IndexBits) {1'b0}}, observe_index};
  assign ring_entry_o = {{(64 - EntryBits) {1'b0}}, observe_entry};

  // ------------------------------------------------------------------------------------------- Histogram and counters
  logic update, histogram_busy, bus_histogram_en;
  logic [5:0] bus_histogram_bin;
  logic [ValueBits-1:0] bus_histogram_value;
  logic [15*64-1:0] counters;
  assign update = rsp_valid & ~rsp_lookup;

  neoprof_histogram #(
    .CounterBits(CmCounterBits),
    .ValueBits  (ValueBits)
  ) u_histogram (
    .clk_i,
    .rst_ni,
    .update_i   (update),
    .before_i   (rsp_before),
    .after_i    (rsp_after),
    .latch_i    (latch),
    .snapshot_i (snapshot),
    .reset_i    (reset),
    .busy_o     (histogram_busy),
    .bus_en_i   (bus_histogram_en),
    .bus_bin_i  (bus_histogram_bin),
    .bus_value_o(bus_histogram_value)
  );

  neoprof_counters #(
    .CountBits  (CountBits),
    .ListBits   (ListBits),
    .CounterBits(CmCounterBits)
  ) u_counters (
    .clk_i,
    .rst_ni,
    .log2_width_i    (log2_width),
    .reset_begin_i   (reset_begin),
    .reset_i         (reset),
    .snapshot_i      (snapshot),
    .latch_i         (latch),
    .decay_i         (decay),
    .tick_i          (counted_tick),
    .reads_i         (tap_reads),
    .writes_i        (tap_writes),
    .lost_tap_i      (tap_lost),
    .filtered_i      (filtered),
    .sampled_out_i   (sampled_out),
    .update_i        (update),
    .before_i        (rsp_before),
    .lost_candidate_i(lost_candidate),
    .written_i       (written),
    .lost_ring_i     (lost_ring),
    .listed_i        (listed),
    .snapshot_o      (counters)
  );

  // ----------------------------------------------------------------------------------------------------------- Epoch
  neoprof_epoch u_epoch (
    .clk_i,
    .rst_ni,
    .tick_i,
    .enable_i        (enable),
    .scale_i         (epoch_scale),
    .mult_i          (epoch_mult),
    .reset_i         (reset),
    // The watch table has requests in flight that the tracker never sees: those that down-sampling leaves out.
    .pipe_busy_i     (tracker_busy | hot_busy | watch_busy),
    .histogram_busy_i(histogram_busy),
    .walk_last_i     (walk_last),
    .serve_o         (serve),
    .walk_o          (walk),
    .latch_o         (latch),
    .resetting_o     (resetting),
    .quiet_o         (quiet),
    .counted_tick_o  (counted_tick)
  );
  assign idle_o = quiet & tap_empty;

  // ------------------------------------------------------------------------------------------------------- Registers
  neoprof_regs #(
    .Rows       (CmRows),
    .CounterBits(CmCounterBits),
    .HotEntries (HotEntries),
    .EntryBits  (EntryBits),
    .ValueBits  (ValueBits)
  ) u_regs (
    .clk_i,
    .rst_ni,
    .hpa_base_i,
    .hpa_size_i,
    .peak_lines_per_tick_i,
    .serial_i,
    .log2_width_i     (log2_width),
    .s_axil_awvalid_i,
    .s_axil_awready_o,
    .s_axil_awaddr_i,
    .s_axil_wvalid_i,
    .s_axil_wready_o,
    .s_axil_wdata_i,
    .s_axil_wstrb_i,
    .s_axil_bvalid_o,
    .s_axil_bready_i,
    .s_axil_bresp_o,
    .s_axil_arvalid_i,
    .s_axil_arready_o,
    .s_axil_araddr_i,
    .s_axil_rvalid_o,
    .s_axil_rready_i,
    .s_axil_rdata_o,
    .s_axil_rresp_o,
    .track_o          (track),
    .random_o         (random),
    .enable_o         (enable),
    .threshold_o      (threshold),
    .large_unit_o     (large_unit),
    .sample_log2_o    (sample_log2),
    .always_on_o      (always_on),
    .epoch_scale_o    (epoch_scale),
    .epoch_mult_o     (epoch_mult),
    .fill_level_o     (fill_level),
    .decay_o          (decay),
    .bitmap_o         (bitmap),
    .reset_begin_o    (reset_begin),
    .reset_o          (reset),
    .snapshot_o       (snapshot),
    .head_write_o     (head_write),
    .head_o           (head_wdata),
    .overflow_clear_o (overflow_clear),
    .mark_o           (mark),
    .hold_o           (hold),
    .stop_o           (stop),
    .served_i         (~tap_valid),
    .quiet_i          (quiet),
    .hotlist_en_o     (bus_hotlist_en),
    .hotlist_index_o  (bus_hotlist_index),
    .hotlist_entry_i  (bus_hotlist_entry),
    .histogram_en_o   (bus_histogram_en),
    .histogram_bin_o  (bus_histogram_bin),
    .histogram_value_i(bus_histogram_value),
    .watch_write_o    (watch_write),
    .watch_windex_o   (watch_write_index),
    .watch_wunit_o    (watch_write_unit),
    .watch_wstrobe_o  (watch_write_strobe),
    .watch_rindex_o   (bus_watch_index),
    .watch_count_i    (bus_watch_count),
    .watch_unit_i     (bus_watch_unit),
    .resetting_i      (resetting),
    .head_i           (head),
    .tail_i           (tail),
    .overflow_i       (overflow),
    .fill_i           (fill),
    .snapshot_i       (counters),
    .status_o,
    .ring_o,
    .irq_o,
    .msi_o
  );

`ifndef SYNTHESIS
  assert property (@(posedge clk_i) disable iff (!rst_ni) !(filter_valid && walk_valid)) else $error("a request and a lookup in one clock");
  assert property (@(posedge clk_i) disable iff (!rst_ni) !(reset && !quiet)) else $error("a reset while not quiet");
`endif
endmodule
