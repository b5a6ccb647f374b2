-- Decides calls on fixed windows that are enforced and not charged when denied: the usual ones, and so the
-- script that must be cheap. It adds first, and takes back what does not fit: a run is atomic, so no
-- client sees that, and a counter that admits is accessed once. Each call is judged by itself, all or nothing.
--
-- KEYS     the counters, 1 to 96
-- ARGV     the expiries of the keys, then groups. A group is items that are judged alike; an item is one
--          call, or several equal calls.
--
--          expiries   | key 1 | key 2 | ...        six bytes each, big-endian: Unix milliseconds
--          group      | items | charges | item | item | ...              one byte each number
--            item     | slot of charge 1 | slot of charge 2 | ... | calls          slots in KEYS, none twice
--          and then for each charge of the group four arguments:
--            hits     1 to the limit
--            limit    1 to 2^53 - 1
--            start    first millisecond of the window
--            stop     first millisecond after it
-- Returns  integers: TIME's seconds and microseconds; then for each item and charge what the counter had
--          left before the item, or why the item is not decided:
--            -1        the window is not the present one
--            -2        the counter holds something other than a count
--            -3 to -6  the item would be admitted, but the server takes no writes, see refusal.lua
--            -7        another server of the cluster has a key of the item
--            -8        as -3, since the user may not write them
--            -9        as -3, since a command failed for another reason
--          The caller computes from it which of the equal calls were admitted.

local try, byte, floor = redis.pcall, string.byte, math.floor
local keys, arguments = KEYS, ARGV
local now = time[1] * 1000 + time[2] / 1000
local STALE, CORRUPT, ELSEWHERE = -1, -2, -7

-- 2^53 - 1: up to here a double holds every whole number.
local COUNT_MAX = 9007199254740991

assert(#arguments[1] == 6 * #keys, 'six bytes for each key')

local absent, elsewhere = survey(#keys)

local reply = { time[1] + 0, time[2] + 0 }

-- Why the item that is judged cannot be written, and which of its slots have not been; nil if all have.
local problem, unwritten

local function read_count(key)
  local value = try('GET', key)
  if type(value) ~= 'string' or not (value == '0' or string.find(value, '^[1-9]%d*$')) then return nil end
  local count = tonumber(value)
  return count <= COUNT_MAX and count or nil
end

-- Notes why a write failed; the first reason counts.
local function note(slot, why)
  problem, unwritten = problem or refusal_of(why) or FAILED, unwritten or {}
  unwritten[slot] = true
end

-- Adds to a counter. Returns what it held before; nil, with nothing added, if that is not a count.
local function add(slot, hits)
  local key = keys[slot]
  local count = hits == 1 and try('INCR', key) or try('INCRBY', key, hits)
  local is_added = type(count) == 'number'
  if is_added and count >= hits and count <= COUNT_MAX then return count - hits end

  -- In doubt the value decides, as it was before.
  if is_added then try('INCRBY', key, -hits) end
  local before = read_count(key)
  if is_added and before then
    try('INCRBY', key, hits)
  elseif before then
    note(slot, count)
  end
  return before
end

-- Creates a counter, with its value and its expiry in one command.
local function create(slot, count)
  local a, b, c, d, e, f = byte(arguments[1], 6 * slot - 5, 6 * slot)
  local expiry = ((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f
  local created = try('SET', keys[slot], count, 'PXAT', expiry)
  if created.err then
    note(slot, created)
  else
    absent[slot] = false
  end
end

-- Reads the group whose first argument is at `at`. Returns its bytes; for each charge the hits and the limit;
-- whether all windows are present; and where the next group begins.
local function read_group(at)
  local layout, hits, limits, is_present = { byte(arguments[at], 1, -1) }, {}, {}, true
  assert(#layout == 2 + layout[1] * (layout[2] + 1), 'one slot for each charge of each item')
  for charge = 1, layout[2] do
    hits[charge], limits[charge] = arguments[at + 1] + 0, arguments[at + 2] + 0
    is_present = is_present and arguments[at + 3] + 0 <= now and now < arguments[at + 4] + 0
    at = at + 4
  end
  return layout, hits, limits, is_present, at + 1
end

-- Writes to the reply, behind the first `filled`, the same answer to `charges` charges.
local function answer_all(charges, filled, answer)
  for charge = 1, charges do reply[filled + charge] = answer end
end

-- Takes back what was added for calls of an item that are not admitted, or cannot be written, and creates the counters
-- that do not exist. Its slots begin at `first`, and its part of the reply follows the first `filled`.
local function take_back(layout, hits, first, filled, admitted)
  local charges = layout[2]
  local surplus = admitted - layout[first + charges]
  for charge = 1, charges do
    local slot = layout[first + charge - 1]
    if absent and absent[slot] then
      if admitted > 0 and not problem then create(slot, hits[charge] * admitted) end
    elseif surplus < 0 and not (unwritten and unwritten[slot]) and reply[filled + charge] ~= CORRUPT then
      try('INCRBY', keys[slot], hits[charge] * surplus)
    end
  end
  if problem and admitted > 0 then
    for charge = 1, charges do
      local slot = layout[first + charge - 1]
      local is_written = not unwritten[slot] and not (absent and absent[slot])
      if is_written then try('INCRBY', keys[slot], -hits[charge] * admitted) end
    end
    answer_all(charges, filled, problem)
  end
  problem, unwritten = nil, nil
end

-- Whether another server has a key of the item whose slots begin at `first`.
local function is_item_elsewhere(layout, first)
  for charge = 0, layout[2] - 1 do
    if elsewhere[layout[first + charge]] then return true end
  end
  return false
end

-- Judges the items of a group one after the other: adds the hits of all calls of an item, and writes to the
-- reply, behind the first `filled`, what each counter had left. Returns the length of the reply then.
local function try_items(layout, hits, limits, filled)
  local charges, absent, reply, floor = layout[2], absent, reply, floor
  for first = 3, #layout, charges + 1 do
    if elsewhere and is_item_elsewhere(layout, first) then
      answer_all(charges, filled, ELSEWHERE)
    else
      local calls = layout[first + charges]
      local admitted = calls
      for charge = 1, charges do
        local slot, asked = layout[first + charge - 1], hits[charge]
        local before = absent and absent[slot] and 0 or add(slot, asked * calls)
        local remaining = before and limits[charge] - before or CORRUPT
        if before and remaining < 0 then remaining = 0 end
        if remaining < asked * admitted then admitted = remaining > 0 and floor(remaining / asked) or 0 end
        reply[filled + charge] = remaining
      end
      if absent or problem or admitted < calls then take_back(layout, hits, first, filled, admitted) end
    end
    filled = filled + charges
  end
  return filled
end

local at, filled = 2, 2
while at <= last_argument do
  local layout, hits, limits, is_present
  layout, hits, limits, is_present, at = read_group(at)
  if is_present then
    filled = try_items(layout, hits, limits, filled)
  else
    local charges = layout[1] * layout[2]
    answer_all(charges, filled, STALE)
    filled = filled + charges
  end
end
return reply
