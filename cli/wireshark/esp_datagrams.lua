-- EDP, the datagram protocol that accompanies ESP (docs/wire-format.md, section 9): header, control
-- datagrams, and the matching of replies to requests.
--
-- Wireshark loads every .lua file of a plugin folder. Alone, this file has no effect.

local M = {}

local TYPES = {
  [1] = "ECHO_REQUEST", [2] = "ECHO_REPLY", [3] = "INFO_REQUEST", [4] = "INFO_REPLY",
  [5] = "PORT_QUERY", [6] = "PORT_REPLY",
}
local STATES = { [0] = "FREE", [1] = "HELD" }

function M.define(add)
  local function number(bits, name, text, format, values)
    local make = ({ [8] = ProtoField.uint8, [16] = ProtoField.uint16, [32] = ProtoField.uint32,
      [64] = ProtoField.uint64 })[bits]
    add(name, make("edpe." .. name, text, format or base.DEC, values))
  end
  number(16, "type", "Packet type", base.HEX)
  number(16, "dstport", "Destination port")
  number(16, "srcport", "Source port")
  number(16, "port", "Source or destination port")
  number(16, "seq", "Number")
  number(16, "ack", "Ack sequence (unused)")
  number(16, "len", "Data length")
  number(8, "flags", "Flags", base.HEX)
  add("flags.ctl", ProtoField.bool("edpe.flags.ctl", "CTL", 8, nil, 0x01))
  add("flags.reserved", ProtoField.uint8("edpe.flags.reserved", "Reserved", base.HEX, nil, 0xfe))
  add("payload", ProtoField.bytes("edpe.payload", "Payload"))
  add("padding", ProtoField.bytes("edpe.padding", "Padding"))
  number(8, "control", "Control type", base.DEC, TYPES)
  add("echo", ProtoField.bytes("edpe.echo", "Echoed bytes"))
  number(8, "info.version", "Version")
  number(16, "info.max_payload", "Max payload")
  number(32, "info.features", "Features", base.HEX)
  number(64, "info.incarnation", "Incarnation of the service", base.HEX)
  number(8, "info.name_len", "Name length")
  add("info.name", ProtoField.string("edpe.info.name", "Name", base.UNICODE))
  number(16, "query.port", "Stream port")
  number(8, "query.state", "State", base.DEC, STATES)
  add("reply_to", ProtoField.framenum("edpe.reply_to", "Reply to the request in", base.NONE,
    frametype.REQUEST))
  add("reply_in", ProtoField.framenum("edpe.reply_in", "Reply in", base.NONE, frametype.RESPONSE))
  add("time", ProtoField.relative_time("edpe.time", "Time since the request"))
end

function M.new()
  return { requests = {}, replies = {}, replied = {} }
end

-- Matches requests and replies, on the first pass over the capture.
local function follow(state, pinfo, path, packet)
  local control = packet.control
  if not control or pinfo.visited then return end
  local request = control % 2 == 1
  local station, port = path.src, packet.srcport
  if not request then station, port = path.dst, packet.dstport end
  local name = string.format("%s/%d/%d/%d", station, port, packet.seq, control + control % 2)
  if request then
    state.requests[name] = { frame = pinfo.number, time = pinfo.rel_ts }
    return
  end
  local asked = state.requests[name]
  if asked then
    state.replies[pinfo.number] = { frame = asked.frame, seconds = pinfo.rel_ts - asked.time }
    -- A broadcast has several replies, the first of which is shown.
    state.replied[asked.frame] = state.replied[asked.frame] or pinfo.number
  end
end

local function show_links(state, pinfo, tree, f, seconds)
  local reply, answer = state.replies[pinfo.number], state.replied[pinfo.number]
  if reply then
    tree:add(f["reply_to"], reply.frame):set_generated()
    tree:add(f["time"], seconds(reply.seconds)):set_generated()
  end
  if answer then tree:add(f["reply_in"], answer):set_generated() end
end

-- Adds the body of an INFO_REPLY. Returns a text, or nil and the rule that it breaks.
local function info(tvb, at, stop, tree, f)
  if stop - at < 16 then return nil, "Section 9: an INFO_REPLY is longer" end
  tree:add(f["info.version"], tvb(at, 1))
  tree:add(f["info.max_payload"], tvb(at + 1, 2))
  tree:add(f["info.features"], tvb(at + 3, 4))
  tree:add(f["info.incarnation"], tvb(at + 7, 8))
  tree:add(f["info.name_len"], tvb(at + 15, 1))
  local len = tvb(at + 15, 1):uint()
  if len > 64 then return nil, "Section 9: the name is longer than 64 bytes" end
  if at + 16 + len > stop then return nil, "Section 9: the name ends early" end
  local text = "MaxPayload=" .. tvb(at + 1, 2):uint()
  if len > 0 then
    tree:add_packet_field(f["info.name"], tvb(at + 16, len), ENC_UTF_8 + ENC_NA)
  end
  return text
end

-- Adds a control datagram. Returns its type and a text, or nil and the rule that it breaks.
local function control(tvb, at, stop, tree, f)
  if at >= stop then return nil, "W-74: no control type" end
  local kind = tvb(at, 1):uint()
  tree:add(f["control"], tvb(at, 1))
  local name, body, len = TYPES[kind], at + 1, stop - at - 1
  if not name then return nil, "W-74: unknown control type " .. kind end
  if kind <= 2 then
    if len > 0 then tree:add(f["echo"], tvb(body, len)) end
    return kind, string.format("%s Bytes=%d", name, len)
  elseif kind == 3 then
    if len > 0 then return nil, "W-71: an INFO_REQUEST with a body" end
    return kind, name
  elseif kind == 4 then
    local text, broken = info(tvb, body, stop, tree, f)
    if broken then return nil, broken end
    return kind, name .. " " .. text
  end
  if len ~= (kind == 5 and 2 or 3) then
    return nil, string.format("W-76: a %s with %d bytes", name, len)
  end
  tree:add(f["query.port"], tvb(body, 2))
  local text = name .. " Port=" .. tvb(body, 2):uint()
  if kind == 6 then
    tree:add(f["query.state"], tvb(body + 2, 1))
    local held = tvb(body + 2, 1):uint()
    text = text .. " " .. (STATES[held] or "state " .. held)
  end
  return kind, text
end

-- Adds the body of a datagram, whose header is shown already. Returns its summary, and the rule
-- that it breaks, if any.
function M.body(state, pinfo, path, packet, tvb, at, stop, tree, f, seconds)
  local text, broken = string.format("Number=%d Len=%d", packet.seq, packet.len), nil
  if packet.flags > 1 then
    broken = "W-05: a reserved flag"
  elseif packet.flags == 1 and not packet.cut then
    local kind, more = control(tvb, at, stop, tree, f)
    if kind then
      packet.control, text = kind, string.format("%s Number=%d", more, packet.seq)
      local query = kind == 5 and (packet.dstport ~= 0 or packet.srcport == 0)
      if query then broken = "W-76: a PORT_QUERY from port 0, or not to port 0" end
    else
      broken = more
    end
  elseif at < stop then
    tree:add(f["payload"], tvb(at, stop - at))
  end
  follow(state, pinfo, path, packet)
  show_links(state, pinfo, tree, f, seconds)
  return text, broken
end

return M
