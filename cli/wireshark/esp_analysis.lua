-- Follows the connections of a capture: relative sequence numbers, round trips, retransmissions,
-- losses. Independent of Wireshark: takes records of packets and returns remarks.
--
-- Wireshark loads every .lua file of a plugin folder. Alone, this file has no effect.

local M = {}

-- Sequence numbers are serial numbers of 16 bits.
local WRAP = 65536
-- Size of the range below the highest number of a direction in which packets and gaps are
-- remembered until they are acknowledged: twice the maximum window.
local REMEMBERED = 8192
-- A gap that is filled within a round trip was reordered, not lost; this time is used if the round
-- trip is unknown, as in Wireshark's analysis of TCP.
local REORDERED_SECONDS = 0.003

-- Kinds of packets that take a sequence number.
local TAKES = { syn = true, synack = true, data = true, fin = true }

function M.new()
  return { by_path = {}, by_nonce = {}, count = 0 }
end

-- One direction of a connection. Numbers are relative to the SYN, which has 0, and do not wrap.
local function new_direction()
  -- `missing`: for each missing number, the time at which its gap was noticed.
  return { sent = {}, missing = {}, duplicates = 0 }
end

local function new_stream(state)
  local stream = { index = state.count, [1] = new_direction(), [2] = new_direction() }
  state.count = state.count + 1
  return stream
end

local function bind(state, packet, stream, side)
  state.by_path[packet.path] = { stream = stream, side = side }
  state.by_path[packet.reverse] = { stream = stream, side = 3 - side }
end

-- Sets the first number of a direction: the SYN has 0; without a SYN, the first packet seen has 1.
local function begin(direction, number, is_syn)
  direction.base = is_syn and number or (number - 1) % WRAP
  direction.high = is_syn and 0 or 1
  direction.acked = direction.high
end

-- Returns the relative number that is nearest to the next expected one.
local function relative(direction, number)
  local ahead = (number - direction.base - direction.high) % WRAP
  if ahead >= WRAP / 2 then ahead = ahead - WRAP end
  return direction.high + ahead
end

