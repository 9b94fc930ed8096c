-- Fields of ESP and their blocks: set-up, reset, move, extension (docs/wire-format.md).
--
-- Wireshark loads every .lua file of a plugin folder. Alone, this file has no effect.

local M = {}

local FLAGS = {
  { "syn", "SYN", 0x01 }, { "ack", "ACK", 0x02 }, { "fin", "FIN", 0x04 }, { "rst", "RST", 0x08 },
  { "ext", "EXT", 0x10 }, { "prb", "PRB", 0x20 }, { "ask", "ASK", 0x40 },
  { "reserved", "Reserved", 0x80 },
}
M.FLAGS = FLAGS

M.REASONS = {
  [1] = "REFUSED", [2] = "VERSION", [3] = "BAD_KEY", [4] = "ABORTED", [5] = "PROGRAM_DIED",
  [6] = "RESOURCES", [7] = "PROTOCOL", [8] = "TIMED_OUT", [9] = "UNKNOWN", [10] = "SHUTDOWN",
  [11] = "RETRY",
}
M.STEPS = { [1] = "ASK", [2] = "ANSWER", [3] = "GO", [4] = "DONE", [5] = "GONE" }

local ZERO = "0000000000000000"

-- Defines all fields of the blocks; `add(name, field)` registers one.
function M.define(add)
  local function number(bits, name, text, format, values, mask)
    local make = ({ [8] = ProtoField.uint8, [16] = ProtoField.uint16, [32] = ProtoField.uint32,
      [64] = ProtoField.uint64 })[bits]
    add(name, make("espe." .. name, text, format or base.DEC, values, mask))
  end
  local function bit(name, text, mask, width)
    add(name, ProtoField.bool("espe." .. name, text, width or 8, nil, mask))
  end
  number(8, "setup.version", "Version")
  number(8, "setup.key_len", "Key length")
  number(16, "setup.max_payload", "Max payload")
  number(32, "setup.features", "Features", base.HEX)
  bit("setup.features.moves", "MOVES", 0x1, 32)
  bit("setup.features.ecn", "ECN", 0x2, 32)
  bit("setup.features.resume", "RESUME", 0x4, 32)
  bit("setup.features.cookies", "COOKIES", 0x8, 32)
  number(64, "setup.nonce", "Nonce", base.HEX)
  number(64, "setup.peer_nonce", "Peer nonce", base.HEX)
  number(16, "setup.credit", "Credit")
  number(16, "setup.max_ack_delay", "Max ack delay (microseconds)")
  add("setup.key", ProtoField.bytes("espe.setup.key", "Job key"))
  number(8, "setup.addresses", "Other addresses")
  add("setup.address", ProtoField.ether("espe.setup.address", "Other address"))
  number(8, "reset.reason", "Reason", base.DEC, M.REASONS)
  number(8, "reset.detail", "Detail")
  number(64, "reset.nonce", "Nonce", base.HEX)
  number(64, "reset.cookie", "Cookie", base.HEX)
  number(8, "move.step", "Step", base.DEC, M.STEPS)
  number(8, "move.flags", "Flags", base.HEX)
  bit("move.flags.finished", "Peer's FIN received", 0x01)
  bit("move.flags.resumed", "State was lost", 0x02)
  number(16, "move.max_payload", "Max payload")
  number(32, "move.epoch", "Epoch")
  number(64, "move.nonce", "Receiver's nonce", base.HEX)
  number(64, "move.sender_nonce", "Sender's nonce", base.HEX)
  number(64, "move.received", "Bytes received")
  number(16, "move.credit", "Credit")
  number(8, "ext.len", "Length")
  number(8, "ext.fields", "Fields present", base.HEX)
  bit("ext.fields.credit", "CREDIT", 0x01)
  bit("ext.fields.probed", "PROBED", 0x02)
  bit("ext.fields.sack", "SACK", 0x04)
  bit("ext.fields.ce", "CE", 0x08)
  number(16, "ext.credit_raw", "Credit edge (raw)")
  number(16, "ext.probed", "Probe answered, bytes")
  number(16, "ext.ce", "Packets with a congestion mark")
  add("ext.sack", ProtoField.bytes("espe.ext.sack", "Selective acknowledgement"))
  number(16, "ext.sack.count", "Packets received out of order")
  add("ext.sack.range", ProtoField.string("espe.ext.sack.range", "Received"))
