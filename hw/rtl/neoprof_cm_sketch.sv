// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Third box, a tracker: a count-min sketch. Every tracker has this interface:
//
//   request      req_valid_i with req_unit_i, at most one a clock, never while a sweep goes on (busy_o, with no
//                request in flight). req_lookup_i = 0: count
//                one request of the unit. 1: only estimate it.
//   response     exactly six clocks after the request, in order: rsp_valid_o with the unit, the estimates before and
//                after (equal for a lookup) and rsp_lookup_o. A request acts as if all earlier ones were complete.
//   epoch_end_i  one clock, only while busy_o is 0: a new epoch begins. decay_i is the value of DECAY.SHIFT for it.
//   reset_i      one clock, only while busy_o is 0: forget everything.
//   rst_ni       does so too, and fills the memories: 2^log2_width_i clocks.
//   busy_o       a request is in flight or maintenance (after epoch_end_i, reset_i) goes on.
//
// Estimates are the minimum over the rows. A request adds one to the counters that say the minimum, up to their maximum,
// and leaves the others: they count more than the unit's own already (conservative update: C. Estan and G. Varghese, "New
// directions in traffic measurement and accounting", SIGCOMM 2002). So no estimate is too low, and none is higher than if
// each row added one. Rows go in step, so all counters of a request are known in the clock in which they are written.
// An epoch's end is done in one clock by the tags of neoprof_cm_row, and so is a reset, which is an epoch's end that fades
// counters by all their bits. After it the scrubber rewrites ceil(2^log2_width_i / (2^EpochTagBits - 2)) entries of each row
// with the present tag, from where it stopped last: an entry's tag is at most 2^EpochTagBits - 2 epochs old, so that it
// never seems younger than it is.
module neoprof_cm_sketch #(
  parameter int unsigned Rows = 2,          // 1 to 8; each costs a RAM
  parameter int unsigned Log2Width = 19,    // 6 to 24
  parameter int unsigned MinLog2Width = Log2Width,  // the least that log2_width_i may choose; 6 to Log2Width
  parameter int unsigned HashSeeds = 1,             // that hash_seed_i may choose from
  parameter int unsigned CounterBits = 16,  // 2 to 16
  parameter int unsigned UnitBits = 24,
  parameter int unsigned EpochTagBits = 8   // 2 to 16; more tags cost RAM, fewer a longer scrub
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  // Straps
  input  logic [4:0]             log2_width_i,
  input  logic [1:0]             hash_seed_i,
  // Request
  input  logic                   req_valid_i,
  input  logic                   req_lookup_i,
  input  logic [UnitBits-1:0]    req_unit_i,
  // Response
  output logic                   rsp_valid_o,
  output logic                   rsp_lookup_o,
  output logic [UnitBits-1:0]    rsp_unit_o,
  output logic [CounterBits-1:0] rsp_before_o,
  output logic [CounterBits-1:0] rsp_after_o,
  // Commands
  input  logic                   epoch_end_i,
  input  logic [3:0]             decay_i,
  input  logic                   reset_i,
  output logic                   busy_o
);
  localparam int unsigned Tags = 2 ** EpochTagBits - 2;
  localparam int unsigned FadedBits = EpochTagBits + 5;  // room for 16 a tag, twice

  // Time.
  logic [EpochTagBits-1:0] epoch_q, epoch_d;
  logic [FadedBits-1:0] faded_q, faded_d;
  // A cleared counter is one shifted by all its bits.
  logic next_tag;
  logic [4:0] fade;
  assign next_tag = epoch_end_i | reset_i;
  assign epoch_d = epoch_q + {{(EpochTagBits - 1) {1'b0}}, next_tag};
  assign fade = (reset_i || decay_i == 4'd0) ? 5'd16 : {1'b0, decay_i};
  assign faded_d = next_tag ? faded_q + {{(FadedBits - 5) {1'b0}}, fade} : faded_q;

  // Sweeps: the scrubber's, and after rst_ni one that fills the memories.
  logic [Log2Width-1:0] index_mask;
  logic [Log2Width:0] scrub_entries;
  always_comb begin
    index_mask = '1;
    scrub_entries = (Log2Width + 1)'((2 ** Log2Width + Tags - 1) / Tags);
    for (int unsigned w = MinLog2Width; w < Log2Width; w++) begin
      if (log2_width_i == 5'(w)) begin
        index_mask = Log2Width'(2 ** w - 1);
        scrub_entries = (Log2Width + 1)'((2 ** w + Tags - 1) / Tags);
      end
    end
  end

  logic sweep_q, sweep_clear_q;
  logic [Log2Width:0] sweep_left_q;
  logic [Log2Width-1:0] sweep_index_q;

  // Stages.
  logic [UnitBits-1:0] s1_unit_q, s2_unit_q, s3_unit_q, s4_unit_q, s5_unit_q;
  logic [Log2Width-1:0] s1_index_q, s2_index_q;
  logic s1_valid_q, s2_valid_q, s3_valid_q, s4_valid_q, s5_valid_q;
  logic s1_sweep_q, s2_sweep_q, s3_sweep_q, s4_sweep_q, s5_sweep_q;
  logic s1_flag_q, s2_flag_q, s3_flag_q, s4_flag_q, s5_flag_q;  // lookup; of a sweep: clear

  logic [Rows*CounterBits-1:0] counts;
  logic [CounterBits-1:0] least;

  for (genvar r = 0; r < Rows; r++) begin : gen_row
    neoprof_cm_row #(
      .Row         (r),
      .KeyBits     (UnitBits),
      .Log2Width   (Log2Width),
      .MinLog2Width(MinLog2Width),
      .HashSeeds   (HashSeeds),
      .CounterBits (CounterBits),
      .EpochTagBits(EpochTagBits)
    ) u_row (
      .clk_i,
      .rst_ni,
      .log2_width_i,
      .hash_seed_i,
      .s1_valid_i   (s1_valid_q & ~s1_sweep_q),
      .s2_valid_i   (s2_valid_q),
      .s3_valid_i   (s3_valid_q),
      .s4_valid_i   (s4_valid_q),
      .s1_key_i     (s1_unit_q),
      .s2_sweep_i   (s2_sweep_q),
      .s2_index_i   (s2_index_q),
      .s5_write_i   (s5_valid_q & (s5_sweep_q | (~s5_flag_q & counts[r*CounterBits+:CounterBits] == least))),
      .s5_add_i     (~s5_sweep_q),
      .s5_clear_i   (s5_sweep_q & s5_flag_q),
      .s5_count_o   (counts[r*CounterBits+:CounterBits]),
      .epoch_i      (epoch_q),
      .faded_i      (faded_q),
      .faded_write_i(next_tag | (sweep_q & sweep_clear_q)),
      .faded_tag_i  (epoch_d),
      .faded_value_i(faded_d)
    );
  end

  always_comb begin
    least = counts[CounterBits-1:0];
    for (int r = 1; r < Rows; r++) begin
      if (counts[r*CounterBits+:CounterBits] < least) least = counts[r*CounterBits+:CounterBits];
    end
  end

  assign busy_o = sweep_q | s1_valid_q | s2_valid_q | s3_valid_q | s4_valid_q | s5_valid_q | rsp_valid_o;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      {s1_valid_q, s2_valid_q, s3_valid_q, s4_valid_q, s5_valid_q, rsp_valid_o} <= '0;
      epoch_q <= '0;
      faded_q <= '0;
      sweep_q <= 1'b1;
      sweep_clear_q <= 1'b1;
      sweep_left_q <= '0;
      sweep_index_q <= '0;
    end else begin
      s1_valid_q <= req_valid_i | sweep_q;
      s2_valid_q <= s1_valid_q;
      s3_valid_q <= s2_valid_q;
      s4_valid_q <= s3_valid_q;
      s5_valid_q <= s4_valid_q;
      rsp_valid_o <= s5_valid_q & ~s5_sweep_q;
      if (next_tag) begin
        epoch_q <= epoch_d;
        faded_q <= faded_d;
        sweep_q <= 1'b1;
        sweep_clear_q <= 1'b0;
        sweep_left_q <= scrub_entries;
      end else if (sweep_q) begin
        sweep_index_q <= (sweep_index_q + 1'b1) & index_mask;
        sweep_left_q <= sweep_left_q - 1'b1;
        // The sweep after rst_ni ends with the last entry and begins the scrubber's round at the first.
        sweep_q <= sweep_clear_q ? sweep_index_q != index_mask : sweep_left_q != 1;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    s1_sweep_q <= sweep_q;
    s1_flag_q <= sweep_q ? sweep_clear_q : req_lookup_i;
    s1_unit_q <= req_unit_i;
    s1_index_q <= sweep_index_q;
    s2_sweep_q <= s1_sweep_q;
    s2_flag_q <= s1_flag_q;
    s2_unit_q <= s1_unit_q;
    s2_index_q <= s1_index_q;
    s3_sweep_q <= s2_sweep_q;
    s3_flag_q <= s2_flag_q;
    s3_unit_q <= s2_unit_q;
    s4_sweep_q <= s3_sweep_q;
    s4_flag_q <= s3_flag_q;
    s4_unit_q <= s3_unit_q;
    s5_sweep_q <= s4_sweep_q;
    s5_flag_q <= s4_flag_q;
    s5_unit_q <= s4_unit_q;
    if (s5_valid_q) begin
      rsp_lookup_o <= s5_flag_q;
      rsp_unit_o <= s5_unit_q;
      rsp_before_o <= least;
      rsp_after_o <= (s5_flag_q || (&least)) ? least : least + 1'b1;
    end
  end

`ifndef SYNTHESIS
  assert property (@(posedge clk_i) disable iff (!rst_ni) !(req_valid_i && sweep_q)) else $error("a request during a sweep");
  assert property (@(posedge clk_i) disable iff (!rst_ni) !((epoch_end_i || reset_i) && busy_o)) else $error("an epoch's end or a reset while busy");
`endif
endmodule
