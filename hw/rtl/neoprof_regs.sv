// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// AXI4-Lite slave (64-bit data, one access at a time) and the host-owned registers. Reads have no side effects, unmapped
// offsets read 0 and ignore writes, responses are always OKAY.
//
// A write takes three clocks, a read four, a read of the histogram six. Writes of CFG0, CFG1, DECAY, BITMAP and WATCH wait
// until every request that was accepted before the write has had all its effects, while later ones wait in the tap's queue
// (hold_o): a request is counted wholly under the configuration in which it was accepted, and none is lost to a change.
// What a write that changes CFG0.ENABLE or has CFG0.RESET waits for shows in STATUS.OP_IN_PROGRESS, and a write that clears
// CFG0.ENABLE stops the tap at once (stop_o). Writes of the ring's HEAD, of STATUS, of CFG2 and of CTRL wait for nothing
// but a write before them.
module neoprof_regs #(
  parameter int unsigned Rows = 2,
  parameter int unsigned CounterBits = 16,
  parameter int unsigned HotEntries = 4096,
  parameter int unsigned EntryBits = 40,
  parameter int unsigned ValueBits = 25,
  localparam int unsigned IndexBits = $clog2(neoprof_reg_pkg::HOTLIST_ENTRIES),
  localparam int unsigned WatchBits = $clog2(neoprof_reg_pkg::WATCH_COUNT)
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  // Straps
  input  logic [63:0]          hpa_base_i,
  input  logic [63:0]          hpa_size_i,
  input  logic [31:0]          peak_lines_per_tick_i,
  input  logic [63:0]          serial_i,
  input  logic [4:0]           log2_width_i,
  // AXI4-Lite
  input  logic                 s_axil_awvalid_i,
  output logic                 s_axil_awready_o,
  input  logic [15:0]          s_axil_awaddr_i,
  input  logic                 s_axil_wvalid_i,
  output logic                 s_axil_wready_o,
  input  logic [63:0]          s_axil_wdata_i,
  input  logic [7:0]           s_axil_wstrb_i,
  output logic                 s_axil_bvalid_o,
  input  logic                 s_axil_bready_i,
  output logic [1:0]           s_axil_bresp_o,
  input  logic                 s_axil_arvalid_i,
  output logic                 s_axil_arready_o,
  input  logic [15:0]          s_axil_araddr_i,
  output logic                 s_axil_rvalid_o,
  input  logic                 s_axil_rready_i,
  output logic [63:0]          s_axil_rdata_o,
  output logic [1:0]           s_axil_rresp_o,
  // Configuration
  output logic [7:0]           track_o,
  output logic                 random_o,
  output logic                 enable_o,
  output logic [31:0]          threshold_o,    // at least 1
  output logic                 large_unit_o,
  output logic [7:0]           sample_log2_o,
  output logic                 always_on_o,
  output logic [3:0]           epoch_scale_o,
  output logic [11:0]          epoch_mult_o,
  output logic [15:0]          fill_level_o,
  output logic [3:0]           decay_o,
  output logic [255:0]         bitmap_o,
  // Commands, one clock each
  output logic                 reset_begin_o,  // a write with CFG0.RESET has come; reset_o follows
  output logic                 reset_o,
  output logic                 snapshot_o,
  output logic                 head_write_o,
  output logic [IndexBits-1:0] head_o,
  output logic                 overflow_clear_o,
  // Configuration changes and the rest of the device
  output logic                 mark_o,         // requests up to this clock's come before the write
  output logic                 hold_o,
  output logic                 stop_o,
  input  logic                 served_i,       // no request from before the mark waits
  input  logic                 quiet_i,
  // Memories: data one clock after the enable
  output logic                 hotlist_en_o,
  output logic [IndexBits-1:0] hotlist_index_o,
  input  logic [EntryBits-1:0] hotlist_entry_i,
  output logic                 histogram_en_o,
  output logic [5:0]           histogram_bin_o,
  input  logic [ValueBits-1:0] histogram_value_i,
  // Watch table: what it reads is there in the same clock
  output logic                 watch_write_o,
  output logic [WatchBits-1:0] watch_windex_o,
  output logic [31:0]          watch_wunit_o,
  output logic [3:0]           watch_wstrobe_o,
  output logic [WatchBits-1:0] watch_rindex_o,
  input  logic [31:0]          watch_count_i,
  input  logic [31:0]          watch_unit_i,
  // Volatile state
  input  logic                 resetting_i,
  input  logic [IndexBits-1:0] head_i,
  input  logic [IndexBits-1:0] tail_i,
  input  logic                 overflow_i,
  input  logic                 fill_i,
  input  logic [15*64-1:0]     snapshot_i,
  // Live values and the interrupt
  output logic [63:0]          status_o,
  output logic [63:0]          ring_o,
  output logic                 irq_o,
  output logic                 msi_o
);
  localparam logic [15:0] BitmapEnd =
      neoprof_reg_pkg::BITMAP_OFFSET + 16'(neoprof_reg_pkg::BITMAP_COUNT * 8);
  localparam logic [15:0] HotlistEnd =
      neoprof_reg_pkg::HOTLIST_OFFSET + 16'(neoprof_reg_pkg::HOTLIST_COUNT * 8);
  localparam logic [15:0] WatchEnd =
      neoprof_reg_pkg::WATCH_OFFSET + 16'(neoprof_reg_pkg::WATCH_COUNT * 8);
  localparam logic [15:0] HistogramEnd =
      neoprof_reg_pkg::HISTOGRAM_OFFSET + 16'(neoprof_reg_pkg::HISTOGRAM_COUNT * 8);

  logic [63:0] cfg0_q, cfg1_q, cfg2_q, decay_q;
  logic [255:0] bitmap_q;

  // ---------------------------------------------------------------------------------------------------------- Writes
  typedef enum logic [1:0] {
    StWriteIdle,
    StWriteExec,
    StWriteResp
  } write_state_e;
  write_state_e wstate_q;
  logic [15:0] waddr_q;
  logic [63:0] wdata_q, wmask_q;

  logic in_bitmap, in_watch, config_write, exec;
  logic [15:0] bitmap_word, watch_word;
  assign bitmap_word = (waddr_q - neoprof_reg_pkg::BITMAP_OFFSET) >> 3;
  assign in_bitmap = waddr_q >= neoprof_reg_pkg::BITMAP_OFFSET && waddr_q < BitmapEnd;
  assign watch_word = (waddr_q - neoprof_reg_pkg::WATCH_OFFSET) >> 3;
  assign in_watch = waddr_q >= neoprof_reg_pkg::WATCH_OFFSET && waddr_q < WatchEnd;
  assign config_write = in_bitmap || in_watch || waddr_q == neoprof_reg_pkg::CFG0_OFFSET ||
                        waddr_q == neoprof_reg_pkg::CFG1_OFFSET || waddr_q == neoprof_reg_pkg::DECAY_OFFSET;
  assign hold_o = wstate_q == StWriteExec && config_write;
  assign exec = wstate_q == StWriteExec && (!config_write || (served_i && quiet_i));
  assign mark_o = wstate_q == StWriteIdle && s_axil_awvalid_i && s_axil_wvalid_i;
  assign reset_begin_o = mark_o && s_axil_awaddr_i[15:3] == neoprof_reg_pkg::CFG0_OFFSET[15:3] &&
                         s_axil_wdata_i[neoprof_reg_pkg::CFG0_RESET_LSB] &&
                         s_axil_wstrb_i[neoprof_reg_pkg::CFG0_RESET_LSB/8];

  // Each channel waits for the other: address and data are taken together.
  assign s_axil_awready_o = wstate_q == StWriteIdle && s_axil_wvalid_i;
  assign s_axil_wready_o = wstate_q == StWriteIdle && s_axil_awvalid_i;
  assign s_axil_bvalid_o = wstate_q == StWriteResp;
  assign s_axil_bresp_o = 2'b00;

  function automatic logic [63:0] merge(input logic [63:0] old, input logic [63:0] data, input logic [63:0] mask);
    merge = (old & ~mask) | (data & mask);
  endfunction

  logic [63:0] wbits, head_merged;
  assign wbits = wdata_q & wmask_q;
  assign head_merged = merge({{(64 - IndexBits) {1'b0}}, head_i}, wdata_q, wmask_q);
  assign reset_o = exec && waddr_q == neoprof_reg_pkg::CFG0_OFFSET && wbits[neoprof_reg_pkg::CFG0_RESET_LSB];
  assign snapshot_o = exec && waddr_q == neoprof_reg_pkg::CTRL_OFFSET && wbits[neoprof_reg_pkg::CTRL_SNAPSHOT_LSB];
  assign head_write_o = exec && waddr_q == neoprof_reg_pkg::RING_OFFSET;
  assign head_o = head_merged[IndexBits-1:0];
  assign overflow_clear_o = exec && waddr_q == neoprof_reg_pkg::STATUS_OFFSET &&
                            wbits[neoprof_reg_pkg::STATUS_OVERFLOW_LSB];
  // A write of COUNT's bytes alone is none.
  assign watch_write_o = exec && in_watch && watch_wstrobe_o != '0;
  assign watch_windex_o = watch_word[WatchBits-1:0];
  assign watch_wunit_o = wdata_q[neoprof_reg_pkg::WATCH_UNIT_MSB:neoprof_reg_pkg::WATCH_UNIT_LSB];
  for (genvar b = 0; b < 4; b++) begin : gen_watch_strobe
    assign watch_wstrobe_o[b] = wmask_q[neoprof_reg_pkg::WATCH_UNIT_LSB+b*8];
  end

  // What a write of CFG0 waits to do.
  logic cfg0_waits, start;
  assign cfg0_waits = wstate_q == StWriteExec && waddr_q == neoprof_reg_pkg::CFG0_OFFSET;
  assign stop_o = cfg0_waits && enable_o && wmask_q[neoprof_reg_pkg::CFG0_ENABLE_LSB] &&
                  !wdata_q[neoprof_reg_pkg::CFG0_ENABLE_LSB];
  assign start = cfg0_waits && !enable_o && wbits[neoprof_reg_pkg::CFG0_ENABLE_LSB];
  logic [1:0] op;
  always_comb begin
    op = 2'd0;
    if (resetting_i || (cfg0_waits && wbits[neoprof_reg_pkg::CFG0_RESET_LSB])) op = 2'd3;
    else if (stop_o) op = 2'd2;
    else if (start) op = 2'd1;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wstate_q <= StWriteIdle;
      waddr_q <= '0;
      wdata_q <= '0;
      wmask_q <= '0;
      cfg0_q <= neoprof_reg_pkg::CFG0_INIT & neoprof_reg_pkg::CFG0_RW;
      cfg1_q <= neoprof_reg_pkg::CFG1_INIT & neoprof_reg_pkg::CFG1_RW;
      cfg2_q <= neoprof_reg_pkg::CFG2_INIT & neoprof_reg_pkg::CFG2_RW;
      decay_q <= neoprof_reg_pkg::DECAY_INIT & neoprof_reg_pkg::DECAY_RW;
      bitmap_q <= '0;
    end else begin
      unique case (wstate_q)
        StWriteIdle:
        if (s_axil_awvalid_i && s_axil_wvalid_i) begin
          waddr_q <= {s_axil_awaddr_i[15:3], 3'b000};
          wdata_q <= s_axil_wdata_i;
          for (int b = 0; b < 8; b++) wmask_q[b*8+:8] <= {8{s_axil_wstrb_i[b]}};
          wstate_q <= StWriteExec;
        end
        StWriteExec:
        if (exec) begin
          if (waddr_q == neoprof_reg_pkg::CFG0_OFFSET) begin
            cfg0_q <= merge(cfg0_q, wdata_q, wmask_q) & neoprof_reg_pkg::CFG0_RW;
          end
          if (waddr_q == neoprof_reg_pkg::CFG1_OFFSET) begin
            cfg1_q <= merge(cfg1_q, wdata_q, wmask_q) & neoprof_reg_pkg::CFG1_RW;
          end
          if (waddr_q == neoprof_reg_pkg::CFG2_OFFSET) begin
            cfg2_q <= merge(cfg2_q, wdata_q, wmask_q) & neoprof_reg_pkg::CFG2_RW;
          end
          if (waddr_q == neoprof_reg_pkg::DECAY_OFFSET) begin
            decay_q <= merge(decay_q, wdata_q, wmask_q) & neoprof_reg_pkg::DECAY_RW;
          end
          for (int w = 0; w < 4; w++) begin
            if (in_bitmap && bitmap_word[1:0] == 2'(w)) begin
              bitmap_q[w*64+:64] <= merge(bitmap_q[w*64+:64], wdata_q, wmask_q);
            end
          end
          wstate_q <= StWriteResp;
        end
        default: if (s_axil_bready_i) wstate_q <= StWriteIdle;
      endcase
    end
  end

  assign track_o = cfg0_q[neoprof_reg_pkg::CFG0_TRACK_MSB:neoprof_reg_pkg::CFG0_TRACK_LSB];
  assign random_o = cfg0_q[neoprof_reg_pkg::CFG0_RANDOM_DS_LSB];
  assign enable_o = cfg0_q[neoprof_reg_pkg::CFG0_ENABLE_LSB];
  assign threshold_o = (cfg0_q[63:32] == 0) ? 32'd1 : cfg0_q[neoprof_reg_pkg::CFG0_THRESHOLD_MSB:neoprof_reg_pkg::CFG0_THRESHOLD_LSB];
  assign large_unit_o = cfg1_q[neoprof_reg_pkg::CFG1_UNIT_SIZE_MSB:neoprof_reg_pkg::CFG1_UNIT_SIZE_LSB] == 21;
  assign sample_log2_o = cfg1_q[neoprof_reg_pkg::CFG1_DOWNSAMPLING_MSB:neoprof_reg_pkg::CFG1_DOWNSAMPLING_LSB];
  assign always_on_o = cfg1_q[neoprof_reg_pkg::CFG1_MODE_MSB:neoprof_reg_pkg::CFG1_MODE_LSB] != 0;
  assign epoch_scale_o = cfg1_q[neoprof_reg_pkg::CFG1_EPOCH_SCALE_MSB:neoprof_reg_pkg::CFG1_EPOCH_SCALE_LSB];
  assign epoch_mult_o = cfg1_q[neoprof_reg_pkg::CFG1_EPOCH_MULT_MSB:neoprof_reg_pkg::CFG1_EPOCH_MULT_LSB];
  assign fill_level_o = cfg2_q[neoprof_reg_pkg::CFG2_FILL_LEVEL_MSB:neoprof_reg_pkg::CFG2_FILL_LEVEL_LSB];
  assign decay_o = decay_q[neoprof_reg_pkg::DECAY_SHIFT_MSB:neoprof_reg_pkg::DECAY_SHIFT_LSB];
  assign bitmap_o = bitmap_q;

  // ------------------------------------------------------------------------------------------------------ Live values
  always_comb begin
    status_o = neoprof_reg_pkg::STATUS_INIT;
    status_o[neoprof_reg_pkg::STATUS_ENABLED_LSB] = enable_o;
    status_o[neoprof_reg_pkg::STATUS_OP_IN_PROGRESS_LSB+:2] = op;
    status_o[neoprof_reg_pkg::STATUS_OVERFLOW_LSB] = overflow_i;
    status_o[neoprof_reg_pkg::STATUS_FILL_LSB] = fill_i;
    ring_o = '0;
    ring_o[neoprof_reg_pkg::RING_HEAD_LSB+:IndexBits] = head_i;
    ring_o[neoprof_reg_pkg::RING_TAIL_LSB+:IndexBits] = tail_i;
  end
  logic [1:0] causes;
  assign causes = {overflow_i & cfg0_q[neoprof_reg_pkg::CFG0_OVERFLOW_IRQ_EN_LSB],
                   fill_i & cfg0_q[neoprof_reg_pkg::CFG0_FILL_IRQ_EN_LSB]};
  assign irq_o = |causes;

  // A HEAD that moved, or an OVERFLOW that was acknowledged, and left its cause standing makes a message again.
  neoprof_msi #(
    .Causes(2)
  ) u_msi (
    .clk_i,
    .rst_ni,
    .cause_i  (causes),
    .again_i  ({overflow_clear_o, head_write_o & (head_o != head_i)}),
    .message_o(msi_o)
  );

  // ----------------------------------------------------------------------------------------------------------- Reads
  typedef enum logic [1:0] {
    StReadIdle,
    StReadFetch,
    StReadMux,
    StReadResp
  } read_state_e;
  read_state_e rstate_q;
  logic [15:0] raddr_q;
  logic [1:0] rstep_q;
  logic [63:0] rdata_q, rdata;

  logic in_hotlist, in_histogram, in_snapshot, in_bitmap_read, in_watch_read;
  assign in_hotlist = raddr_q >= neoprof_reg_pkg::HOTLIST_OFFSET && raddr_q < HotlistEnd;
  assign in_histogram = raddr_q >= neoprof_reg_pkg::HISTOGRAM_OFFSET && raddr_q < HistogramEnd;
  assign in_snapshot = raddr_q >= neoprof_reg_pkg::TICKS_OFFSET && raddr_q <= neoprof_reg_pkg::HOT_OFFSET;
  assign in_bitmap_read = raddr_q >= neoprof_reg_pkg::BITMAP_OFFSET && raddr_q < BitmapEnd;
  assign in_watch_read = raddr_q >= neoprof_reg_pkg::WATCH_OFFSET && raddr_q < WatchEnd;

  logic [15:0] hotlist_word, histogram_word, snapshot_word, bitmap_read_word, watch_read_word;
  assign hotlist_word = (raddr_q - neoprof_reg_pkg::HOTLIST_OFFSET) >> 3;
  assign histogram_word = (raddr_q - neoprof_reg_pkg::HISTOGRAM_OFFSET) >> 3;
  assign snapshot_word = (raddr_q - neoprof_reg_pkg::TICKS_OFFSET) >> 3;
  assign bitmap_read_word = (raddr_q - neoprof_reg_pkg::BITMAP_OFFSET) >> 3;
  assign watch_read_word = (raddr_q - neoprof_reg_pkg::WATCH_OFFSET) >> 3;
  assign watch_rindex_o = watch_read_word[WatchBits-1:0];

  assign hotlist_en_o = rstate_q == StReadFetch && in_hotlist;
  assign hotlist_index_o = hotlist_word[IndexBits-1:0];
  assign histogram_en_o = rstate_q == StReadFetch && in_histogram;
  assign histogram_bin_o = {histogram_word[4:0], 1'b0} + {4'd0, rstep_q};

  // A histogram word needs the moves into three bins: its two and the one after. Past the last bin there is none.
  logic [ValueBits-1:0] moves0_q, moves1_q, moves2;
  assign moves2 = (histogram_word[4:0] == 5'd31) ? '0 : histogram_value_i;

  always_comb begin
    rdata = '0;
    unique case (raddr_q)
      neoprof_reg_pkg::COMMON_CAP0_OFFSET: rdata = neoprof_reg_pkg::COMMON_CAP0_INIT;
      neoprof_reg_pkg::COMMON_CAP1_OFFSET: rdata = neoprof_reg_pkg::COMMON_CAP1_INIT;
      neoprof_reg_pkg::CAP0_OFFSET: rdata = neoprof_reg_pkg::CAP0_INIT;
      neoprof_reg_pkg::CAP1_OFFSET: rdata = neoprof_reg_pkg::CAP1_INIT;
      neoprof_reg_pkg::CAP2_OFFSET: rdata = neoprof_reg_pkg::CAP2_INIT;
      neoprof_reg_pkg::CAP3_OFFSET: rdata = neoprof_reg_pkg::CAP3_INIT;
      neoprof_reg_pkg::CFG0_OFFSET: rdata = cfg0_q;
      neoprof_reg_pkg::CFG1_OFFSET: rdata = cfg1_q;
      neoprof_reg_pkg::CFG2_OFFSET: rdata = cfg2_q;
      neoprof_reg_pkg::STATUS_OFFSET: rdata = status_o;
      neoprof_reg_pkg::RING_OFFSET: rdata = ring_o;
      neoprof_reg_pkg::ID_OFFSET: rdata = neoprof_reg_pkg::ID_INIT;
      neoprof_reg_pkg::TRACKER_OFFSET: begin
        rdata = {32'(HotEntries), 8'(CounterBits), {3'd0, log2_width_i}, 8'(Rows),
                 neoprof_reg_pkg::TRACKER_INIT[neoprof_reg_pkg::TRACKER_KIND_MSB:neoprof_reg_pkg::TRACKER_KIND_LSB]};
      end
      neoprof_reg_pkg::HPA_BASE_OFFSET: rdata = hpa_base_i;
      neoprof_reg_pkg::HPA_SIZE_OFFSET: rdata = hpa_size_i;
      neoprof_reg_pkg::PEAK_OFFSET: rdata = {32'd0, peak_lines_per_tick_i};
      neoprof_reg_pkg::DECAY_OFFSET: rdata = decay_q;
      neoprof_reg_pkg::SERIAL_OFFSET: rdata = serial_i;
      default: begin
        if (in_bitmap_read) rdata = bitmap_q[{bitmap_read_word[1:0], 6'd0}+:64];
        if (in_hotlist) rdata = {{(64 - EntryBits) {1'b0}}, hotlist_entry_i};
        if (in_snapshot) rdata = snapshot_i[{snapshot_word[3:0], 6'd0}+:64];
        if (in_watch_read) rdata = {watch_unit_i, watch_count_i};
        if (in_histogram) begin
          rdata[ValueBits-1:0] = (moves0_q > moves1_q) ? moves0_q - moves1_q : '0;
          rdata[32+:ValueBits] = (moves1_q > moves2) ? moves1_q - moves2 : '0;
        end
      end
    endcase
  end

  assign s_axil_arready_o = rstate_q == StReadIdle;
  assign s_axil_rvalid_o = rstate_q == StReadResp;
  assign s_axil_rdata_o = rdata_q;
  assign s_axil_rresp_o = 2'b00;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      rstate_q <= StReadIdle;
      raddr_q <= '0;
      rstep_q <= '0;
      rdata_q <= '0;
      moves0_q <= '0;
      moves1_q <= '0;
    end else begin
      unique case (rstate_q)
        StReadIdle:
        if (s_axil_arvalid_i) begin
          raddr_q <= {s_axil_araddr_i[15:3], 3'b000};
          rstep_q <= '0;
          rstate_q <= StReadFetch;
        end
        StReadFetch: begin
          rstep_q <= rstep_q + 1'b1;
          moves0_q <= moves1_q;
          moves1_q <= histogram_value_i;
          if (!in_histogram || rstep_q == 2'd2) rstate_q <= StReadMux;
        end
        StReadMux: begin
          rdata_q <= rdata;
          rstate_q <= StReadResp;
        end
        default: if (s_axil_rready_i) rstate_q <= StReadIdle;
      endcase
    end
  end

  logic unused_bits;
  assign unused_bits = ^{s_axil_awaddr_i[2:0], s_axil_araddr_i[2:0], bitmap_word[15:2], hotlist_word[15:IndexBits],
                         histogram_word[15:5], snapshot_word[15:4], bitmap_read_word[15:2], head_merged[63:IndexBits],
                         watch_word[15:WatchBits], watch_read_word[15:WatchBits]};
endmodule
