-- What is in the keys, read and written. A script that fails half-way keeps what it wrote, so
-- everything is read, and checked, before the first write.

local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- 2^53 - 1: up to here a double holds every whole number.
local COUNT_MAX = 9007199254740991

-- No key lives longer, and no time that is kept lies further ahead, but for a window: a hundred years,
-- in milliseconds. A clock is set back by less.
local MAX_AHEAD_MS = 3153600000000

-- The number that some digits mean; nil if it exceeds COUNT_MAX, or if there are none.
local function count(digits)
  local number = tonumber(digits or '')
  return number and number <= COUNT_MAX and number or nil
end

-- The text of a whole number: Lua's own would be 1e+14.
local function text(number)
  return string.format('%.0f', number)
end

-- A number divided by `by`, rounded down, exactly.
local function div_floor(number, by)
  return (number - number % by) / by
end

-- The same, rounded up.
local function div_ceil(number, by)
  return div_floor(number, by) + (number % by > 0 and 1 or 0)
end

-- The text at a key; nil if the key does not exist, false if it holds another type.
local function read_text(key)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then return false end
  return value or nil
end

-- The count at a key; nil if the key does not exist, false if it holds something else.
local function read_count(key)
  local value = read_text(key)
  if not value then return value end
  -- Only what INCRBY will take.
  if value ~= '0' and not string.find(value, '^[1-9]%d*$') then return false end
  return count(value) or false
end

-- A counter is born with its value and its expiry in one command. One without hits is none.
local function write_count(key, before, after, expiry)
  if before == nil then
    if after > 0 then redis.call('SET', key, text(after), 'PXAT', expiry) end
  elseif after == 0 and before > 0 and REMOVES then
    redis.call('DEL', key)
  elseif after ~= before then
    redis.call('INCRBY', key, text(after - before))
  end
end

-- A count after hits are given back to it. One that has stopped at COUNT_MAX has lost hits of others.
local function given_back(used, hits)
  return used < COUNT_MAX and math.max(0, used - hits) or used
end

-- The algorithms by their short names. Each file adds its own.
local ALGORITHMS = {}