local function note(result, name, text)
  result.notes[#result.notes + 1] = { name = name, text = text }
end

-- Finds the connection of a move by its nonces, which do not change with the path.
local function find_moved(state, packet)
  local move = packet.move
  local own, other = state.by_nonce[move.sender_nonce], state.by_nonce[move.nonce]
  local stream = own and own.stream or other and other.stream
  if not stream then return nil end
  local side = own and own.side or 3 - other.side
  if move.step == 3 or move.step == 4 then
    bind(state, packet, stream, side)
  end
  return { stream = stream, side = side }
end

local function find(state, packet)
  local found = packet.move and find_moved(state, packet) or state.by_path[packet.path]
  if found and packet.kind == "syn" then
    local me = found.stream[found.side]
    local nonce = packet.setup and packet.setup.nonce
    -- A new attempt on the ports of an earlier one, or of a connection whose start was not
    -- captured.
    if me.base and me.nonce ~= nonce then found = nil end
  end
  if not found then
    found = { stream = new_stream(state), side = 1 }
    bind(state, packet, found.stream, 1)
  end
  return found.stream, found.side
end

-- Applies nonce and credit of a set-up block.
local function set_up(state, packet, stream, side)
  local me, peer = stream[side], stream[3 - side]
  local setup = packet.setup
  if not setup then return end
  if me.nonce and me.nonce ~= setup.nonce then
    -- A SYN+ACK of a peer that has restarted.
    stream[side] = new_direction()
    me = stream[side]
  end
  me.nonce = setup.nonce
  state.by_nonce[setup.nonce] = { stream = stream, side = side }
  if peer.base == nil or peer.edge == nil then peer.edge = 1 + setup.credit end
end

local function forget(direction, upto)
  if upto - direction.acked <= REMEMBERED then
    for number = direction.acked, upto - 1 do
      direction.sent[number], direction.missing[number] = nil, nil
    end
  else
    direction.sent, direction.missing = {}, {}
  end
  direction.acked = upto
end

-- Advances the highest number. Numbers too far below it are forgotten, because their
-- acknowledgement may never be captured.
local function advance(direction, high)
  if high - direction.high > REMEMBERED then
    direction.sent, direction.missing = {}, {}
  else
    for number = direction.high - REMEMBERED, high - 1 - REMEMBERED do
      direction.sent[number], direction.missing[number] = nil, nil
    end
  end
  direction.high = high
end

-- Measures the first round trip: from the SYN to the acknowledgement of its answer, which is
-- correct wherever between the two ends the capture was made. Unknown if the SYN was repeated.
local function follow_setup(packet, stream, me, peer)
  if packet.kind == "syn" then
    if me.syn_time then me.syn_repeated = true end
    me.syn_time = packet.time
  elseif not stream.initial_rtt and me.syn_time and not me.syn_repeated and peer.acked == 1
    and packet.kind ~= "rst" then
    stream.initial_rtt = packet.time - me.syn_time
  end
end

-- Classifies a packet that repeats or fills a number below the highest one.
local function judge_old(result, packet, stream, me, number)
  local first = me.sent[number]
  if first then
    result.retransmission_of = first.first_frame
    result.since_original = packet.time - first.first_time
  end
  if number < me.acked then
    note(result, "spurious_retransmission", "Retransmission of an acknowledged packet")
  elseif first then
    note(result, "retransmission", "Retransmission of frame " .. first.first_frame)
  elseif packet.time - (me.missing[number] or packet.time)
    <= (stream.initial_rtt or REORDERED_SECONDS) then
    note(result, "out_of_order", "Out of order")
  else
    note(result, "retransmission", "Retransmission of a packet that was not captured")
  end
end

local function follow_sequence(result, packet, stream, me)
  if me.base == nil then begin(me, packet.seq, packet.kind == "syn" or packet.kind == "synack") end
  local number = relative(me, packet.seq)
  -- A reset need not contain a valid sequence number.
  if packet.kind == "rst" and math.abs(number - me.high) > REMEMBERED then return end
  result.seq = number
  if packet.kind == "rst" then return end
  local taken = TAKES[packet.kind]
  if number > me.high then
    note(result, "lost_segment", "Packets before this one that were not captured: "
      .. number - me.high)
    local first = math.max(me.high, number - REMEMBERED)
    advance(me, number)
    for missing = first, number - 1 do
      me.missing[missing] = packet.time
    end
  end
  if not taken then return end
  result.next_seq = number + 1
  if number < me.high then
    judge_old(result, packet, stream, me, number)
  else
    advance(me, number + 1)
  end
  if number >= me.acked and number >= me.high - REMEMBERED then
    local entry = me.sent[number]
    if entry then
      entry.resent = true
      entry.frame, entry.time = packet.frame, packet.time
    else
      me.sent[number] = { frame = packet.frame, time = packet.time, first_frame = packet.frame,
        first_time = packet.time }
    end
  end
  result.in_flight = me.high - me.acked
  if me.edge and me.high == me.edge then
    note(result, "credit_used", "The receiver's credit is used up")
  end
end

-- The round trip of a packet that was sent more than once is unknown (Karn).
local function follow_progress(result, packet, peer, ack)
  local newest = peer.sent[ack - 1]
  if newest then
    result.acks_frame = newest.frame
    if not newest.resent then result.ack_rtt = packet.time - newest.time end
  end
  forget(peer, ack)
end

local function follow_ack(result, packet, me, peer)
  if peer.base == nil then begin(peer, packet.ack, false) end
  local ack = relative(peer, packet.ack)
  result.ack = ack
  local ext = packet.ext or {}
  local edge = ext.credit and relative(peer, ext.credit)
  local more_credit = edge and (peer.edge == nil or edge > peer.edge)
  if ack > peer.high then
    note(result, "ack_lost_segment", "Acknowledged packets that were not captured: "
      .. ack - peer.high)
    peer.high = ack
  end
  if ack > peer.acked then
    follow_progress(result, packet, peer, ack)
    me.duplicates, me.ack_frame = 0, packet.frame
  elseif packet.kind == "ack" and ack == peer.acked and peer.high > ack and not ext.probed then
    if more_credit then
      note(result, "credit_update", "Credit update")
    elseif me.ack_frame then
      me.duplicates = me.duplicates + 1
      result.duplicate_ack, result.duplicate_of = me.duplicates, me.ack_frame
      note(result, "duplicate_ack", string.format("Duplicate acknowledgement #%d of frame %d",
        me.duplicates, me.ack_frame))
    else
      me.ack_frame = packet.frame
    end
  end
  if edge then
    result.edge = edge
    if more_credit then peer.edge = edge end
    if edge <= ack then note(result, "zero_credit", "No credit is left") end
  elseif peer.edge then
    result.edge = peer.edge
  end
end

local function follow_extension(result, packet, me, peer)
  local ext = packet.ext
  if not ext then return end
  if ext.probed and peer.probe and peer.probe.len == ext.probed then
    result.answers_probe = peer.probe.frame
    result.probe_rtt = packet.time - peer.probe.time
    peer.probe = nil
  end
  if ext.ce then
    -- The count starts at 0, but only if the set-up was captured is this known to be the start.
    local before = me.marks or (me.nonce and 0)
    local marked = before and (ext.ce - before) % WRAP or 0
    if marked > 0 and marked < WRAP / 2 then
      result.new_marks = marked
      note(result, "marks", "Packets that arrived with a congestion mark: " .. marked)
    end
    me.marks = ext.ce
  end
end

-- GO and DONE: the numbering continues at the sequence of the header, on the new path.
local function follow_move(result, packet, stream, me, peer)
  local step = packet.move and packet.move.step
  if step ~= 3 and step ~= 4 then return end
  if me.base == nil then begin(me, packet.seq, false) end
  result.seq = relative(me, packet.seq)
  me.high = math.max(me.high, result.seq)
  me.acked, me.sent, me.edge, peer.edge = me.high, {}, nil, nil
  me.missing = {}
  note(result, "moved", "The connection continues on this path")
end

-- Handles the next packet of the capture: path and reverse (names of both directions), kind, frame,
-- time in seconds, seq, ack (if valid), len, and the blocks setup, ext, move if valid. Returns the
-- results of its analysis.
function M.packet(state, packet)
  local stream, side = find(state, packet)
  local result = { stream = stream.index, notes = {} }
  if packet.kind == "syn" or packet.kind == "synack" then
    set_up(state, packet, stream, side)
  end
  local me, peer = stream[side], stream[3 - side]
  if packet.kind == "move" then
    follow_move(result, packet, stream, me, peer)
    return result
  end
  follow_sequence(result, packet, stream, me)
  if packet.kind == "probe" and packet.len > 0 then
    me.probe = { len = packet.len, frame = packet.frame, time = packet.time }
  end
  if packet.ack and packet.kind ~= "rst" then
    follow_ack(result, packet, me, peer)
  end
  follow_setup(packet, stream, me, peer)
  follow_extension(result, packet, me, peer)
  result.initial_rtt = stream.initial_rtt
  return result
end

return M
