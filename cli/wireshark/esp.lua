-- Wireshark dissector of ESP and EDP, over raw Ethernet and in UDP (docs/wire-format.md).
--
-- Wireshark already has the names `esp` (IPsec) and `edp` (Extreme Networks), so the names here are
-- `espe` and `edpe`, "over Ethernet". How to install it: docs/capture.md.

set_plugin_info({
  version = "1.0",
  description = "ESP and EDP, the Ethernet Streaming and Datagram Protocols",
})

-- The other files are in the folder of this one.
local folder = debug.getinfo(1, "S").source:match("^@(.*[/\\])") or ""
local analysis = dofile(folder .. "esp_analysis.lua")
local blocks = dofile(folder .. "esp_blocks.lua")
local datagrams = dofile(folder .. "esp_datagrams.lua")
local fields = dofile(folder .. "esp_fields.lua")
local secure = dofile(folder .. "esp_secure.lua")

local espe = Proto("espe", "Ethernet Streaming Protocol")
local edpe = Proto("edpe", "Ethernet Datagram Protocol")
-- The carrier: packets of both protocols in UDP.
local espudp = Proto("espudp", "ESP and EDP in UDP")

-- Length of the header without the packet type, of the packet type, and minimum length of a packet
-- in UDP (W-120), in bytes.
local HEADER, TYPE, MIN_PACKET = 11, 2, 48

espe.prefs.esp_type = Pref.uint("EtherType of ESP", 0x88b5, "As in the daemon's configuration")
espe.prefs.edp_type = Pref.uint("EtherType of EDP", 0x88b6, "As in the daemon's configuration")
espe.prefs.udp_ports = Pref.range("UDP ports", "2805", "Ports of daemons that serve UDP", 65535)
espe.prefs.any_port = Pref.bool("Look for ESP on all UDP ports", true,
  "Programs without a daemon use any port; decode datagrams that look like ESP")
espe.prefs.analyze = Pref.bool("Analyze sequence numbers", true,
  "Relative numbers, round trips, retransmissions, losses")

local f, remarks = fields.define(espe, blocks, secure)
local g, complaints = fields.define_datagrams(edpe, datagrams, secure)

-- Values of other dissectors in the packet. The addresses of `pinfo` cannot identify a path,
-- because they change when a name is resolved.
local carriers = {
  eth = { Field.new("eth.src"), Field.new("eth.dst") },
  ip = { Field.new("ip.src"), Field.new("ip.dst") },
  ipv6 = { Field.new("ipv6.src"), Field.new("ipv6.dst") },
}

-- Results of the first pass over the capture: the connections, and the remarks on each packet by
-- frame number and offset.
local state, requests, known

function espe.init()
  state, requests, known = analysis.new(), datagrams.new(), {}
end