end

-- Reads consecutive fields from a range of bytes, each of which must be captured.
local function reader(tvb, at, stop)
  return { tvb = tvb, at = at, stop = stop }
end

-- Returns the range of the next `len` bytes; nil if bytes are missing.
local function take(bytes, len)
  if not bytes.at or bytes.at + len > bytes.stop then
    bytes.at = nil
    return nil
  end
  local from = bytes.at
  bytes.at = from + len
  return len > 0 and bytes.tvb(from, len) or nil
end

-- Adds the next field and returns its range.
local function field(bytes, tree, f, len)
  local range = take(bytes, len)
  local item = range and tree:add(f, range)
  return range, item
end

local function hex(range)
  return range and range:bytes():tohex()
end

local function uint(range)
  return range and range:uint()
end

-- Adds the number of other addresses and the addresses; returns the rule that they break, if any.
local function addresses(bytes, tree, f)
  local count = uint((field(bytes, tree, f["setup.addresses"], 1)))
  if not count or count < 1 or count > 8 then return "W-100: 1 to 8 other addresses" end
  for _ = 1, count do
    local range = field(bytes, tree, f["setup.address"], 6)
    if not range then return "W-100: the addresses end early" end
    local text = hex(range)
    if range(0, 1):uint() % 2 == 1 or text == "000000000000" then
      return "W-100: a zero or group address"
    end
  end
end

-- Adds a set-up block. Returns its values and a short text, or nil and the rule that it breaks.
function M.setup(tvb, at, stop, tree, f)
  local bytes = reader(tvb, at, stop)
  local version = uint((field(bytes, tree, f["setup.version"], 1)))
  if version and version ~= 1 then return nil, "W-17: version " .. version .. " is not 1" end
  local key_len = uint((field(bytes, tree, f["setup.key_len"], 1)))
  local max_payload = uint((field(bytes, tree, f["setup.max_payload"], 2)))
  local features, item = field(bytes, tree, f["setup.features"], 4)
  if features then
    item:add(f["setup.features.moves"], features)
    item:add(f["setup.features.ecn"], features)
    item:add(f["setup.features.resume"], features)
    item:add(f["setup.features.cookies"], features)
  end
  local nonce = hex((field(bytes, tree, f["setup.nonce"], 8)))
  local peer_nonce = hex((field(bytes, tree, f["setup.peer_nonce"], 8)))
  local credit = uint((field(bytes, tree, f["setup.credit"], 2)))
  local delay = uint((field(bytes, tree, f["setup.max_ack_delay"], 2)))
  if not delay then return nil, "W-22: the set-up block is short" end
  if key_len > 32 then return nil, "W-22: the key is longer than 32 bytes" end
  if key_len > 0 then field(bytes, tree, f["setup.key"], key_len) end
  if not bytes.at then return nil, "W-22: the key ends early" end
  local broken = features:uint() % 2 == 1 and addresses(bytes, tree, f)
  if broken then return nil, broken end
  if nonce == ZERO then return nil, "W-22: nonce 0" end
  if max_payload < 64 then return nil, "W-22: max payload below 64" end
  return { nonce = nonce, peer_nonce = peer_nonce, credit = credit, max_payload = max_payload },
    string.format("MaxPayload=%d Credit=%d", max_payload, credit)
end

-- Adds a reset block. Returns values as `setup` does.
function M.reset(tvb, at, stop, tree, f)
  local bytes = reader(tvb, at, stop)
  local reason = uint((field(bytes, tree, f["reset.reason"], 1)))
  field(bytes, tree, f["reset.detail"], 1)
  if not field(bytes, tree, f["reset.nonce"], 8) then
    return nil, "Section 8: the reset block is shorter than 10 bytes"
  end
  if reason == 11 and not field(bytes, tree, f["reset.cookie"], 8) then
    return nil, "W-150: the cookie is missing"
  end
  return { reason = reason }, M.REASONS[reason] or "reason " .. reason
end

