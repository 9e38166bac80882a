// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Queue in block RAM. An element pushed in a clock is at the head in the next one, one push and one pop a clock.
// full_o refuses at the start of a clock, even if that clock pops. Pushing when full and popping when empty is ignored.
module neoprof_fifo #(
  parameter int unsigned Width = 26,
  parameter int unsigned Depth = 4096  // power of two, at least 2
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic             push_i,
  input  logic [Width-1:0] data_i,
  output logic             full_o,
  input  logic             pop_i,
  output logic             valid_o,
  output logic [Width-1:0] data_o,
  // A mark: what has been pushed by the end of this clock lies before it. marked_o: of that, something is left. It means
  // nothing once an element from behind the mark has been popped.
  input  logic             mark_i,
  output logic             marked_o
);
  localparam int unsigned AddrBits = $clog2(Depth);

  logic [Width-1:0] mem [Depth];
  logic [AddrBits:0] wptr_q, rptr_q, rptr_d, mark_q;
  logic [Width-1:0] ram_q, bypass_q;
  logic bypass_sel_q;
  logic push, pop;

  assign full_o = wptr_q == (rptr_q ^ {1'b1, {AddrBits{1'b0}}});
  assign valid_o = wptr_q != rptr_q;
  assign data_o = bypass_sel_q ? bypass_q : ram_q;
  assign push = push_i & ~full_o;
  assign pop = pop_i & valid_o;
  assign rptr_d = rptr_q + {{AddrBits{1'b0}}, pop};
  assign marked_o = mark_q != rptr_q;

  // The RAM is read one clock ahead, at the address that will be the head. What is written there in the same clock
  // would not be seen yet: it takes the bypass.
  always_ff @(posedge clk_i) begin
    if (push) mem[wptr_q[AddrBits-1:0]] <= data_i;
    if (push | pop) begin
      ram_q <= mem[rptr_d[AddrBits-1:0]];
      bypass_q <= data_i;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wptr_q <= '0;
      rptr_q <= '0;
      bypass_sel_q <= 1'b0;
      mark_q <= '0;
    end else begin
      if (push | pop) begin
        if (push) wptr_q <= wptr_q + 1'b1;
        rptr_q <= rptr_d;
        bypass_sel_q <= push & (wptr_q == rptr_d);
      end
      if (mark_i) mark_q <= wptr_q + {{AddrBits{1'b0}}, push};
    end
  end
endmodule
