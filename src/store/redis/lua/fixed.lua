-- Decides calls on fixed windows that are enforced and free when denied: the usual ones, and so the
-- script that must be cheap. Each counter is read once, and written once if at all; equal calls are
-- one item that is made so many times. Each call is judged by itself, all or nothing.
--
-- KEYS     the counters
-- ARGV     six bytes for each key: its expiry in Unix milliseconds; then groups of items that are judged
--          alike:
--            items      their number
--            charges    the number of each one's charges
--            places     for each item and charge one byte: the place in KEYS, no place twice in an item
--            times      for each item one byte: so many calls are equal
--            and for each charge: hits, limit, and the window's start and stop in Unix milliseconds
-- Returns  integers: TIME's seconds and microseconds; then for each item and charge what the counter
--          has left before the item; or -1 outside the window; or -2 if the counter holds no count.
--          The caller works out from it which of the equal calls were admitted.

local now = time[1] * 1000 + math.floor(time[2] / 1000)
local byte, floor, min, max = string.byte, math.floor, math.min, math.max

-- What is in the keys: nil where there is nothing, false where it is no count.
local before, used = redis.call('MGET', unpack(KEYS)), {}
for place = 1, #KEYS do
  local value = before[place]
  if value then
    local count = tonumber(value)
    -- Only what INCRBY will take, and a double holds.
    if not count or count > 9007199254740991 or not string.find(value, '^[1-9]%d*$') and value ~= '0' then
      count = false
    end
    used[place], before[place] = count, count
  else
    -- MGET says nothing of what is no text.
    used[place] = redis.call('EXISTS', KEYS[place]) == 0 and 0
    before[place] = nil
  end
end

local reply = { tonumber(time[1]), tonumber(time[2]) }
local told, at = 2, 2
while ARGV[at] do
  local items, charges = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local places, times = { byte(ARGV[at + 2], 1, -1) }, { byte(ARGV[at + 3], 1, -1) }
  local hits, limit, present = {}, {}, true
  for charge = 1, charges do
    local first = at + 4 * charge
    hits[charge], limit[charge] = tonumber(ARGV[first]), tonumber(ARGV[first + 1])
    present = present and tonumber(ARGV[first + 2]) <= now and now < tonumber(ARGV[first + 3])
  end
  at = at + 4 + 4 * charges

  for item = 1, items do
    local first = (item - 1) * charges
    local admitted = present and times[item] or 0
    for charge = 1, charges do
      local count = used[places[first + charge]]
      local left = -1
      if present then left = count and max(0, limit[charge] - count) or -2 end
      if left < hits[charge] * admitted then admitted = max(0, floor(left / hits[charge])) end
      told = told + 1
      reply[told] = left
    end
    if admitted > 0 then
      for charge = 1, charges do
        local place = places[first + charge]
        used[place] = used[place] + hits[charge] * admitted
      end
    end
  end
end

-- All is checked; now it is written. A counter is born with its value and its expiry in one command.
for place = 1, #KEYS do
  local count, held = used[place], before[place]
  if count and count ~= (held or 0) then
    if not held then
      local a, b, c, d, e, f = byte(ARGV[1], 6 * place - 5, 6 * place)
      local expiry = ((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f
      redis.call('SET', KEYS[place], string.format('%.0f', count), 'PXAT', string.format('%.0f', expiry))
    elseif count - held == 1 then
      redis.call('INCR', KEYS[place])
    else
      redis.call('INCRBY', KEYS[place], string.format('%.0f', count - held))
    end
  end
end
return reply
