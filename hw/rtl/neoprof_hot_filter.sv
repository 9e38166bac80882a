// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Fourth box: the units whose estimate reached the threshold in this epoch, exactly: a set-associative table with full
// tags, and a list of the same units in order of insertion. Three clocks after a tracker response:
//   1 compare with the threshold, hash   2 read the set   3 look the unit up, insert it, report
//
//   update     estimate >= threshold and not in the table: inserted; reported if always_on_i. If its set is full it is
//              lost_o instead (in always-on mode reported all the same), once an epoch: a second, direct-mapped table
//              remembers lost units. One that finds another's name there is lost_o when its estimate reaches the
//              threshold and each time it is a power of two.
//   lookup     reported if the estimate is >= threshold.
//   walk_i     while 1: passes the list once, clears each unit's table slot, and hands the unit out for a lookup
//              (walk_valid_o, the clock after its read). walk_last_o: all have been read. latch_i then empties the list,
//              and the lost units' table if there is anything in it, in Entries / 4 clocks.
//   reset_i    one clock: empties tables and list. Also what rst_ni starts. busy_o until done.
module neoprof_hot_filter #(
  parameter int unsigned Entries = 4096,  // power of two, at least 8
  parameter int unsigned UnitBits = 24,
  parameter int unsigned CounterBits = 16,
  parameter int unsigned HashSeeds = 1,
  localparam int unsigned Ways = 4,
  localparam int unsigned ListBits = $clog2(Entries)
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic [1:0]             hash_seed_i,
  // Configuration; threshold_i is at least 1
  input  logic [31:0]            threshold_i,
  input  logic                   always_on_i,
  // Tracker response
  input  logic                   rsp_valid_i,
  input  logic                   rsp_lookup_i,
  input  logic [UnitBits-1:0]    rsp_unit_i,
  input  logic [CounterBits-1:0] rsp_before_i,
  input  logic [CounterBits-1:0] rsp_after_i,
  // Commands
  input  logic                   walk_i,
  output logic                   walk_last_o,
  output logic                   walk_valid_o,
  output logic [UnitBits-1:0]    walk_unit_o,
  input  logic                   latch_i,
  input  logic                   reset_i,
  output logic                   busy_o,
  // To the hotlist
  output logic                   report_o,
  output logic [UnitBits-1:0]    report_unit_o,
  output logic [CounterBits-1:0] report_count_o,
  // For the counters
  output logic                   lost_o,
  output logic [ListBits:0]      listed_o
);
  localparam int unsigned Sets = Entries / Ways;
  localparam int unsigned SetBits = $clog2(Sets);
  localparam int unsigned SlotBits = UnitBits + 1;

  // Stage 1.
  logic above, candidate;
  assign above = {{(32 - CounterBits) {1'b0}}, rsp_after_i} >= threshold_i;
  assign candidate = rsp_valid_i & ~rsp_lookup_i & above;

  logic h1_valid_q, h1_candidate_q, h1_lookup_hot_q, h1_retry_q;
  logic [UnitBits-1:0] h1_unit_q;
  logic [CounterBits-1:0] h1_count_q;
  logic [SetBits-1:0] h1_set;

  logic [SetBits-1:0] h1_lost_index;

  neoprof_h3 #(
    .Row     (neoprof_hash_pkg::HOT_ROW),
    .KeyBits (UnitBits),
    .HashBits(SetBits),
    .Seeds   (HashSeeds)
  ) u_h3 (
    .clk_i,
    .rst_ni,
    .log2_width_i(5'(SetBits)),
    .hash_seed_i,
    .en_i        (candidate),
    .key_i       (rsp_unit_i),
    .hash_o      (h1_set)
  );

  neoprof_h3 #(
    .Row     (neoprof_hash_pkg::LOST_ROW),
    .KeyBits (UnitBits),
    .HashBits(SetBits),
    .Seeds   (HashSeeds)
  ) u_h3_lost (
    .clk_i,
    .rst_ni,
    .log2_width_i(5'(SetBits)),
    .hash_seed_i,
    .en_i        (candidate),
    .key_i       (rsp_unit_i),
    .hash_o      (h1_lost_index)
  );

  // Stage 2 and 3.
  logic h2_valid_q, h2_candidate_q, h2_lookup_hot_q, h2_retry_q;
  logic [UnitBits-1:0] h2_unit_q;
  logic [CounterBits-1:0] h2_count_q;
  logic [SetBits-1:0] h2_set_q, h2_lost_index_q;
  logic [SlotBits-1:0] h2_lost_ram, h2_lost_slot;
  logic [Ways*SlotBits-1:0] h2_ram, h2_slots;

  // The slot written in the clock before: not yet in what was read.
  logic w_lost_valid_q;
  logic [SetBits-1:0] w_lost_index_q;
  logic w_valid_q;
  logic [SetBits-1:0] w_set_q;
  logic [Ways-1:0] w_way_q;
  logic [UnitBits-1:0] w_unit_q;

  logic hit, room, insert;
  logic [Ways-1:0] way;  // one-hot: the first free one

  always_comb begin
    hit = 1'b0;
    room = 1'b0;
    way = '0;
    h2_slots = h2_ram;
    if (h2_candidate_q) begin
      for (int w = 0; w < Ways; w++) begin
        if (w_valid_q && w_set_q == h2_set_q && w_way_q[w]) h2_slots[w*SlotBits+:SlotBits] = {1'b1, w_unit_q};
      end
      for (int w = Ways - 1; w >= 0; w--) begin
        if (h2_slots[w*SlotBits+:SlotBits] == {1'b1, h2_unit_q}) hit = 1'b1;
        if (!h2_slots[w*SlotBits+UnitBits]) begin
          room = 1'b1;
          way = '0;
          way[w] = 1'b1;
        end
      end
    end
  end

  assign insert = h2_candidate_q & ~hit & room;

  logic lost_free, remember;
  assign h2_lost_slot = (w_lost_valid_q && w_lost_index_q == h2_lost_index_q) ? {1'b1, w_unit_q} : h2_lost_ram;
  assign lost_free = ~h2_lost_slot[UnitBits];
  assign lost_o = h2_candidate_q & ~hit & ~room &
                  (lost_free | (h2_retry_q & (h2_lost_slot[UnitBits-1:0] != h2_unit_q)));
  assign remember = lost_o & lost_free;
  assign report_o = h2_lookup_hot_q | ((insert | lost_o) & always_on_i);
  assign report_unit_o = h2_unit_q;
  assign report_count_o = h2_count_q;

  // Walk and reset.
  logic [ListBits:0] listed_q, walk_index_q;
  logic [SetBits-1:0] walk_set_q;
  logic [Ways-1:0] walk_way_q;
  logic walk_read, sweep_q, sweep_all_q, lost_any_q;
  logic [SetBits-1:0] sweep_set_q;

  assign walk_last_o = walk_index_q == listed_q;
  assign walk_read = walk_i & ~walk_last_o;
  assign listed_o = listed_q;
  assign busy_o = sweep_q | h1_valid_q | h2_valid_q;

  logic [UnitBits+SetBits+Ways-1:0] list_mem [Entries];
  always_ff @(posedge clk_i) begin
    if (insert) list_mem[listed_q[ListBits-1:0]] <= {h2_unit_q, h2_set_q, way};
    if (walk_read) {walk_unit_o, walk_set_q, walk_way_q} <= list_mem[walk_index_q[ListBits-1:0]];
  end

  logic [SlotBits-1:0] lost_mem [Sets];
  always_ff @(posedge clk_i) begin
    if (remember | sweep_q) lost_mem[sweep_q ? sweep_set_q : h2_lost_index_q] <= sweep_q ? '0 : {1'b1, h2_unit_q};
    if (h1_candidate_q) h2_lost_ram <= lost_mem[h1_lost_index];
  end

  for (genvar w = 0; w < Ways; w++) begin : gen_way
    logic [SlotBits-1:0] mem [Sets];
    logic [SlotBits-1:0] slot_q, wdata;
    logic [SetBits-1:0] waddr;
    logic we;
    assign we = (insert & way[w]) | (walk_valid_o & walk_way_q[w]) | (sweep_q & sweep_all_q);
    assign waddr = sweep_q ? sweep_set_q : walk_valid_o ? walk_set_q : h2_set_q;
    assign wdata = insert ? {1'b1, h2_unit_q} : '0;
    always_ff @(posedge clk_i) begin
      if (we) mem[waddr] <= wdata;
      if (h1_candidate_q) slot_q <= mem[h1_set];
    end
    assign h2_ram[w*SlotBits+:SlotBits] = slot_q;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      {h1_valid_q, h1_candidate_q, h1_lookup_hot_q} <= '0;
      {h2_valid_q, h2_candidate_q, h2_lookup_hot_q} <= '0;
      w_valid_q <= 1'b0;
      w_lost_valid_q <= 1'b0;
      lost_any_q <= 1'b0;
      sweep_all_q <= 1'b1;
      walk_valid_o <= 1'b0;
      listed_q <= '0;
      walk_index_q <= '0;
      sweep_q <= 1'b1;
      sweep_set_q <= '0;
    end else begin
      h1_valid_q <= rsp_valid_i;
      h1_candidate_q <= candidate;
      h1_lookup_hot_q <= rsp_valid_i & rsp_lookup_i & above;
      h2_valid_q <= h1_valid_q;
      h2_candidate_q <= h1_candidate_q;
      h2_lookup_hot_q <= h1_lookup_hot_q;
      w_valid_q <= insert;
      w_lost_valid_q <= remember;
      walk_valid_o <= walk_read;
      if (latch_i | reset_i) begin
        listed_q <= '0;
        walk_index_q <= '0;
      end else begin
        if (insert) listed_q <= listed_q + 1'b1;
        if (walk_read) walk_index_q <= walk_index_q + 1'b1;
      end
      if (reset_i | (latch_i & lost_any_q)) begin
        sweep_q <= 1'b1;
        sweep_all_q <= reset_i;
        lost_any_q <= 1'b0;
      end else begin
        if (remember) lost_any_q <= 1'b1;
        if (sweep_q) begin
          sweep_set_q <= sweep_set_q + 1'b1;
          if (&sweep_set_q) sweep_q <= 1'b0;
        end
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (rsp_valid_i) begin
      h1_unit_q <= rsp_unit_i;
      h1_count_q <= rsp_after_i;
      h1_retry_q <= {{(32 - CounterBits) {1'b0}}, rsp_before_i} < threshold_i
                    || (rsp_after_i & (rsp_after_i - 1'b1)) == '0;
    end
    if (h1_valid_q) begin
      h2_unit_q <= h1_unit_q;
      h2_count_q <= h1_count_q;
      h2_retry_q <= h1_retry_q;
      h2_set_q <= h1_set;
      h2_lost_index_q <= h1_lost_index;
    end
    w_lost_index_q <= h2_lost_index_q;
    w_unit_q <= h2_unit_q;
    if (insert) begin
      w_set_q <= h2_set_q;
      w_way_q <= way;
    end
  end

`ifndef SYNTHESIS
  assert property (@(posedge clk_i) disable iff (!rst_ni) !(h2_candidate_q && (sweep_q || walk_valid_o))) else $error("a candidate during a sweep or a walk");
  assert property (@(posedge clk_i) disable iff (!rst_ni) !insert || $onehot(way)) else $error("not one way to insert into");
`endif
endmodule
