-- Decides calls on fixed windows that are enforced and free when denied: the usual ones, and so the
-- script that must be cheap. It adds first, and takes back what does not fit: a run is atomic, so nobody
-- sees that, and a counter that admits is reached for once. Each call is judged by itself, all or
-- nothing; equal calls are one item that is made so many times.
--
-- KEYS     the counters
-- ARGV     six bytes for each key: its expiry in Unix milliseconds; then groups of items that are judged
--          alike:
--            items      bytes: the number of items, the number of each one's charges; and for each item
--                       the places of its charges in KEYS, none twice, and how many calls it stands for
--            and for each charge: hits, at most the limit; the limit, 1 to 2^32 - 1; and the window's
--                       start and stop in Unix milliseconds
-- Returns  integers: TIME's seconds and microseconds; then for each item and charge what the counter
--          has left before the item; or -1 outside the window; or -2 if the counter holds no count.
--          The caller works out from it which of the equal calls were admitted.

local call, try, byte, keys, arguments = redis.call, redis.pcall, string.byte, KEYS, ARGV
local now = time[1] * 1000 + time[2] / 1000

-- 2^53 - 1: up to here a double holds every whole number.
local COUNT_MAX = 9007199254740991

-- The keys that are not there, by their places; mostly all are.
local absent
if call('EXISTS', unpack(keys)) < #keys then
  absent = {}
  for place = 1, #keys do absent[place] = call('EXISTS', keys[place]) == 0 end
end

local function holds_count(key)
  local value = try('GET', key)
  if type(value) ~= 'string' or not string.find(value, '^[1-9]%d*$') and value ~= '0' then return false end
  return tonumber(value) <= COUNT_MAX
end

-- Why Redis takes no writes.
local failure

-- Adds to a counter; tells what it held, or nil if that is no count, and then it still does.
local function add(place, hits)
  local key = keys[place]
  local count = hits == 1 and try('INCR', key) or try('INCRBY', key, hits)
  local is_added = type(count) == 'number'
  if is_added and count >= hits and count <= COUNT_MAX then return count - hits end

  -- In doubt it is looked at as it was.
  if is_added then call('INCRBY', key, -hits) end
  if not holds_count(key) then return nil end
  if not is_added then
    failure = count
    return nil
  end
  call('INCRBY', key, hits)
  return COUNT_MAX
end

-- A counter is born with its value and its expiry in one command.
local function bear(place, count)
  local a, b, c, d, e, f = byte(arguments[1], 6 * place - 5, 6 * place)
  local expiry = ((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f
  call('SET', keys[place], count, 'PXAT', expiry)
  absent[place] = false
end

local reply, told, at = { time[1] + 0, time[2] + 0 }, 2, 2
while arguments[at] do
  local shape = { byte(arguments[at], 1, -1) }
  local items, charges = shape[1], shape[2]
  local hits, limit, present = {}, {}, true
  for charge = 1, charges do
    hits[charge], limit[charge] = arguments[at + 1] + 0, arguments[at + 2] + 0
    present = present and arguments[at + 3] + 0 <= now and now < arguments[at + 4] + 0
    at = at + 4
  end
  at = at + 1

  local first = 2
  for _ = 1, items do
    local times = shape[first + charges + 1]
    local admitted = times
    for charge = 1, charges do
      local place, left = shape[first + charge], -1
      if present then
        local before = absent and absent[place] and 0 or add(place, hits[charge] * times)
        left = before and limit[charge] - before or -2
        if before and left < 0 then left = 0 end
      end
      if left < hits[charge] * admitted then
        admitted = left > 0 and math.floor(left / hits[charge]) or 0
      end
      told = told + 1
      reply[told] = left
    end
    if present and (absent or admitted < times) then
      for charge = 1, charges do
        local place = shape[first + charge]
        if absent and absent[place] then
          if admitted > 0 then bear(place, hits[charge] * admitted) end
        elseif admitted < times and reply[told - charges + charge] ~= -2 then
          call('INCRBY', keys[place], hits[charge] * (admitted - times))
        end
      end
    end
    first = first + charges + 1
  end
end
return failure or reply
