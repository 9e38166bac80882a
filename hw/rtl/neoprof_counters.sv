// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Every count that the host can read, live and as CTRL.SNAPSHOT latched it. snapshot_o has the registers TICKS to HOT in
// order of their offsets, 64 bits each.
//
// ERROR.BOUND is e x mass / width, rounded up, with e = 178146 / 2^16 (rounded up). mass is what the counters of a row
// add up to: the epoch's updates, plus, with DECAY.SHIFT = n, the mass before shifted right by n. Where mass reached its
// maximum the bound is not known, and reads as the greatest.
//
// A reset has two instants: from reset_begin_i on the tap's counts belong to what comes after it, from reset_i on all
// others, because between them nothing but what the tap had accepted before is worked on.
module neoprof_counters #(
  parameter int unsigned CountBits = 1,    // of the tap's events in one clock
  parameter int unsigned ListBits = 12,
  parameter int unsigned CounterBits = 16
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [4:0]             log2_width_i,
  input  logic                   reset_begin_i,
  input  logic                   reset_i,
  input  logic                   snapshot_i,
  input  logic                   latch_i,    // end of an epoch
  input  logic [3:0]             decay_i,
  // Events
  input  logic                   tick_i,
  input  logic [CountBits-1:0]   reads_i,
  input  logic [CountBits-1:0]   writes_i,
  input  logic [CountBits-1:0]   lost_tap_i,
  input  logic                   filtered_i,
  input  logic                   sampled_out_i,
  input  logic                   update_i,
  input  logic [CounterBits-1:0] before_i,   // estimate before the update
  input  logic                   lost_candidate_i,
  input  logic                   written_i,
  input  logic                   lost_ring_i,
  input  logic [ListBits:0]      listed_i,
  // To the bus
  output logic [15*64-1:0]       snapshot_o
);
  localparam logic [63:0] Euler = 64'd178146;

  logic [63:0] ticks_q, epochs_q, reads_q, writes_q, tracked_q, filtered_q, sampled_out_q, reported_q;
  logic [63:0] lost_tap_q, lost_ring_q, lost_candidates_q, saturated_q;
  logic [31:0] units_q, updates_q, mass_q;
  logic [31:0] last_units_q, last_updates_q, last_mass_q, last_bound_q;
  logic [ListBits:0] last_hot_q;
  logic bound_due_q;
  logic [63:0] quotient;
  logic [31:0] bound;
  logic [5:0] shift;

  assign shift = 6'd16 + {1'b0, log2_width_i};
  assign quotient = ({32'd0, last_mass_q} * Euler + (64'd1 << shift) - 64'd1) >> shift;
  assign bound = (&last_mass_q) ? '1 : quotient[31:0];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      {ticks_q, epochs_q, tracked_q, filtered_q, sampled_out_q, reported_q} <= '0;
      {lost_ring_q, lost_candidates_q, saturated_q} <= '0;
      {units_q, updates_q, mass_q} <= '0;
      {last_units_q, last_updates_q, last_mass_q, last_bound_q, last_hot_q} <= '0;
      bound_due_q <= 1'b0;
      snapshot_o <= '0;
    end else if (reset_i) begin
      {ticks_q, epochs_q, tracked_q, filtered_q, sampled_out_q, reported_q} <= '0;
      {lost_ring_q, lost_candidates_q, saturated_q} <= '0;
      {units_q, updates_q, mass_q} <= '0;
      {last_units_q, last_updates_q, last_mass_q, last_bound_q, last_hot_q} <= '0;
      bound_due_q <= 1'b0;
      snapshot_o <= '0;
    end else begin
      if (tick_i) ticks_q <= ticks_q + 1;
      if (filtered_i) filtered_q <= filtered_q + 1;
      if (sampled_out_i) sampled_out_q <= sampled_out_q + 1;
      if (written_i) reported_q <= reported_q + 1;
      if (lost_ring_i) lost_ring_q <= lost_ring_q + 1;
      if (lost_candidate_i) lost_candidates_q <= lost_candidates_q + 1;
      if (update_i) begin
        tracked_q <= tracked_q + 1;
        if (&before_i) saturated_q <= saturated_q + 1;
        if (before_i == 0) units_q <= units_q + 1;
        if (!(&updates_q)) updates_q <= updates_q + 1;
        if (!(&mass_q)) mass_q <= mass_q + 1;
      end
      // No update is in flight when an epoch ends.
      if (latch_i) begin
        epochs_q <= epochs_q + 1;
        units_q <= '0;
        updates_q <= '0;
        mass_q <= (decay_i == 0) ? '0 : mass_q >> decay_i;
        last_units_q <= units_q;
        last_updates_q <= updates_q;
        last_mass_q <= mass_q;
        last_hot_q <= listed_i;
      end
      bound_due_q <= latch_i;
      if (bound_due_q) last_bound_q <= bound;
      if (snapshot_i) begin
        snapshot_o <= {
          {(63 - ListBits) {1'b0}}, last_hot_q,
          // In the clock after an epoch's end the register still has the bound of the epoch before.
          32'd0, bound_due_q ? bound : last_bound_q,
          last_updates_q, last_units_q,
          saturated_q, lost_candidates_q, lost_ring_q, lost_tap_q, reported_q, sampled_out_q, filtered_q, tracked_q,
          writes_q, reads_q, epochs_q, ticks_q
        };
      end
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      {reads_q, writes_q, lost_tap_q} <= '0;
    end else if (reset_begin_i) begin
      {reads_q, writes_q, lost_tap_q} <= '0;
    end else begin
      if (reads_i != 0) reads_q <= reads_q + {{(64 - CountBits) {1'b0}}, reads_i};
      if (writes_i != 0) writes_q <= writes_q + {{(64 - CountBits) {1'b0}}, writes_i};
      if (lost_tap_i != 0) lost_tap_q <= lost_tap_q + {{(64 - CountBits) {1'b0}}, lost_tap_i};
    end
  end

  logic unused_quotient;
  assign unused_quotient = ^quotient[63:32];
endmodule
