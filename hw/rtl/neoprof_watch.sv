// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Watch table: counts the requests of a few units that the host names, exactly: each has an entry of its own, so nothing
// is shared and nothing is estimated. Beside the tracker, fed from the filter before down-sampling. A request takes three
// clocks, of which the first registers it, so that the filter's path grows by no comparison:
//   1 register the request   2 compare with all units, the lowest entry that names it   3 count
//
// A count is read, added to and written in one clock, so that the next request finds it: nothing has to be forwarded.
// The host's writes and reset_i come only while nothing is in flight (busy_o is 0, valid_i is 0): what was counted before
// them belongs to the old unit, and they have the memory's only write port to themselves.
//
//   write_i    one clock: the bytes of write_unit_i that write_strobe_i names become the entry's, which begins from 0. The
//              other bytes stay; where the entry named nothing they are 0xff. A unit of more than UnitBits bits is none.
//   reset_i    one clock: all entries name nothing. So does rst_ni. The memory keeps what it has: an entry that names
//              nothing reads as count 0, and the write that names a unit clears it.
//   bus_*      the entry bus_index_i as it is now.
module neoprof_watch #(
  parameter int unsigned Entries = neoprof_reg_pkg::WATCH_COUNT,  // power of two, at least 2
  parameter int unsigned UnitBits = 24,                           // under 32
  localparam int unsigned IndexBits = $clog2(Entries)
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  // From the filter
  input  logic                 valid_i,
  input  logic [UnitBits-1:0]  unit_i,
  output logic                 busy_o,
  // Commands
  input  logic                 write_i,
  input  logic [IndexBits-1:0] write_index_i,
  input  logic [31:0]          write_unit_i,
  input  logic [3:0]           write_strobe_i,
  input  logic                 reset_i,
  // Bus
  input  logic [IndexBits-1:0] bus_index_i,
  output logic [31:0]          bus_count_o,
  output logic [31:0]          bus_unit_o
);
  logic [Entries-1:0] named_q;
  logic s1_valid_q;
  logic [UnitBits-1:0] s1_unit_q;

  // The units twice: in flip-flops, to compare with all at once, and in a memory, to read one. What either has of an entry
  // that names nothing means nothing.
  logic [Entries*UnitBits-1:0] units_q;
  logic [UnitBits-1:0] unit_mem [Entries];

  function automatic logic [31:0] unit_of(input logic named, input logic [UnitBits-1:0] unit);
    unit_of = named ? {{(32 - UnitBits) {1'b0}}, unit} : '1;
  endfunction

  logic [31:0] merged;
  logic names;
  always_comb begin
    merged = unit_of(named_q[write_index_i], unit_mem[write_index_i]);
    for (int b = 0; b < 4; b++) begin
      if (write_strobe_i[b]) merged[b*8+:8] = write_unit_i[b*8+:8];
    end
  end
  assign names = merged[31:UnitBits] == '0;

  always_ff @(posedge clk_i) begin
    if (write_i) unit_mem[write_index_i] <= merged[UnitBits-1:0];
  end
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) named_q <= '0;
    else if (reset_i) named_q <= '0;
    else if (write_i) named_q[write_index_i] <= names;
  end
  // One bit vector, and written by a loop: Yosys would take an array for a memory of 64 read ports.
  always_ff @(posedge clk_i) begin
    if (write_i) begin
      for (int e = 0; e < Entries; e++) begin
        if (write_index_i == IndexBits'(e)) units_q[e*UnitBits+:UnitBits] <= merged[UnitBits-1:0];
      end
    end
  end

  // Stages.
  logic s2_valid_q, s2_match_q;
  logic [IndexBits-1:0] s2_index_q, lowest;
  logic match;

  // A table that names nothing compares nothing: that spares a simulator most of it.
  always_comb begin
    match = 1'b0;
    lowest = '0;
    if (s1_valid_q && named_q != '0) begin
      for (int e = Entries - 1; e >= 0; e--) begin
        if (named_q[e] && units_q[e*UnitBits+:UnitBits] == s1_unit_q) begin
          match = 1'b1;
          lowest = IndexBits'(e);
        end
      end
    end
  end
  assign busy_o = s1_valid_q | s2_valid_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      s1_valid_q <= 1'b0;
      s2_valid_q <= 1'b0;
      s2_match_q <= 1'b0;
    end else begin
      s1_valid_q <= valid_i;
      s2_valid_q <= s1_valid_q;
      s2_match_q <= match;
    end
  end
  always_ff @(posedge clk_i) begin
    s1_unit_q <= unit_i;
    s2_index_q <= lowest;
  end

  logic [31:0] count_mem [Entries];
  logic [IndexBits-1:0] waddr;
  logic [31:0] wdata;
  assign waddr = write_i ? write_index_i : s2_index_q;
  assign wdata = write_i ? '0 : count_mem[s2_index_q] + 32'd1;
  always_ff @(posedge clk_i) begin
    if (write_i || s2_match_q) count_mem[waddr] <= wdata;
  end

  assign bus_count_o = named_q[bus_index_i] ? count_mem[bus_index_i] : '0;
  assign bus_unit_o = unit_of(named_q[bus_index_i], unit_mem[bus_index_i]);

`ifndef SYNTHESIS
  assert property (@(posedge clk_i) disable iff (!rst_ni) !((valid_i || busy_o) && (write_i || reset_i))) else $error("a request in the clock of a write or a reset");
`endif
endmodule
