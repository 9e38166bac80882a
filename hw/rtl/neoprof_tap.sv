// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// First box: watches the memory's request ports and never holds them back. Each channel has a queue; one request a clock
// leaves, channels taking turns. A request that finds its queue full is dropped and counted. A request accepted in clock
// t can leave in t + 1 at the earliest.
//
// Of an address only what the profiler can count is kept: the 4 KiB page within the range bitmap's reach, and whether it
// lies outside that.
//
// With hold_i only requests leave that were accepted by the end of the clock of mark_i; hold_i follows it at once.
module neoprof_tap #(
  parameter int unsigned Channels = 1,
  parameter int unsigned Depth = 4096,
  parameter int unsigned DpaBits = 36,
  localparam int unsigned PageBits = DpaBits - 12,
  localparam int unsigned CountBits = $clog2(Channels + 1)
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   enable_i,
  input  logic                   mark_i,
  input  logic                   hold_i,
  // Request ports
  input  logic [Channels-1:0]    req_valid_i,
  input  logic [Channels-1:0]    req_write_i,
  input  logic [Channels*64-1:0] req_addr_i,
  // To the filter
  output logic                   valid_o,
  output logic                   write_o,
  output logic                   outside_o,
  output logic [PageBits-1:0]    page_o,
  input  logic                   ready_i,
  output logic                   empty_o,    // of all requests, those held as well
  // Requests in this clock, for the counters
  output logic [CountBits-1:0]   reads_o,
  output logic [CountBits-1:0]   writes_o,
  output logic [CountBits-1:0]   lost_o
);
  localparam int unsigned Width = PageBits + 2;

  logic [Channels-1:0] seen, waiting, marked, valid, full, pop;
  logic [Channels*Width-1:0] head;

  assign seen = req_valid_i & {Channels{enable_i}};

  for (genvar c = 0; c < Channels; c++) begin : gen_channel
    logic [63:0] addr;
    logic unused_addr;
    assign addr = req_addr_i[c*64+:64];
    assign unused_addr = ^addr[11:0];
    neoprof_fifo #(
      .Width(Width),
      .Depth(Depth)
    ) u_fifo (
      .clk_i,
      .rst_ni,
      .push_i (seen[c]),
      .data_i ({req_write_i[c], |addr[63:DpaBits], addr[DpaBits-1:12]}),
      .full_o (full[c]),
      .pop_i  (pop[c]),
      .valid_o(waiting[c]),
      .data_o (head[c*Width+:Width]),
      .mark_i,
      .marked_o(marked[c])
    );
  end

  assign valid = waiting & (marked | {Channels{~hold_i}});
  assign valid_o = |valid;
  assign empty_o = ~|waiting;

  if (Channels == 1) begin : gen_single
    assign pop = ready_i & valid_o;
    assign {write_o, outside_o, page_o} = head;
  end else begin : gen_turns
    localparam int unsigned IndexBits = $clog2(Channels);
    logic [IndexBits-1:0] next_q, grant;
    // The first channel with a request, from next_q on.
    always_comb begin
      grant = next_q;
      for (int c = Channels - 1; c >= 0; c--) begin
        if (valid[c]) grant = IndexBits'(c);
      end
      for (int c = Channels - 1; c >= 0; c--) begin
        if (valid[c] && IndexBits'(c) >= next_q) grant = IndexBits'(c);
      end
    end
    always_comb begin
      pop = '0;
      pop[grant] = ready_i & valid_o;
    end
    assign {write_o, outside_o, page_o} = head[grant*Width+:Width];
    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) next_q <= '0;
      else if (ready_i & valid_o) next_q <= (grant == IndexBits'(Channels - 1)) ? '0 : grant + 1'b1;
    end
  end

  always_comb begin
    reads_o = '0;
    writes_o = '0;
    lost_o = '0;
    for (int c = 0; c < Channels; c++) begin
      if (seen[c] & ~req_write_i[c]) reads_o = reads_o + 1'b1;
      if (seen[c] & req_write_i[c]) writes_o = writes_o + 1'b1;
      if (seen[c] & full[c]) lost_o = lost_o + 1'b1;
    end
  end
endmodule
