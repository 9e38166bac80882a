// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Last box: the hotlist ring in device RAM. The device writes at TAIL, the host reads and advances HEAD; the ring holds
// one entry fewer than its size. A push to a full ring is lost and counted. fill_o is a level: it says what is so now.
module neoprof_hotlist #(
  parameter int unsigned Entries = 4096,  // power of two, at most 65536
  parameter int unsigned EntryBits = 40,  // entries are zero-extended to 64 bits
  localparam int unsigned IndexBits = $clog2(Entries)
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 reset_i,
  input  logic [15:0]          fill_level_i,
  // From the hot filter
  input  logic                 push_i,
  input  logic [EntryBits-1:0] entry_i,
  // From the bus
  input  logic                 head_write_i,
  input  logic [IndexBits-1:0] head_i,
  input  logic                 overflow_clear_i,
  input  logic                 bus_en_i,
  input  logic [IndexBits-1:0] bus_index_i,
  output logic [EntryBits-1:0] bus_entry_o,  // one clock after bus_en_i
  // State
  output logic [IndexBits-1:0] head_o,
  output logic [IndexBits-1:0] tail_o,
  output logic                 overflow_o,
  output logic                 fill_o,
  // For the counters
  output logic                 written_o,
  output logic                 lost_o,
  // What was written, as it has been written
  output logic                 observe_valid_o,
  output logic [IndexBits-1:0] observe_index_o,
  output logic [EntryBits-1:0] observe_entry_o
);
  logic [EntryBits-1:0] mem [Entries];

  logic [IndexBits-1:0] tail_d, level;
  logic full;
  logic [15:0] fill_level;

  assign tail_d = tail_o + 1'b1;
  assign level = tail_o - head_o;
  assign full = tail_d == head_o;
  assign fill_level = (fill_level_i == 16'd0) ? 16'd1 : fill_level_i;
  assign fill_o = {{(16 - IndexBits) {1'b0}}, level} >= fill_level;
  assign written_o = push_i & ~full;
  assign lost_o = push_i & full;

  always_ff @(posedge clk_i) begin
    if (written_o) mem[tail_o] <= entry_i;
    if (bus_en_i) bus_entry_o <= mem[bus_index_i];
    if (written_o) begin
      observe_index_o <= tail_o;
      observe_entry_o <= entry_i;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      head_o <= '0;
      tail_o <= '0;
      overflow_o <= 1'b0;
      observe_valid_o <= 1'b0;
    end else if (reset_i) begin
      head_o <= '0;
      tail_o <= '0;
      overflow_o <= 1'b0;
      observe_valid_o <= 1'b0;
    end else begin
      observe_valid_o <= written_o;
      if (written_o) tail_o <= tail_d;
      if (head_write_i) head_o <= head_i;
      // Setting wins over clearing: no event is lost between the host's read and its write.
      if (lost_o) overflow_o <= 1'b1;
      else if (overflow_clear_i) overflow_o <= 1'b0;
    end
  end
endmodule
