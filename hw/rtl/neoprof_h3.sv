// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// One H3 hash function: the XOR of a column for each key bit that is set. One clock of latency; the output holds when
// en_i is 0. The column of key bit i is x^i modulo a polynomial, which neoprof_hash_pkg has for each row, width and seed;
// hw/hash/regen says why.
//
// With one width and one seed the columns are constants. With more they are registers, filled in the KeyBits clocks after
// rst_ni, and no key may be hashed before that.
module neoprof_h3 #(
  parameter int unsigned Row = 0,             // which function of the family
  parameter int unsigned KeyBits = 24,
  parameter int unsigned HashBits = 19,       // at most 24
  parameter int unsigned MinBits = HashBits,  // the least width that log2_width_i may choose
  parameter int unsigned Seeds = 1            // hash_seed_i chooses one of so many; at most 4
) (
  input  logic                clk_i,
  input  logic                rst_ni,
  // Straps; without effect where there is nothing to choose
  input  logic [4:0]          log2_width_i,  // MinBits to HashBits
  input  logic [1:0]          hash_seed_i,   // below Seeds
  input  logic                en_i,
  input  logic [KeyBits-1:0]  key_i,
  output logic [HashBits-1:0] hash_o         // bits from the width on are 0
);
  // x times `column`, modulo `polynomial` of degree `width`.
  function automatic logic [31:0] times_x(input logic [31:0] column, input logic [31:0] polynomial,
                                          input logic [4:0] width);
    logic [31:0] shifted;
    shifted = column << 1;
    times_x = shifted[width] ? shifted ^ polynomial : shifted;
  endfunction

  function automatic logic [KeyBits*HashBits-1:0] columns(input logic [31:0] polynomial);
    logic [31:0] column;
    column = 32'd1;
    columns = '0;
    for (int b = 0; b < KeyBits; b++) begin
      columns = columns | ({{(KeyBits * HashBits - HashBits) {1'b0}}, column[HashBits-1:0]} << (b * HashBits));
      column = times_x(column, polynomial, 5'(HashBits));
    end
  endfunction

  logic [HashBits-1:0] hash;

  if (MinBits == HashBits && Seeds == 1) begin : gen_fixed
    localparam logic [31:0] Polynomial = neoprof_hash_pkg::polynomial(2'd0, 5'(HashBits), 4'(Row));
    localparam logic [KeyBits*HashBits-1:0] Columns = columns(Polynomial);
    always_comb begin
      hash = '0;
      for (int b = 0; b < KeyBits; b++) hash = hash ^ ({HashBits{key_i[b]}} & Columns[b*HashBits+:HashBits]);
    end
    logic unused_straps;
    assign unused_straps = ^{rst_ni, log2_width_i, hash_seed_i};
  end else begin : gen_chosen
    localparam int unsigned FillBits = $clog2(KeyBits + 1);
    logic [FillBits-1:0] fill_q;
    logic [31:0] column_q;
    logic [HashBits-1:0] columns_q [KeyBits];
    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        fill_q <= '0;
        column_q <= 32'd1;
      end else if (fill_q != FillBits'(KeyBits)) begin
        fill_q <= fill_q + 1'b1;
        column_q <= times_x(column_q, neoprof_hash_pkg::polynomial(hash_seed_i, log2_width_i, 4'(Row)), log2_width_i);
      end
    end
    always_ff @(posedge clk_i) begin
      if (fill_q != FillBits'(KeyBits)) columns_q[fill_q] <= column_q[HashBits-1:0];
    end
    always_comb begin
      hash = '0;
      for (int b = 0; b < KeyBits; b++) hash = hash ^ ({HashBits{key_i[b]}} & columns_q[b]);
    end
`ifndef SYNTHESIS
    assert property (@(posedge clk_i) disable iff (!rst_ni) !(en_i && fill_q != FillBits'(KeyBits))) else $error("a key before the columns are filled");
`endif
  end

  // No reset: a valid bit beside it says when the hash means something.
  always_ff @(posedge clk_i) begin
    if (en_i) hash_o <= hash;
  end
endmodule
