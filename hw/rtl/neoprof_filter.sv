// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Second box: decides whether a request is counted, by type, by address range, then by down-sampling, and turns its page
// into a unit. No latency: it decides about the request at the head of the tap in the clock in which that leaves, under
// the configuration of that clock.
//
// Down-sampling by 2^n passes every 2^n-th request, or, randomised, one whose n low LFSR bits are 0. The LFSR moves on
// by 8 bits a request, so that the bits looked at are new each time.
module neoprof_filter #(
  parameter int unsigned DpaBits = 36,
  localparam int unsigned PageBits = DpaBits - 12
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic                       reset_i,
  // Configuration
  input  logic [7:0]                 track_i,
  input  logic                       random_i,
  input  logic [7:0]                 sample_log2_i,
  input  logic                       large_unit_i,  // 2 MiB instead of 4 KiB
  input  logic [2**(DpaBits-28)-1:0] bitmap_i,
  // From the tap; valid_i says that the request leaves in this clock
  input  logic                       valid_i,
  input  logic                       write_i,
  input  logic                       outside_i,
  input  logic [PageBits-1:0]        page_i,
  // To the tracker
  output logic                       valid_o,
  output logic [PageBits-1:0]        unit_o,
  // To the watch table: as unit_o, whatever down-sampling leaves out
  output logic                       eligible_o,
  // For the counters
  output logic                       filtered_o,
  output logic                       sampled_out_o
);
  localparam logic [31:0] LfsrSeed = 32'h5eed1234;
  localparam logic [31:0] LfsrTaps = 32'ha3000000;  // Galois, x^32 + x^30 + x^26 + x^25 + 1

  function automatic logic [31:0] leap(input logic [31:0] state);
    logic [31:0] x;
    x = state;
    for (int i = 0; i < 8; i++) x = (x >> 1) ^ (x[0] ? LfsrTaps : 32'h0);
    leap = x;
  endfunction

  logic [31:0] lfsr_q;
  logic [7:0] count_q, count_d, mask;
  logic type_ok, pass;

  always_comb begin
    unique case (track_i)
      8'd1, 8'd4: type_ok = ~write_i;
      8'd2, 8'd5: type_ok = write_i;
      8'd3, 8'd6: type_ok = 1'b1;
      default: type_ok = 1'b0;
    endcase
  end

  assign eligible_o = valid_i & type_ok & ~outside_i & bitmap_i[page_i[PageBits-1:16]];
  assign mask = (sample_log2_i >= 8'd8) ? 8'hff : 8'((9'd1 << sample_log2_i[3:0]) - 9'd1);
  assign count_d = count_q + 8'd1;
  assign pass = ((random_i ? lfsr_q[7:0] : count_d) & mask) == 8'd0;

  assign valid_o = eligible_o & pass;
  assign unit_o = large_unit_i ? {9'd0, page_i[PageBits-1:9]} : page_i;
  assign filtered_o = valid_i & ~eligible_o;
  assign sampled_out_o = eligible_o & ~pass;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      count_q <= '0;
      lfsr_q <= LfsrSeed;
    end else if (reset_i) begin
      count_q <= '0;
      lfsr_q <= LfsrSeed;
    end else if (eligible_o) begin
      if (random_i) lfsr_q <= leap(lfsr_q);
      else count_q <= count_d;
    end
  end
endmodule
