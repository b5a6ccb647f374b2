-- Commits holds by token on fixed windows: the usual commits, and so the script that must be cheap. A call that is not
-- plain is left to ledger.lua, with nothing changed: a commit that is repeated or late, a counter that was reset, does
-- not exist, holds no count or would not be above 0, a server that takes no writes.
--
-- KEYS     the counters, one for each charge, and then the records of the holds, and the times at which the counters were
--          reset, in the same order
-- ARGV     first      the windows that are charged for what exceeds an estimate are the present ones from this
--          stop       millisecond on, and until the one before this; 0 and 2^53 - 1 if none is charged
--          calls      one byte for each call: the number of its charges
--          and then for each charge two arguments:
--            change     hits to be added, negative if fewer were used than held
--            deadline   of the hold, in Unix milliseconds
-- Returns  integers: TIME's seconds and microseconds; then for each call 1 if it is committed, 0 if it is left

local call, try, byte = redis.call, redis.pcall, string.byte
local keys, arguments = KEYS, ARGV
local now = time[1] * 1000 + time[2] / 1000

-- 2^53 - 1: up to here a double holds every whole number.
local COUNT_MAX = 9007199254740991

-- No hold ends later; see HOLD_AHEAD_MS in holds.lua.
local latest = now + 691200000

local charges = (last_argument - 3) / 2
assert(#keys == 3 * charges, 'a counter, a record and a reset for each charge')

local absent, elsewhere = survey(charges)

-- Takes back what was added to the counter of a charge.
local function take_back(charge)
  -- Negated, 0 would be written -0.
  call('INCRBY', keys[charge], 0 - arguments[2 * charge + 2])
end

-- Adds to the counter of a charge; returns whether it has a count before and after that.
local function add(charge, change)
  local after = try('INCRBY', keys[charge], change)
  if type(after) ~= 'number' then return false end
  local before = after - change
  if before > 0 and before < COUNT_MAX and after > 0 and after <= COUNT_MAX then return true end
  take_back(charge)
  return false
end

-- Commits a charge; returns whether it has.
local function commit(charge)
  if absent and absent[charge] or elsewhere and elsewhere[charge] then return false end
  local change, deadline = arguments[2 * charge + 2], arguments[2 * charge + 3]
  if deadline + 0 <= now or deadline + 0 > latest then return false end
  if change + 0 < 0 and call('EXISTS', keys[2 * charges + charge]) == 1 then return false end
  if not add(charge, change) then return false end
  local written = try('SET', keys[charges + charge], deadline, 'NX', 'PXAT', deadline)
  if written and not written.err then return true end
  take_back(charge)
  return false
end

local is_present = arguments[1] + 0 <= now and now < arguments[2] + 0
local reply = { time[1] + 0, time[2] + 0 }
local first = 1
for at = 1, #arguments[3] do
  local stop, last = first + byte(arguments[3], at), first
  while is_present and last < stop and commit(last) do last = last + 1 end
  reply[at + 2] = last == stop and 1 or 0
  if last < stop then
    for charge = first, last - 1 do
      call('DEL', keys[charges + charge])
      take_back(charge)
    end
  end
  first = stop
end
return reply
