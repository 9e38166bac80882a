// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Units of the epoch by estimate, in 64 bins: 8 bins each of 1, 2, 4, ... 128 counts, the last open.
//
// Counting needs one addition a request and no scan: what is counted is how many updates moved a unit's estimate into a
// bin from the one below. A bin's population is what came in less what moved on, its own number less the next one's; the
// reader subtracts, not below 0. With DECAY.SHIFT = 0 that is exact but for the sketch's collisions. With fading, units
// that begin an epoch above 0 count from the first bin border that they cross in it.
//
// Banks: one counts, one holds the last epoch, one the snapshot, one is being cleared. Changing them moves no data.
//   latch_i     one clock: what was counted becomes the last epoch. The bank that counts next is cleared in 64 clocks.
//   snapshot_i  one clock: bus reads show the last epoch from now on.
//   reset_i     one clock: all zero, 256 clocks. Also what rst_ni starts. busy_o while clearing.
module neoprof_histogram #(
  parameter int unsigned CounterBits = 16,
  parameter int unsigned ValueBits = 25  // a unit passes a border once an epoch, so bits of a unit index, plus one
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  // An update
  input  logic                   update_i,
  input  logic [CounterBits-1:0] before_i,
  input  logic [CounterBits-1:0] after_i,
  // Commands
  input  logic                   latch_i,
  input  logic                   snapshot_i,
  input  logic                   reset_i,
  output logic                   busy_o,
  // Bus: the number of moves into a bin, one clock after bus_en_i
  input  logic                   bus_en_i,
  input  logic [5:0]             bus_bin_i,
  output logic [ValueBits-1:0]   bus_value_o
);
  // A count plus 8 has its bin in its leading bits: the position of the first one says how wide, the next three which.
  logic [16:0] place;
  assign place = {{(17 - CounterBits) {1'b0}}, after_i} + 17'd8;

  // A bin is entered where all bits below those are 0. Past 2047 the last bin goes on for ever.
  logic enters;
  logic [5:0] bin;
  always_comb begin
    enters = 1'b0;
    bin = '0;
    if (update_i && before_i != after_i && place[16:11] == 0) begin
      for (int p = 3; p <= 10; p++) begin
        if (place[10:3] >> (p - 3) == 8'd1) begin
          enters = (place & ((17'd1 << (p - 3)) - 17'd1)) == 17'd0;
          bin = {3'(p - 3), place[p-1-:3]};
        end
      end
    end
  end

  logic [1:0] count_bank_q, last_bank_q, snap_bank_q, free_bank;
  always_comb begin
    free_bank = 2'd0;
    for (int b = 3; b >= 0; b--) begin
      if (2'(b) != count_bank_q && 2'(b) != last_bank_q && 2'(b) != snap_bank_q) free_bank = 2'(b);
    end
  end

  // Two copies of the memory: one for the read of an addition, one for the bus.
  logic [ValueBits-1:0] add_mem [256];
  logic [ValueBits-1:0] bus_mem [256];

  logic a_valid_q, w_valid_q;
  logic [5:0] a_bin_q, w_bin_q;
  logic [ValueBits-1:0] a_ram_q, w_value_q, a_value;
  assign a_value = ((w_valid_q && w_bin_q == a_bin_q) ? w_value_q : a_ram_q) + 1'b1;

  logic clear_q, clear_all_q;
  logic [7:0] clear_addr_q;
  assign busy_o = clear_q;

  logic we;
  logic [7:0] waddr;
  logic [ValueBits-1:0] wdata;
  assign we = a_valid_q | clear_q;
  assign waddr = clear_q ? clear_addr_q : {count_bank_q, a_bin_q};
  assign wdata = clear_q ? '0 : a_value;

  always_ff @(posedge clk_i) begin
    if (enters) begin
      a_ram_q <= add_mem[{count_bank_q, bin}];
      a_bin_q <= bin;
    end
    if (we) begin
      add_mem[waddr] <= wdata;
      bus_mem[waddr] <= wdata;
    end
    if (bus_en_i) bus_value_o <= bus_mem[{snap_bank_q, bus_bin_i}];
    if (a_valid_q) begin
      w_bin_q <= a_bin_q;
      w_value_q <= a_value;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      a_valid_q <= 1'b0;
      w_valid_q <= 1'b0;
      count_bank_q <= 2'd0;
      last_bank_q <= 2'd1;
      snap_bank_q <= 2'd1;
      clear_q <= 1'b1;
      clear_all_q <= 1'b1;
      clear_addr_q <= '0;
    end else begin
      a_valid_q <= enters;
      w_valid_q <= a_valid_q;
      if (snapshot_i) snap_bank_q <= last_bank_q;
      if (reset_i) begin
        clear_q <= 1'b1;
        clear_all_q <= 1'b1;
        clear_addr_q <= '0;
      end else if (latch_i) begin
        last_bank_q <= count_bank_q;
        count_bank_q <= free_bank;
        clear_q <= 1'b1;
        clear_all_q <= 1'b0;
        clear_addr_q <= {free_bank, 6'd0};
      end else if (clear_q) begin
        clear_addr_q <= clear_addr_q + 1'b1;
        if ((&clear_addr_q[5:0]) && (!clear_all_q || (&clear_addr_q[7:6]))) clear_q <= 1'b0;
      end
    end
  end
endmodule
