// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Conducts the boxes: epoch timer, epoch end and reset.
//
//   Run     the tracker is served. A tick that completes the epoch stops that; once nothing is in flight:
//   Walk    the hot filter passes its list (one unit a clock; in epoch mode each is looked up and maybe reported)
//   Flush   until the last lookup is through
//   Latch   one clock: statistics are latched, the tracker's epoch ends
//   Settle  until tracker, hot filter and histogram have finished their maintenance; then Run
// A reset goes to Settle at once; resetting_o is 1 until it is done. Requests wait in the tap's queue meanwhile.
//
// Requests that wait in the tap's queue at an epoch's end belong to the next epoch. An epoch does not end while the end of
// the one before is still being worked on: it takes more ticks. With real 100 us ticks that cannot happen.
module neoprof_epoch (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        tick_i,    // one clock each 100 us
  input  logic        enable_i,
  input  logic [3:0]  scale_i,   // as CFG1.EPOCH_SCALE
  input  logic [11:0] mult_i,    // as CFG1.EPOCH_MULT
  // Commands
  input  logic        reset_i,   // one clock, only while quiet_o is 1
  // State of the boxes
  input  logic        pipe_busy_i,         // a request in flight, or maintenance, in tracker, hot filter or watch table
  input  logic        histogram_busy_i,
  input  logic        walk_last_i,
  // To the boxes
  output logic        serve_o,
  output logic        walk_o,
  output logic        latch_o,
  // State
  output logic        resetting_o,
  output logic        quiet_o,   // nothing in flight, no epoch end or reset going on
  output logic        counted_tick_o
);
  typedef enum logic [2:0] {
    StRun,
    StWalk,
    StFlush,
    StLatch,
    StSettle
  } state_e;

  state_e state_q;
  logic pending_q, resetting_q;
  logic [31:0] elapsed_q;
  logic [25:0] length_q, length;

  assign serve_o = state_q == StRun && !pending_q;
  assign walk_o = state_q == StWalk;
  assign latch_o = state_q == StLatch;
  assign resetting_o = resetting_q;
  assign quiet_o = state_q == StRun && !pending_q && !pipe_busy_i;
  assign counted_tick_o = tick_i & enable_i;

  logic [13:0] scale;
  logic [11:0] mult;
  always_comb begin
    unique case (scale_i)
      4'd0, 4'd1: scale = 14'd1;
      4'd2: scale = 14'd10;
      4'd3: scale = 14'd100;
      4'd4: scale = 14'd1000;
      default: scale = 14'd10000;
    endcase
  end
  assign mult = (mult_i == 12'd0) ? 12'd1 : mult_i;
  // The length is taken over with an epoch's first tick.
  assign length = (elapsed_q == 0) ? {14'd0, mult} * {12'd0, scale} : length_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= StSettle;
      pending_q <= 1'b0;
      resetting_q <= 1'b1;
      elapsed_q <= '0;
      length_q <= '0;
    end else begin
      if (reset_i) elapsed_q <= '0;
      else if (counted_tick_o) begin
        length_q <= length;
        if (elapsed_q + 1 >= {6'd0, length} && state_q == StRun && !pending_q) begin
          elapsed_q <= '0;
          pending_q <= 1'b1;
        end else if (!(&elapsed_q)) begin
          elapsed_q <= elapsed_q + 1;
        end
      end
      unique case (state_q)
        StRun:
        if (reset_i) begin
          state_q <= StSettle;
          resetting_q <= 1'b1;
          pending_q <= 1'b0;
        end else if (pending_q && !pipe_busy_i) begin
          state_q <= StWalk;
          pending_q <= 1'b0;
        end
        StWalk: if (walk_last_i) state_q <= StFlush;
        StFlush: if (!pipe_busy_i) state_q <= StLatch;
        StLatch: state_q <= StSettle;
        default:
        if (!pipe_busy_i && !histogram_busy_i) begin
          state_q <= StRun;
          resetting_q <= 1'b0;
        end
      endcase
    end
  end
endmodule
