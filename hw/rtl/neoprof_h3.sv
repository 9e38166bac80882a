// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// One H3 hash function: the XOR of a constant for each key bit that is set. One clock of latency; the output holds when
// en_i is 0. The constants are a function of (Row, key bit), in function seed; hw/model/neoprof_model.h has the same
// function (h3_seed), and the tests show that they agree.
module neoprof_h3 #(
  parameter int unsigned Row = 0,       // which function of the family; 0 to 15
  parameter int unsigned KeyBits = 24,  // at most 63
  parameter int unsigned HashBits = 19  // at most 32
) (
  input  logic                clk_i,
  input  logic                en_i,
  input  logic [KeyBits-1:0]  key_i,
  output logic [HashBits-1:0] hash_o
);
  function automatic logic [31:0] seed(input logic [31:0] row, input logic [31:0] bit_index);
    logic [31:0] x;
    x = row * 64 + bit_index + 1;
    for (int i = 0; i < 3; i++) begin
      x = x * 32'h9e3779b1;
      x = x ^ (x >> 15);
    end
    seed = x;
  endfunction

  // Constant for each key bit, found at elaboration.
  logic [KeyBits*HashBits-1:0] seeds;
  for (genvar b = 0; b < KeyBits; b++) begin : gen_seed
    localparam logic [31:0] Seed = seed(Row, b);
    assign seeds[b*HashBits+:HashBits] = Seed[HashBits-1:0];
  end

  logic [HashBits-1:0] hash;
  always_comb begin
    hash = '0;
    for (int b = 0; b < KeyBits; b++) begin
      hash = hash ^ ({HashBits{key_i[b]}} & seeds[b*HashBits+:HashBits]);
    end
  end

  // No reset: a valid bit beside it says when the hash means something.
  always_ff @(posedge clk_i) begin
    if (en_i) hash_o <= hash;
  end
endmodule
