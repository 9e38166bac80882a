// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// One row of the count-min sketch: up to 2^Log2Width entries of {epoch tag, counter} in block RAM. The stages, each a clock:
//   1 hash   2 read the entry   3 look its tag up   4 fade the counter   5 forward, add, write
// An entry keeps the tag of the epoch in which it was last written. A second, small RAM says for each tag how far time
// had faded counters then, in bits of right shift; the difference to now is the shift due. So an epoch's end touches no
// entry, and a change of DECAY applies to the epochs that end after it and to none before.
// An entry written less than three clocks before it is read again is not in the RAM yet: it is forwarded at stage 5.
module neoprof_cm_row #(
  parameter int unsigned Row = 0,
  parameter int unsigned KeyBits = 24,
  parameter int unsigned Log2Width = 19,
  parameter int unsigned MinLog2Width = Log2Width,
  parameter int unsigned HashSeeds = 1,
  parameter int unsigned CounterBits = 16,
  parameter int unsigned EpochTagBits = 8,
  localparam int unsigned FadedBits = EpochTagBits + 5
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic [4:0]              log2_width_i,
  input  logic [1:0]              hash_seed_i,
  // Stage enables, from the sketch
  input  logic                    s1_valid_i,
  input  logic                    s2_valid_i,
  input  logic                    s3_valid_i,
  input  logic                    s4_valid_i,
  // Stage 1 and 2: a key to hash, or an index of a sweep
  input  logic [KeyBits-1:0]      s1_key_i,
  input  logic                    s2_sweep_i,
  input  logic [Log2Width-1:0]    s2_index_i,
  // Stage 5
  input  logic                    s5_write_i,
  input  logic                    s5_add_i,
  input  logic                    s5_clear_i,
  output logic [CounterBits-1:0]  s5_count_o,  // before the addition
  // Time; changes only while no request is in flight
  input  logic [EpochTagBits-1:0] epoch_i,
  input  logic [FadedBits-1:0]    faded_i,
  input  logic                    faded_write_i,
  input  logic [EpochTagBits-1:0] faded_tag_i,
  input  logic [FadedBits-1:0]    faded_value_i
);
  localparam int unsigned EntryBits = EpochTagBits + CounterBits;

  logic [EntryBits-1:0] mem [2**Log2Width];
  logic [FadedBits-1:0] faded_mem [2**EpochTagBits];

  logic [Log2Width-1:0] s2_hash, s2_index, s3_index_q, s4_index_q, s5_index_q;
  logic [EntryBits-1:0] s3_entry_q;
  logic [CounterBits-1:0] s4_count_q, s5_count_q, s5_count, s5_result;
  logic [FadedBits-1:0] s4_faded_q, s4_shift;

  neoprof_h3 #(
    .Row     (Row),
    .KeyBits (KeyBits),
    .HashBits(Log2Width),
    .MinBits (MinLog2Width),
    .Seeds   (HashSeeds)
  ) u_h3 (
    .clk_i,
    .rst_ni,
    .log2_width_i,
    .hash_seed_i,
    .en_i  (s1_valid_i),
    .key_i (s1_key_i),
    .hash_o(s2_hash)
  );

  assign s2_index = s2_sweep_i ? s2_index_i : s2_hash;
  assign s4_shift = faded_i - s4_faded_q;

  // What was written in the last three clocks.
  logic w1_valid_q, w2_valid_q, w3_valid_q;
  logic [Log2Width-1:0] w1_index_q, w2_index_q, w3_index_q;
  logic [CounterBits-1:0] w1_count_q, w2_count_q, w3_count_q;

  always_comb begin
    s5_count = s5_count_q;
    if (w1_valid_q && w1_index_q == s5_index_q) s5_count = w1_count_q;
    else if (w2_valid_q && w2_index_q == s5_index_q) s5_count = w2_count_q;
    else if (w3_valid_q && w3_index_q == s5_index_q) s5_count = w3_count_q;
    s5_result = s5_count;
    if (s5_clear_i) s5_result = '0;
    else if (s5_add_i && !(&s5_count)) s5_result = s5_count + 1'b1;
  end
  assign s5_count_o = s5_count;

  always_ff @(posedge clk_i) begin
    if (s2_valid_i) begin
      s3_entry_q <= mem[s2_index];
      s3_index_q <= s2_index;
    end
    if (s3_valid_i) begin
      s4_faded_q <= faded_mem[s3_entry_q[EntryBits-1-:EpochTagBits]];
      s4_count_q <= s3_entry_q[CounterBits-1:0];
      s4_index_q <= s3_index_q;
    end
    if (s4_valid_i) begin
      s5_count_q <= (s4_shift >= 16) ? '0 : s4_count_q >> s4_shift[3:0];
      s5_index_q <= s4_index_q;
    end
    if (s5_write_i) mem[s5_index_q] <= {epoch_i, s5_result};
    if (faded_write_i) faded_mem[faded_tag_i] <= faded_value_i;
    w1_index_q <= s5_index_q;
    w1_count_q <= s5_result;
    w2_index_q <= w1_index_q;
    w2_count_q <= w1_count_q;
    w3_index_q <= w2_index_q;
    w3_count_q <= w2_count_q;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      w1_valid_q <= 1'b0;
      w2_valid_q <= 1'b0;
      w3_valid_q <= 1'b0;
    end else begin
      w1_valid_q <= s5_write_i;
      w2_valid_q <= w1_valid_q;
      w3_valid_q <= w2_valid_q;
    end
  end
endmodule
