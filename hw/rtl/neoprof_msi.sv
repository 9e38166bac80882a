// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Makes messages (edges) of interrupt causes (levels): one clock of message_o when a cause rises, and again when the host
// has done something about a cause (again_i) that stands all the same. So a message follows every act of the host that
// left work, and none comes where the host does nothing.
module neoprof_msi #(
  parameter int unsigned Causes = 2
) (
  input  logic              clk_i,
  input  logic              rst_ni,
  input  logic [Causes-1:0] cause_i,
  input  logic [Causes-1:0] again_i,   // in the clock before the one in which cause_i shows what it did
  output logic              message_o
);
  logic [Causes-1:0] told_q;
  assign message_o = |(cause_i & ~told_q);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) told_q <= '0;
    else told_q <= cause_i & ~again_i;
  end
endmodule
