-- Decides calls on fixed windows that are enforced and not charged when denied: the usual ones, and so the
-- script that must be cheap. It adds first, and takes back what does not fit: a run is atomic, so nobody
-- sees that, and a counter that admits is accessed once. Each call is judged by itself, all or nothing.
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
--            limit    1 to 2^32 - 1
--            start    first millisecond of the window
--            stop     first millisecond after it
-- Returns  integers: TIME's seconds and microseconds; then for each item and charge what the counter had
--          left before the item, or why the item is not decided:
--            -1        the window is not the present one
--            -2        the counter holds something other than a count
--            -3 to -6  the item would be admitted, but the server takes no writes, see refusal.lua
--          The caller computes from it which of the equal calls were admitted.

local call, try, byte, floor, max = redis.call, redis.pcall, string.byte, math.floor, math.max
local keys, arguments = KEYS, ARGV
local now = time[1] * 1000 + time[2] / 1000
local STALE, CORRUPT = -1, -2

-- 2^53 - 1: up to here a double holds every whole number.
local COUNT_MAX = 9007199254740991

assert(#arguments[1] == 6 * #keys, 'six bytes for each key')

-- The keys that do not exist, by their slots; nil if all of them do, as they mostly do.
local absent
if call('EXISTS', unpack(keys)) < #keys then
  absent = {}
  for slot = 1, #keys do absent[slot] = call('EXISTS', keys[slot]) == 0 end
end

local reply, filled = { time[1] + 0, time[2] + 0 }, 2

-- Why the server takes no writes, once one was tried; and an error that is the answer to the whole run.
local refusal, failure

local function read_count(key)
  local value = try('GET', key)
  if type(value) ~= 'string' or not (value == '0' or string.find(value, '^[1-9]%d*$')) then return nil end
  local count = tonumber(value)
  return count <= COUNT_MAX and count or nil
end

-- Adds to a counter. Returns what it held before, or nil if that is no count; then it is unchanged.
local function add(slot, hits)
  local key = keys[slot]
  local count = hits == 1 and try('INCR', key) or try('INCRBY', key, hits)
  local is_added = type(count) == 'number'
  if is_added and count >= hits and count <= COUNT_MAX then return count - hits end

  -- In doubt the value decides, as it was before.
  if is_added then call('INCRBY', key, -hits) end
  local before = read_count(key)
  if is_added and before then
    call('INCRBY', key, hits)
  elseif before then
    refusal = refusal_of(count)
    failure = not refusal and count or nil
  end
  return before
end

-- Creates a counter, with its value and its expiry in one command.
local function create(slot, count)
  local a, b, c, d, e, f = byte(arguments[1], 6 * slot - 5, 6 * slot)
  local expiry = ((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f
  local created = try('SET', keys[slot], count, 'PXAT', expiry)
  if created.err then
    refusal = refusal_of(created)
    failure = not refusal and created or nil
  else
    absent[slot] = false
  end
end

-- The group whose first argument is at `at`, and where the next one begins.
local function read_group(at)
  local layout = { byte(arguments[at], 1, -1) }
  local group = { layout = layout, items = layout[1], charges = layout[2], hits = {}, limits = {}, present = true }
  assert(#layout == 2 + group.items * (group.charges + 1), 'one slot for each charge of each item')
  for charge = 1, group.charges do
    local start, stop = arguments[at + 3] + 0, arguments[at + 4] + 0
    group.hits[charge], group.limits[charge] = arguments[at + 1] + 0, arguments[at + 2] + 0
    group.present = group.present and start <= now and now < stop
    at = at + 4
  end
  return group, at + 1
end

-- Adds the hits of all calls of an item, whose slots begin at `first`, and writes to the reply what each
-- counter had left. Returns how many of the calls are admitted.
local function try_item(group, first, calls)
  local admitted = calls
  for charge = 1, group.charges do
    local left, hits, slot = STALE, group.hits[charge], group.layout[first + charge - 1]
    if group.present then
      local before = absent and absent[slot] and 0 or add(slot, hits * calls)
      left = before and max(0, group.limits[charge] - before) or CORRUPT
    end
    if left < hits * admitted then admitted = left > 0 and floor(left / hits) or 0 end
    filled = filled + 1
    reply[filled] = left
  end
  return admitted
end

-- Takes back what was added for calls that are not admitted, and creates the counters that do not exist.
local function take_back(group, first, calls, admitted)
  for charge = 1, group.charges do
    local slot, at = group.layout[first + charge - 1], filled - group.charges + charge
    if absent and absent[slot] then
      if admitted > 0 then create(slot, group.hits[charge] * admitted) end
    elseif admitted < calls and not refusal and reply[at] ~= CORRUPT then
      call('INCRBY', keys[slot], group.hits[charge] * (admitted - calls))
    end
  end
  if refusal and admitted > 0 then
    for charge = 1, group.charges do reply[filled - charge + 1] = refusal end
  end
end

local at = 2
while arguments[at] do
  local group
  group, at = read_group(at)
  local first = 3
  for _ = 1, group.items do
    local calls = group.layout[first + group.charges]
    local admitted = try_item(group, first, calls)
    if group.present and (absent or refusal or admitted < calls) then take_back(group, first, calls, admitted) end
    first = first + group.charges + 1
  end
end
return failure or reply
