-- Decides one call of one charge on a fixed window that is enforced and free when denied: what
-- fixed.lua does for many, for less.
--
-- KEYS     the counter
-- ARGV     hits, limit, the window's start and stop, and the key's expiry, in Unix milliseconds
-- Returns  as fixed.lua

local now = time[1] * 1000 + math.floor(time[2] / 1000)
local seconds, micros = tonumber(time[1]), tonumber(time[2])
if now < tonumber(ARGV[3]) or now >= tonumber(ARGV[4]) then return { seconds, micros, -1 } end

local key, hits, limit = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local value = redis.pcall('GET', key)
if not value then
  if hits <= limit then redis.call('SET', key, ARGV[1], 'PXAT', ARGV[5]) end
  return { seconds, micros, limit }
end

-- Only what INCRBY will take, and a double holds.
local count = type(value) == 'string' and tonumber(value)
if not count or count > 9007199254740991 or not string.find(value, '^[1-9]%d*$') and value ~= '0' then
  return { seconds, micros, -2 }
end
if count + hits <= limit then redis.call('INCRBY', key, ARGV[1]) end
return { seconds, micros, math.max(0, limit - count) }
