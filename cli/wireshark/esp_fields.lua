-- Fields and expert remarks of ESP and EDP. Their names must not change, because users' filters
-- contain them.
--
-- Wireshark loads every .lua file of a plugin folder. Alone, this file has no effect.

local M = {}

M.BLOCKS = { setup = "Set-up", reset = "Reset", move = "Move" }

-- Remarks that are also shown in the list of packets.
M.IN_LIST = {
  retransmission = "Retransmission", spurious_retransmission = "Spurious retransmission",
  out_of_order = "Out of order", lost_segment = "Previous packets not captured",
  ack_lost_segment = "Acknowledges packets not captured", duplicate_ack = "Duplicate ack",
  credit_used = "Credit used up", zero_credit = "Zero credit", moved = "Moved",
}

local function header(add, blocks)
  add("type", ProtoField.uint16("espe.type", "Packet type", base.HEX))
  add("dstport", ProtoField.uint16("espe.dstport", "Destination port"))
  add("srcport", ProtoField.uint16("espe.srcport", "Source port"))
  add("port", ProtoField.uint16("espe.port", "Source or destination port"))
  add("stream", ProtoField.uint32("espe.stream", "Stream index"))
  add("seq_raw", ProtoField.uint16("espe.seq_raw", "Sequence (raw)"))
  add("seq", ProtoField.int32("espe.seq", "Sequence (relative)"))
  add("nxtseq", ProtoField.int32("espe.nxtseq", "Next sequence (relative)"))
  add("ack_raw", ProtoField.uint16("espe.ack_raw", "Ack sequence (raw)"))
  add("ack", ProtoField.int32("espe.ack", "Ack sequence (relative)"))
  add("credit", ProtoField.int32("espe.credit", "Credit in packets"))
  add("credit_edge", ProtoField.int32("espe.credit_edge", "Credit edge (relative)"))
  add("len", ProtoField.uint16("espe.len", "Data length"))
  add("flags", ProtoField.uint8("espe.flags", "Flags", base.HEX))
  for _, flag in ipairs(blocks.FLAGS) do
    add("flags." .. flag[1], ProtoField.bool("espe.flags." .. flag[1], flag[2], 8, nil, flag[3]))
  end
  add("kind", ProtoField.string("espe.kind", "Kind"))
  add("block", ProtoField.string("espe.block", "Block"))
  add("payload", ProtoField.bytes("espe.payload", "Payload"))
  add("filler", ProtoField.bytes("espe.filler", "Filler of a probe"))
  add("padding", ProtoField.bytes("espe.padding", "Padding"))
end

local function analysis(add)
  local function frame(name, text, kind)
    add(name, ProtoField.framenum("espe.analysis." .. name, text, base.NONE, kind))
  end
  local function time(name, text)
    add(name, ProtoField.relative_time("espe.analysis." .. name, text))
  end
  local function count(name, text)
    add(name, ProtoField.uint32("espe.analysis." .. name, text))
  end
  add("analysis", ProtoField.none("espe.analysis", "Analysis"))
  -- One field for all remarks; each remark also has a field of its own.
  add("remark", ProtoField.string("espe.analysis.remark", "Remark"))
  frame("acks_frame", "Acknowledges the packet in frame", frametype.ACK)
  time("ack_rtt", "Round trip to this acknowledgement")
  time("initial_rtt", "First round trip of the stream")
  count("in_flight", "Packets in flight")
  frame("retransmission_of", "First sent in frame", frametype.NONE)
  time("since_original", "Time since it was first sent")
  count("duplicate_ack", "Number of this duplicate acknowledgement")
  frame("duplicate_of", "Repeats the acknowledgement in frame", frametype.DUP_ACK)
  frame("answers_probe", "Answers the probe in frame", frametype.RESPONSE)
  time("probe_rtt", "Time since the probe")
  count("new_marks", "New congestion marks")
end

local function experts()
  local group, severity = expert.group, expert.severity
  local found = {
    malformed = ProtoExpert.new("espe.malformed", "Malformed packet", group.MALFORMED,
      severity.ERROR),
    cut = ProtoExpert.new("espe.cut", "The capture lacks bytes of the packet",
      group.UNDECODED, severity.NOTE),
    reset = ProtoExpert.new("espe.reset", "Connection reset", group.SEQUENCE, severity.WARN),
  }
  local function remark(name, text, level)
    found[name] = ProtoExpert.new("espe.analysis.remark." .. name, text, group.SEQUENCE, level)
  end
  remark("retransmission", "Retransmission", severity.NOTE)
  remark("spurious_retransmission", "Retransmission of an acknowledged packet",
    severity.NOTE)
  remark("out_of_order", "Out of order", severity.WARN)
  remark("lost_segment", "Packets before this one were not captured", severity.WARN)
  remark("ack_lost_segment", "Acknowledges packets that were not captured", severity.WARN)
  remark("duplicate_ack", "Duplicate acknowledgement", severity.NOTE)
  remark("credit_update", "Credit update", severity.CHAT)
  remark("credit_used", "The receiver's credit is used up", severity.NOTE)
  remark("zero_credit", "No credit is left", severity.NOTE)
  remark("marks", "Congestion marks", severity.NOTE)
  remark("moved", "The connection moved to this path", severity.NOTE)
  return found
end

local function values(map)
  local list = {}
  for _, value in pairs(map) do list[#list + 1] = value end
  return list
end

-- Registers the fields of ESP; returns them and the expert remarks by name.
function M.define(proto, blocks, secure)
  local found = {}
  local function add(name, field) found[name] = field end
  header(add, blocks)
  blocks.define(add)
  secure.define(add, "espe")
  analysis(add)
  local remarks = experts()
  proto.fields, proto.experts = values(found), values(remarks)
  return found, remarks
end

-- Registers the fields of EDP; returns values as `define` does.
function M.define_datagrams(proto, datagrams, secure)
  local found = {}
  local function add(name, field) found[name] = field end
  datagrams.define(add)
  secure.define(add, "edpe")
  local group, severity = expert.group, expert.severity
  local remarks = {
    malformed = ProtoExpert.new("edpe.malformed", "Malformed packet", group.MALFORMED,
      severity.ERROR),
    cut = ProtoExpert.new("edpe.cut", "The capture lacks bytes of the packet",
      group.UNDECODED, severity.NOTE),
  }
  proto.fields, proto.experts = values(found), values(remarks)
  return found, remarks
end

return M
