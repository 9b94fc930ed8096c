-- Protected packets of ESP and EDP (docs/wire-format.md, section 15). Their contents are not
-- decrypted.
--
-- Wireshark loads every .lua file of a plugin folder. Alone, this file has no effect.

local M = {}

-- Minimum length of a protected packet's content: session, counter and tag, in bytes.
local MIN_LENGTH = 4 + 8 + 16
local STEPS = { [1] = "HELLO", [2] = "ACCEPT" }
local SUITES = { [0] = "integrity by AES-128-GCM", [1] = "encrypt by AES-128-GCM",
  [2] = "integrity by ChaCha20-Poly1305", [3] = "encrypt by ChaCha20-Poly1305",
  [4] = "checksum by CRC-32C, no authentication" }
-- Fields of a set-up packet after the session number, with their lengths.
local SETUP = { { "step", 1 }, { "suite", 1 }, { "key", 4 }, { "run", 16 }, { "group", 8 },
  { "nonce", 16 }, { "answer", 16 }, { "mac", 32 } }

function M.define(add, prefix)
  local function name(text) return prefix .. ".sec." .. text end
  local function bytes(short, text) add("sec." .. short, ProtoField.bytes(name(short), text)) end
  add("sec.session", ProtoField.uint32(name("session"), "Session", base.HEX))
  add("sec.counter", ProtoField.uint64(name("counter"), "Counter"))
  add("sec.step", ProtoField.uint8(name("step"), "Step", base.DEC, STEPS))
  add("sec.suite", ProtoField.uint8(name("suite"), "Suite", base.HEX, SUITES))
  add("sec.group", ProtoField.uint64(name("group"), "First recent broadcast"))
  bytes("key", "Key id")
  bytes("run", "Run of the sender")
  bytes("nonce", "Nonce of the side that sent HELLO")
  bytes("answer", "Nonce of the other side")
  bytes("mac", "HMAC")
  bytes("content", "Protected content")
  bytes("tag", "Tag")
end

local function setup(tvb, at, stop, tree, f)
  for _, field in ipairs(SETUP) do
    if at + field[2] > stop then return "Set-up" end
    tree:add(f["sec." .. field[1]], tvb(at, field[2]))
    at = at + field[2]
  end
  local step = tvb(at - 94, 1):uint()
  return STEPS[step] or "step " .. step
end

-- Shows the bytes after the header of a protected packet, from `at` to `stop`; `whole` is the
-- position where it ended before the capture cut it. Returns a text, or nil if it is not a
-- protected packet.
function M.packet(tvb, at, stop, whole, tree, f)
  if whole - at < MIN_LENGTH or stop - at < 12 then return nil end
  local session = tvb(at, 4):uint()
  if session > 1 and session < 2 ^ 31 then return nil end
  if session == 0 and whole - at < 98 then return nil end
  tree:add(f["sec.session"], tvb(at, 4))
  if session == 0 then return setup(tvb, at + 4, stop, tree, f) end
  tree:add(f["sec.counter"], tvb(at + 4, 8))
  local text = string.format("Counter=%s", tostring(tvb(at + 4, 8):uint64()))
  at = at + 12
  if session == 1 then
    text = "Broadcast " .. text
    if at + 20 > stop then return text end
    tree:add(f["sec.key"], tvb(at, 4))
    tree:add(f["sec.run"], tvb(at + 4, 16))
    at = at + 20
  end
  local tag = whole - 16
  if tag > at and stop > at then
    tree:add(f["sec.content"], tvb(at, math.min(tag, stop) - at))
  end
  if tag >= at and stop >= whole then tree:add(f["sec.tag"], tvb(tag, 16)) end
  return text
end

return M