-- Returns the innermost addresses of the given kinds as text; nil if there are none.
local function addresses(names)
  local found = {}
  for _, name in ipairs(names) do
    local carrier = carriers[name]
    local src, dst = { carrier[1]() }, { carrier[2]() }
    if #src > 0 and #dst > 0 and src[#src].range and dst[#dst].range then
      found[1] = src[#src].range:bytes():tohex()
      found[2] = dst[#dst].range:bytes():tohex()
      return found
    end
  end
end

local function path_of(pinfo, in_udp)
  local found = addresses(in_udp and { "ipv6", "ip" } or { "eth" })
    or { tostring(pinfo.src), tostring(pinfo.dst) }
  if in_udp then
    return { src = found[1] .. "@" .. pinfo.src_port, dst = found[2] .. "@" .. pinfo.dst_port }
  end
  return { src = found[1], dst = found[2] }
end

local function seconds(number)
  local whole = math.floor(number)
  return NSTime.new(whole, math.floor((number - whole) * 1e9 + 0.5))
end

local function has(flags, mask)
  return math.floor(flags / mask) % 2 == 1
end

-- Returns the kind of a packet, or nil and the rule that its header breaks (W-05, W-11 to W-13).
local function kind_of(flags, len)
  if flags >= 0x80 then return nil, "W-05: a reserved flag" end
  local ext = has(flags, 0x10)
  local plain = ext and flags - 0x10 or flags
  if (plain == 0x02 or plain == 0x42) and len > 0 then return "data" end
  if plain == 0x02 then return "ack" end
  if plain == 0x06 then
    if len > 0 then return nil, "W-13: a FIN with data" end
    return "fin"
  end
  if plain == 0x22 then return "probe" end
  local alone = { [0x01] = "syn", [0x03] = "synack", [0x08] = "rst", [0x0a] = "rst",
    [0x21] = "move" }
  if alone[plain] and not ext then return alone[plain] end
  return nil, "W-11: an invalid combination of flags"
end

local function flag_names(flags)
  local names = {}
  for _, flag in ipairs(blocks.FLAGS) do
    if has(flags, flag[3]) then names[#names + 1] = flag[2] end
  end
  return #names > 0 and table.concat(names, ", ") or "none"
end

-- Adds the header, which starts at the destination port, and returns its values and the item of
-- each sequence number.
local function header(tvb, at, tree, own)
  local function number(offset, len) return tvb(at + offset, len):uint() end
  local p = { dstport = number(0, 2), srcport = number(2, 2), seq = number(4, 2),
    ack_field = number(6, 2), len = number(8, 2), flags = number(10, 1) }
  local items = {}
  tree:add(own["dstport"], tvb(at, 2))
  tree:add(own["srcport"], tvb(at + 2, 2))
  tree:add(own["port"], tvb(at, 2)):set_hidden()
  tree:add(own["port"], tvb(at + 2, 2)):set_hidden()
  items.seq = tree:add(own["seq_raw"] or own["seq"], tvb(at + 4, 2))
  items.ack = tree:add(own["ack_raw"] or own["ack"], tvb(at + 6, 2))
  tree:add(own["len"], tvb(at + 8, 2))
  items.flags = tree:add(own["flags"], tvb(at + 10, 1))
  return p, items
end

-- Shows the results of the analysis, and returns the remarks as a text for the list of packets.
local function show_analysis(result, tree, items)
  local text = ""
  tree:add(f["stream"], result.stream):set_generated()
  if result.seq then items.seq:add(f["seq"], result.seq):set_generated() end
  if result.next_seq then items.seq:add(f["nxtseq"], result.next_seq):set_generated() end
  if result.ack then items.ack:add(f["ack"], result.ack):set_generated() end
  if result.edge and result.ack then
    items.ack:add(f["credit_edge"], result.edge):set_generated()
    items.ack:add(f["credit"], result.edge - result.ack):set_generated()
  end
  local sub = tree:add(f["analysis"])
  sub:set_generated()
  for _, name in ipairs({ "acks_frame", "retransmission_of", "duplicate_ack", "duplicate_of",
    "in_flight", "answers_probe", "new_marks" }) do
    if result[name] then sub:add(f[name], result[name]):set_generated() end
  end
  for _, name in ipairs({ "ack_rtt", "initial_rtt", "since_original", "probe_rtt" }) do
    if result[name] then sub:add(f[name], seconds(result[name])):set_generated() end
  end
  for _, remark in ipairs(result.notes) do
    local item = sub:add(f["remark"], remark.text)
    item:set_generated()
    item:add_proto_expert_info(remarks[remark.name], remark.text)
    if fields.IN_LIST[remark.name] then text = text .. "[" .. fields.IN_LIST[remark.name] .. "] " end
  end
  return text
end

-- Analyses a valid packet on the first pass, and returns the results.
local function analyze(pinfo, path, p, at)
  if not pinfo.visited and not (known[pinfo.number] and known[pinfo.number][at]) then
    local from = path.src .. "/" .. p.srcport
    local to = path.dst .. "/" .. p.dstport
    p.path, p.reverse = from .. ">" .. to, to .. ">" .. from
    p.frame, p.time = pinfo.number, pinfo.rel_ts
    p.ack = has(p.flags, 0x02) and p.ack_field or nil
    known[pinfo.number] = known[pinfo.number] or {}
    known[pinfo.number][at] = analysis.packet(state, p)
  end
  return known[pinfo.number] and known[pinfo.number][at]
end

-- Shows the payload or block. Returns a text, and the rule that is broken, if any.
local function content(p, tvb, at, stop, tree)
  if at >= stop and p.kind ~= "rst" and p.kind ~= "move" and p.kind ~= "syn"
    and p.kind ~= "synack" then
    return ""
  end
  local names = { syn = "setup", synack = "setup", rst = "reset", move = "move" }
  local name = names[p.kind]
  if not name then
    tree:add(f[p.kind == "probe" and "filler" or "payload"], tvb(at, stop - at))
    return ""
  end
  local sub = stop > at and tree:add(f["block"], tvb(at, stop - at), fields.BLOCKS[name])
    or tree:add(f["block"], fields.BLOCKS[name])
  local value, text = blocks[name](tvb, at, stop, sub, f)
  if not value then return "", text end
  p[name] = value
  return " " .. text
end

-- Shows the bytes after the payload. Returns a text, and the rule that is broken, if any.
local function trailer(p, tvb, at, stop, tree)
  local text = ""
  if has(p.flags, 0x10) then
    local sub = stop > at and tree:add(f["block"], tvb(at, stop - at), "Extension")
      or tree:add(f["block"], "Extension")
    local ext, broken = blocks.ext(tvb, at, stop, sub, f, p.ack_field)
    if not ext then return "", broken end
    sub:set_len(ext.len)
    p.ext, at = ext, at + ext.len
    if ext.sack then text = text .. " Sack=" .. ext.sack end
    if ext.probed then text = text .. " Probed=" .. ext.probed end
    if ext.ce then text = text .. " Marks=" .. ext.ce end
  end
  if at < stop then tree:add(f["padding"], tvb(at, stop - at)) end
  return text
end

-- Returns the numbers of a packet for the list: relative numbers if known.
local function numbers(p, result)
  if not result then
    return string.format(" Seq=%d%s (raw)", p.seq,
      has(p.flags, 0x02) and " Ack=" .. p.ack_field or "")
  end
  local text = result.seq and " Seq=" .. result.seq or ""
  if result.ack then
    text = text .. " Ack=" .. result.ack
    if result.edge and not p.setup then text = text .. " Credit=" .. result.edge - result.ack end
  end
  return text
end

-- Shows an ESP packet with a complete header, from the destination port at `at` to `stop`. `whole`
-- is the position where it ended before the capture cut it. Returns its summary.
local function stream_packet(tvb, at, stop, whole, pinfo, tree, path)
  local p, items = header(tvb, at, tree, f)
  for _, flag in ipairs(blocks.FLAGS) do
    items.flags:add(f["flags." .. flag[1]], tvb(at + 10, 1))
  end
  items.flags:append_text(" (" .. flag_names(p.flags) .. ")")
  local kind, broken = kind_of(p.flags, p.len)
  p.kind = kind
  if kind then tree:add(f["kind"], kind):set_generated() end
  local body = at + HEADER
  local cut = stop < whole
  if not broken and body + p.len > whole then
    broken = string.format("W-03: data length %d, and %d bytes follow", p.len, whole - body)
  end
  if not broken and (p.srcport == 0 or p.dstport == 0) then broken = "W-15: port 0" end
  local text, more = "", ""
  if not broken and body + p.len <= stop then
    text, broken = content(p, tvb, body, body + p.len, tree)
    if not broken then more, broken = trailer(p, tvb, body + p.len, stop, tree) end
    -- Missing fields may be in the bytes that were not captured.
    if cut then broken = nil end
  end
  if not broken and not cut then broken = path.broken end
  if cut then tree:add_proto_expert_info(remarks.cut) end
  if broken then tree:add_proto_expert_info(remarks.malformed, broken) end
  if kind == "rst" and not broken then tree:add_proto_expert_info(remarks.reset) end
  local result = espe.prefs.analyze and not broken and analyze(pinfo, path, p, at)
  local prefix = result and show_analysis(result, tree, items) or ""
  if broken then prefix, more = "[Malformed] ", " (" .. broken .. ")" end
  return string.format("%s%d → %d [%s]%s Len=%d%s%s", prefix, p.srcport, p.dstport,
    flag_names(p.flags), numbers(p, result), p.len, text, more)
end

-- Shows an EDP packet, like `stream_packet`.
local function datagram(tvb, at, stop, whole, pinfo, tree, path)
  local p, items = header(tvb, at, tree, g)
  items.flags:add(g["flags.ctl"], tvb(at + 10, 1))
  items.flags:add(g["flags.reserved"], tvb(at + 10, 1))
  local body, text, broken = at + HEADER, "", nil
  p.cut = stop < whole
  if body + p.len > whole then
    broken = string.format("W-03: data length %d, and %d bytes follow", p.len, whole - body)
  else
    text, broken = datagrams.body(requests, pinfo, path, p, tvb, body,
      math.min(body + p.len, stop), tree, g, seconds)
    if body + p.len < stop then
      tree:add(g["padding"], tvb(body + p.len, stop - body - p.len))
    end
  end
  broken = broken or path.broken
  if p.cut then
    broken = nil
    tree:add_proto_expert_info(complaints.cut)
  elseif broken then
    tree:add_proto_expert_info(complaints.malformed, broken)
  end
  if broken then return string.format("[Malformed] %d → %d (%s)", p.srcport, p.dstport, broken) end
  return string.format("%d → %d %s", p.srcport, p.dstport, text)
end

-- Shows a packet with flag 0x80, whose contents only its receiver can read. Returns its summary, or
-- nil if it does not conform to W-141.
local function protected(tvb, at, stop, whole, tree, own)
  local sub = secure.packet(tvb, at + HEADER, stop, whole, tree, own)
  if not sub then return nil end
  local p, items = header(tvb, at, tree, own)
  items.flags:append_text(" (protected)")
  return string.format("%d → %d [Protected] %s", p.srcport, p.dstport, sub)
end

-- Shows one packet, whose header begins with the packet type in UDP, and otherwise after it.
local function packet(proto, tvb, at, stop, whole, pinfo, tree, in_udp)
  local sub = stop > at and tree:add(proto, tvb(at, stop - at)) or tree:add(proto)
  local stream = proto == espe
  pinfo.cols.protocol = stream and "ESPE" or "EDPE"
  local first = in_udp and at + TYPE or at
  if in_udp and stop - at >= TYPE then
    sub:add((stream and f or g)["type"], tvb(at, TYPE))
  end
  if stop - first < HEADER then
    local reasons = stream and remarks or complaints
    if stop < whole then
      sub:add_proto_expert_info(reasons.cut)
      return "[Cut off]"
    end
    local text = "W-02: a packet that ends within its header"
    sub:add_proto_expert_info(reasons.malformed, text)
    return "[Malformed] " .. text
  end
  local show, path = stream and stream_packet or datagram, path_of(pinfo, in_udp)
  if in_udp and whole - at < MIN_PACKET then path.broken = "W-120: fewer than 48 bytes" end
  local text
  if tvb(first + 10, 1):uint() >= 0x80 then
    text = protected(tvb, first, stop, whole, sub, stream and f or g)
  end
  text = text or show(tvb, first, stop, whole, pinfo, sub, path)
  sub:append_text(", " .. text)
  return text
end

local function raw(proto)
  return function(tvb, pinfo, tree)
    pinfo.cols.info = packet(proto, tvb, 0, tvb:len(), tvb:reported_len(), pinfo, tree, false)
    return tvb:len()
  end
end

espe.dissector = raw(espe)
edpe.dissector = raw(edpe)

-- Returns the protocol of the packet at this position of a datagram, if there can be one.
local function protocol_at(tvb, at)
  if tvb:len() < at + TYPE then return nil end
  local kind = tvb(at, TYPE):uint()
  return kind == espe.prefs.esp_type and espe or kind == espe.prefs.edp_type and edpe or nil
end

-- Returns the length of a packet that is followed by others: it is padded only to the minimum
-- length.
local function length_at(tvb, at)
  local len = TYPE + HEADER
  if tvb:len() < at + len then return tvb:len() - at end
  -- A protected packet does not contain its length.
  if tvb(at + 12, 1):uint() >= 0x80 then return tvb:len() - at end
  len = len + tvb(at + 10, 2):uint()
  if has(tvb(at + 12, 1):uint(), 0x10) and protocol_at(tvb, at) == espe
    and tvb:len() > at + len then
    len = len + tvb(at + len, 1):uint()
  end
  return math.max(len, MIN_PACKET)
end

-- The kernel splits and joins datagrams late: if a capture sees segmentation offload, a datagram
-- contains several packets.
function espudp.dissector(tvb, pinfo, tree)
  local proto = protocol_at(tvb, 0)
  if not proto then return 0 end
  local at, count, first = 0, 0, nil
  while proto do
    local stop = at + length_at(tvb, at)
    local following = tvb:len() >= stop + MIN_PACKET and protocol_at(tvb, stop)
    if not following then stop = tvb:len() end
    local whole = following and stop or tvb:reported_len()
    local text = packet(proto, tvb, at, stop, whole, pinfo, tree, true)
    first, count, at, proto = first or text, count + 1, stop, following
  end
  if count > 1 then first = string.format("%s (and %d more packets)", first, count - 1) end
  pinfo.cols.info = first
  return tvb:len()
end

-- Returns true if the header of a datagram is consistent with ESP or EDP.
local function looks_like(tvb)
  local proto = protocol_at(tvb, 0)
  if not proto or tvb:reported_len() < MIN_PACKET or tvb:len() < TYPE + HEADER then return false end
  local len, flags = tvb(10, 2):uint(), tvb(12, 1):uint()
  if TYPE + HEADER + len > tvb:reported_len() then return false end
  if proto == edpe then return flags <= 1 end
  return kind_of(flags, len) ~= nil and tvb(2, 2):uint() > 0 and tvb(4, 2):uint() > 0
end

local function guess(tvb, pinfo, tree)
  if not espe.prefs.any_port or not looks_like(tvb) then return false end
  espudp.dissector(tvb, pinfo, tree)
  return true
end

local ethertypes, udp = DissectorTable.get("ethertype"), DissectorTable.get("udp.port")
local registered

-- Registers the dissectors for the types and ports in the preferences.
local function register()
  local p = espe.prefs
  if registered then
    ethertypes:remove(registered.esp, espe)
    ethertypes:remove(registered.edp, edpe)
    if registered.ports ~= "" then udp:remove(registered.ports, espudp) end
  end
  registered = { esp = p.esp_type, edp = p.edp_type, ports = p.udp_ports }
  ethertypes:add(registered.esp, espe)
  ethertypes:add(registered.edp, edpe)
  if registered.ports ~= "" then udp:add(registered.ports, espudp) end
end

espe.prefs_changed = register
register()
espudp:register_heuristic("udp", guess)