-- Adds a move block. Returns values as `setup` does.
function M.move(tvb, at, stop, tree, f)
  local bytes = reader(tvb, at, stop)
  local step = uint((field(bytes, tree, f["move.step"], 1)))
  local flags, item = field(bytes, tree, f["move.flags"], 1)
  if flags then
    item:add(f["move.flags.finished"], flags)
    item:add(f["move.flags.resumed"], flags)
  end
  local max_payload = uint((field(bytes, tree, f["move.max_payload"], 2)))
  local epoch = uint((field(bytes, tree, f["move.epoch"], 4)))
  local nonce = hex((field(bytes, tree, f["move.nonce"], 8)))
  local sender_nonce = hex((field(bytes, tree, f["move.sender_nonce"], 8)))
  field(bytes, tree, f["move.received"], 8)
  local credit = uint((field(bytes, tree, f["move.credit"], 2)))
  if not credit then return nil, "W-101: the move block is shorter than 34 bytes" end
  if not M.STEPS[step] then return nil, "W-101: unknown step " .. step end
  if flags:uint() > 3 then return nil, "W-101: an unknown flag" end
  if epoch == 0 or nonce == ZERO or sender_nonce == ZERO then
    return nil, "W-101: an epoch or nonce is 0"
  end
  if max_payload < 64 then return nil, "W-101: max payload below 64" end
  return { step = step, nonce = nonce, sender_nonce = sender_nonce },
    string.format("%s Epoch=%d", M.STEPS[step], epoch)
end

-- Adds the contents of a bitmap: bit k of byte j is sequence ack + 1 + 8j + k (W-42).
local function sack(range, tree, f, ack)
  local item = tree:add(f["ext.sack"], range)
  local count, from, ranges = 0, nil, {}
  local bits = 8 * range:len()
  for bit = 0, bits do
    local set = bit < bits
      and math.floor(range((bit - bit % 8) / 8, 1):uint() / 2 ^ (bit % 8)) % 2 == 1
    if set then
      count = count + 1
      from = from or bit
    elseif from then
      ranges[#ranges + 1] = { (ack + 1 + from) % 65536, (ack + bit) % 65536 }
      from = nil
    end
  end
  item:add(f["ext.sack.count"], range, count)
  for _, found in ipairs(ranges) do
    local text = found[1] == found[2] and string.format("%d (raw)", found[1])
      or string.format("%d-%d (raw)", found[1], found[2])
    item:add(f["ext.sack.range"], range, text)
  end
  return count
end

-- Adds an extension block. Returns its values and its length, or nil and the rule that it breaks.
function M.ext(tvb, at, stop, tree, f, ack)
  local bytes = reader(tvb, at, stop)
  local len = uint((field(bytes, tree, f["ext.len"], 1)))
  local fields, item = field(bytes, tree, f["ext.fields"], 1)
  if not fields then return nil, "W-43: the extension is cut off" end
  for _, name in ipairs({ "credit", "probed", "sack", "ce" }) do
    item:add(f["ext.fields." .. name], fields)
  end
  if len < 2 or len > 136 then return nil, "W-43: an extension of " .. len .. " bytes" end
  if at + len > stop then return nil, "W-43: the extension is longer than the frame" end
  local present = fields:uint()
  if present >= 0x10 then return nil, "W-43: an unknown field of the extension" end
  bytes.stop = at + len
  local function has(mask) return math.floor(present / mask) % 2 == 1 end
  local ext, ok = { len = len }, true
  for _, entry in ipairs({ { 1, "ext.credit_raw", "credit" }, { 2, "ext.probed", "probed" },
    { 8, "ext.ce", "ce" } }) do
    if has(entry[1]) then
      ext[entry[3]] = uint((field(bytes, tree, f[entry[2]], 2)))
      ok = ok and ext[entry[3]] ~= nil
    end
  end
  if not ok then return nil, "W-43: the extension is shorter than its fields" end
  if has(4) then
    local left = bytes.stop - bytes.at
    if left < 1 or left > 128 then return nil, "W-43: a bitmap of " .. left .. " bytes" end
    ext.sack = sack(take(bytes, left), tree, f, ack)
  end
  if bytes.at ~= bytes.stop then return nil, "W-43: the extension is longer than its fields" end
  return ext
end

return M
